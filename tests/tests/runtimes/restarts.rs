//! Pods survive restarts of containerd and of the agent.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
    time::Duration,
};

use anyhow::{anyhow, ensure};
use ferrule_tests::sys;

use crate::{addresses, reaches, remove, with_containerd};

#[test]
fn pods_survive_a_containerd_restart() {
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
            ensure!(containerd.cri().status(&a)?.addresses == of_a, "after containerd was {round}");
            reaches(containerd, &in_a, &of_a, &of_b)?;
            remove(node, containerd, &[a, b], &empty)?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn pods_survive_an_agent_restart() {
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
fn pods_survive_a_crash_of_containerd_and_agent() {
    with_containerd(|node, containerd| {
        let empty = node.kernel_state()?;
        let pod = containerd.cri().run("a", &[])?;
        let recorded = addresses(node, &pod.id)?;
        containerd.kill()?;
        node.kill_agent()?;
        // containerd often starts before the agent.
        containerd.start_again()?;
        node.start_again()?;
        ensure!(addresses(node, &pod.id)? == recorded);
        ensure!(containerd.cri().status(&pod)?.addresses == recorded);
        remove(node, containerd, &[pod], &empty)
    })
    .unwrap();
}

#[test]
fn pods_created_and_removed_during_agent_crashes_leak_nothing() {
    const CRASHES: usize = 5;
    with_containerd(|node, containerd| {
        let (empty, cri) = (node.kernel_state()?, containerd.cri().clone());
        let (done, ran, refused) = (AtomicBool::new(false), AtomicU32::new(0), AtomicU32::new(0));
        let come_and_go = |name: &str| -> anyhow::Result<()> {
            while !done.load(Ordering::Relaxed) {
                // Creation and removal may fail; a kubelet would retry.
                match cri.run(name, &[]) {
                    Ok(pod) => {
                        ensure!(cri.status(&pod)?.addresses.len() == 2, "a pod without its addresses");
                        ran.fetch_add(1, Ordering::Relaxed);
                        let _ = cri.stop(&pod).and_then(|()| cri.remove(&pod));
                    }
                    Err(_) => drop(refused.fetch_add(1, Ordering::Relaxed)),
                }
            }
            Ok(())
        };
        thread::scope(|scope| {
            let workers = ["a", "b", "c"].map(|name| scope.spawn(|| come_and_go(name)));
            let one_more = |what: &str, of: &AtomicU32| {
                let before = of.load(Ordering::Relaxed);
                sys::wait_until(what, Duration::from_secs(60), || Ok(of.load(Ordering::Relaxed) > before))
            };
            let crashed = (0..CRASHES).try_for_each(|_| {
                one_more("a pod is created with an agent", &ran)?;
                node.kill_agent()?;
                one_more("the creation of a pod fails without an agent", &refused)?;
                node.start_again()
            });
            done.store(true, Ordering::Relaxed);
            for worker in workers {
                worker.join().map_err(|_| anyhow!("panicked"))??;
            }
            crashed
        })?;
        // containerd still knows partially stopped pods.
        remove(node, containerd, &cri.list()?, &empty)
    })
    .unwrap();
}
