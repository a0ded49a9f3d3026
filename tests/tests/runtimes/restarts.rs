//! containerd and the agent come and go, and the pods run on.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
    time::Duration,
};

use anyhow::{anyhow, ensure};

use crate::{addresses, reaches, remove, with_containerd};

#[test]
fn pods_outlive_containerd_and_are_removed_by_the_next_one() {
    with_containerd(|node, containerd| {
        let empty = node.kernel_state()?;
        for (round, crash) in [("stopped", false), ("killed", true)] {
            let a = containerd.cri().run(&format!("a-{round}"), &[])?;
            let b = containerd.cri().run(&format!("b-{round}"), &[])?;
            let (in_a, _in_b) =
                (containerd.cri().start_container(&a)?, containerd.cri().start_container(&b)?);
            let (of_a, of_b) = (addresses(node, &a.id)?, addresses(node, &b.id)?);
            if crash {
                containerd.kill()?
            } else {
                containerd.stop()?
            };
            ensure!(node.attachments()?.len() == 2);
            containerd.start_again()?;
            ensure!(containerd.cri().status(&a)?.addresses == of_a, "after it was {round}");
            reaches(containerd, &in_a, &of_a, &of_b)?;
            remove(node, containerd, &[a, b], &empty)?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn pods_outlive_the_agent_and_are_removed_through_the_next_one() {
    with_containerd(|node, containerd| {
        let empty = node.kernel_state()?;
        let (a, b) = (containerd.cri().run("a", &[])?, containerd.cri().run("b", &[])?);
        let (in_a, _in_b) = (containerd.cri().start_container(&a)?, containerd.cri().start_container(&b)?);
        let (of_a, of_b) = (addresses(node, &a.id)?, addresses(node, &b.id)?);
        node.kill_agent()?;
        reaches(containerd, &in_a, &of_a, &of_b)?;
        node.start_again()?;
        reaches(containerd, &in_a, &of_a, &of_b)?;
        ensure!(addresses(node, &a.id)? == of_a);
        let c = containerd.cri().run("c", &[])?;
        ensure!(!of_a.contains(&addresses(node, &c.id)?[0]) && !of_b.contains(&addresses(node, &c.id)?[0]));
        node.stop_agent()?;
        node.start_again()?;
        remove(node, containerd, &[a, b, c], &empty)
    })
    .unwrap();
}

#[test]
fn pods_outlive_a_crash_of_both() {
    with_containerd(|node, containerd| {
        let empty = node.kernel_state()?;
        let pod = containerd.cri().run("a", &[])?;
        let recorded = addresses(node, &pod.id)?;
        containerd.kill()?;
        node.kill_agent()?;
        // A runtime is often there before the agent.
        containerd.start_again()?;
        node.start_again()?;
        ensure!(addresses(node, &pod.id)? == recorded);
        ensure!(containerd.cri().status(&pod)?.addresses == recorded);
        remove(node, containerd, &[pod], &empty)
    })
    .unwrap();
}

#[test]
fn pain_1_pods_that_come_and_go_while_the_agent_crashes_leave_nothing() {
    const CRASHES: usize = 5;
    with_containerd(|node, containerd| {
        let (empty, cri) = (node.kernel_state()?, containerd.cri().clone());
        let (done, ran) = (AtomicBool::new(false), AtomicU32::new(0));
        let come_and_go = |name: &str| -> anyhow::Result<()> {
            while !done.load(Ordering::Relaxed) {
                // It may fail, as may the removal: a kubelet would try again.
                if let Ok(pod) = cri.run(name, &[]) {
                    ensure!(cri.status(&pod)?.addresses.len() == 2, "a pod without its addresses");
                    ran.fetch_add(1, Ordering::Relaxed);
                    let _ = cri.stop(&pod).and_then(|()| cri.remove(&pod));
                }
            }
            Ok(())
        };
        thread::scope(|scope| {
            let workers = ["a", "b", "c"].map(|name| scope.spawn(|| come_and_go(name)));
            let crashed = (0..CRASHES).try_for_each(|_| {
                thread::sleep(Duration::from_millis(300));
                node.kill_agent()?;
                thread::sleep(Duration::from_millis(100));
                node.start_again()
            });
            done.store(true, Ordering::Relaxed);
            for worker in workers {
                worker.join().map_err(|_| anyhow!("panicked"))??;
            }
            crashed
        })?;
        ensure!(ran.load(Ordering::Relaxed) > 0, "no pod came at all");
        // Some are stopped by half, and known to containerd still.
        remove(node, containerd, &cri.list()?, &empty)
    })
    .unwrap();
}
