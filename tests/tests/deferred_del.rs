//! DEL without a running agent, and how the next agent applies the deferred DEL.

use std::{
    fs,
    path::Path,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context as _, anyhow, ensure};
use ferrule_tests::{
    node::{Node, POD_V4, POD_V6, on_node, with_agent},
    sys,
};

const DEFERRED: &str = "/run/ferrule/deferred";

fn deferred_dels() -> anyhow::Result<Vec<String>> {
    let Ok(entries) = fs::read_dir(DEFERRED) else { return Ok(Vec::new()) };
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

fn container_ids(node: &Node) -> anyhow::Result<Vec<String>> {
    let text = |it: &serde_json::Value| it["container_id"].as_str().unwrap_or_default().to_owned();
    Ok(node.attachments()?.iter().map(text).collect())
}

#[test]
fn del_without_an_agent_succeeds_and_is_applied_by_the_next_agent() {
    with_agent(|node| {
        let runtime = node.runtime()?;
        let empty = node.kernel_state()?;
        let (mut gone, stays, peer) = (node.attach("gone")?, node.attach("stays")?, node.attach("peer")?);
        let ifname = node.host_ifname(&gone)?;
        node.kill_agent()?;
        runtime.del(&gone)?;
        let links = sys::run("ip -o link show")?;
        ensure!(!links.contains(&ifname) && !links.contains(&gone.container_id), "{links}");
        ensure!(!gone.run("ip -o link show")?.contains("eth0"), "the pod's end still exists");
        ensure!(!sys::run("ip route")?.contains(&gone.addresses[0].to_string()));
        // containerd repeats DEL without a netns.
        gone.netns = std::path::PathBuf::new();
        runtime.del(&gone).context("the second DEL")?;
        ensure!(deferred_dels()?.len() == 1, "{:?}", deferred_dels()?);
        stays.ping(&peer.addresses[0].to_string()).context("connectivity of other pods")?;

        node.start_again()?;
        ensure!(container_ids(node)? == [stays.container_id.as_str(), &peer.container_id]);
        ensure!(deferred_dels()?.is_empty(), "{:?}", deferred_dels()?);
        let state = node.kernel_state()?.join("\n");
        ensure!(!state.contains(&gone.container_id), "{state}");
        let next = node.attach("next")?;
        ensure!(
            !gone.addresses.contains(&next.addresses[0]),
            "a released address was allocated during its cooldown"
        );
        for pod in [&stays, &peer, &next] {
            runtime.check(pod)?;
            runtime.del(pod)?;
        }
        node.wait_for_kernel_state(&empty)
    })
    .unwrap();
}

#[test]
fn deferred_del_does_not_affect_a_newer_attachment() {
    with_agent(|node| {
        let runtime = node.runtime()?;
        let mut pod = node.attach("restarted")?;
        let record = Path::new(DEFERRED).join(format!("cluster:{}:eth0", pod.container_id));
        node.kill_agent()?;
        runtime.del(&pod)?;
        let text = fs::read(&record)?;
        node.start_again()?;
        // podman restarts a container under the same ID.
        pod.attached(&runtime.add(&pod)?)?;
        node.kill_agent()?;
        fs::write(&record, text)?;
        node.start_again()?;
        runtime.check(&pod)?;
        pod.ping(ferrule_tests::node::NODE_V4)?;
        ensure!(deferred_dels()?.is_empty(), "the stale deferred DEL was kept");
        Ok(())
    })
    .unwrap();
}

#[test]
fn deferred_del_deletes_an_interface_that_the_shim_did_not_find() {
    with_agent(|node| {
        let pod = node.attach("a")?;
        node.kill_agent()?;
        // Hides the stamp, so that the shim finds no interface to delete.
        let links = sys::run("ip -o link show")?;
        let line = links.lines().find(|line| line.contains(&pod.container_id)).context("no interface")?;
        let ifname = line.split([' ', '@']).nth(1).context("no name")?.to_owned();
        let stamp = format!("ferrule:cluster:{}:eth0", pod.container_id);
        sys::run(&format!("ip link set {ifname} alias hidden"))?;
        node.runtime()?.del(&pod)?;
        sys::run(&format!("ip link set {ifname} alias {stamp}"))?;
        ensure!(sys::run("ip -o link show")?.contains(&ifname));
        node.start_again()?;
        ensure!(node.attachments()?.is_empty());
        sys::wait_until("the interface is gone", Duration::from_secs(5), || {
            Ok(!sys::run("ip -o link show")?.contains(&ifname))
        })
    })
    .unwrap();
}

#[test]
fn shim_does_not_delete_foreign_interfaces() {
    on_node(|node| {
        let pod = node.pod("a")?;
        let near = [
            format!("ferrule:cluster:{}:eth1", pod.container_id),
            format!("ferrule:other:{}:eth0", pod.container_id),
            format!("ferrule:cluster:{}0:eth0", pod.container_id),
            format!("xferrule:cluster:{}:eth0", pod.container_id),
        ];
        for (number, alias) in near.iter().enumerate() {
            sys::run(&format!("ip link add near{number} type veth peer name peer{number}"))?;
            sys::run(&format!("ip link set near{number} alias {alias}"))?;
        }
        let before = sys::run("ip -o link show")?;
        node.runtime()?.del(&pod)?;
        ensure!(sys::run("ip -o link show")? == before);
        Ok(())
    })
    .unwrap();
}

#[test]
fn del_after_a_reboot_succeeds() {
    on_node(|node| {
        let pod = node.pod("of-before")?;
        ensure!(!Path::new("/run/ferrule").exists());
        node.runtime()?.del(&pod)?;
        let record =
            fs::read_to_string(Path::new(DEFERRED).join(format!("cluster:{}:eth0", pod.container_id)))?;
        // A deferred DEL from before the reboot, on a persistent disk.
        let old = record.replacen(
            fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim_end(),
            "00000000-0000-4000-8000-000000000000",
            1,
        );
        ensure!(old != record);
        fs::write(Path::new(DEFERRED).join("cluster:old:eth0"), old)?;
        node.start_agent(&[POD_V4, POD_V6])?;
        ensure!(deferred_dels()?.is_empty());
        node.attach("first").map(drop)
    })
    .unwrap();
}

#[test]
fn del_succeeds_during_agent_restarts() {
    with_agent(|node| {
        let runtime = node.runtime()?;
        let empty = node.kernel_state()?;
        let pods =
            (0..40).map(|number| node.attach(&format!("p{number}"))).collect::<anyhow::Result<Vec<_>>>()?;
        let (done, deleted) = (AtomicBool::new(false), AtomicUsize::new(0));
        thread::scope(|scope| -> anyhow::Result<()> {
            let deleting = scope.spawn(|| {
                let outcome = pods.iter().try_for_each(|pod| {
                    thread::sleep(Duration::from_millis(10));
                    runtime.del(pod).with_context(|| format!("DEL of {}", pod.name))?;
                    deleted.fetch_add(1, Ordering::SeqCst);
                    anyhow::Ok(())
                });
                done.store(true, Ordering::SeqCst);
                outcome
            });
            let mut replaced = || -> anyhow::Result<()> {
                for number in 0.. {
                    if done.load(Ordering::SeqCst) {
                        break;
                    }
                    if number % 2 == 0 {
                        node.kill_agent()?
                    } else {
                        node.stop_agent()?
                    }
                    let before = deleted.load(Ordering::SeqCst);
                    sys::wait_until("a DEL succeeds without an agent", Duration::from_secs(30), || {
                        Ok(deleted.load(Ordering::SeqCst) > before || done.load(Ordering::SeqCst))
                    })?;
                    node.start_again()?;
                }
                Ok(())
            };
            let replaced = replaced();
            deleting.join().map_err(|_| anyhow!("panicked"))??;
            replaced
        })?;
        // An agent killed at the end of a DEL may leave a deferred DEL to its successor.
        node.kill_agent()?;
        node.start_again()?;
        ensure!(node.attachments()?.is_empty() && deferred_dels()?.is_empty());
        node.wait_for_kernel_state(&empty)
    })
    .unwrap();
}

#[test]
fn unreadable_deferred_dels_do_not_prevent_agent_start() {
    on_node(|node| {
        fs::create_dir_all(DEFERRED)?;
        for (name, text) in [("garbage", "{"), ("cluster:a:eth0", "{}"), (".half", "")] {
            fs::write(Path::new(DEFERRED).join(name), text)?;
        }
        fs::create_dir(Path::new(DEFERRED).join("directory"))?;
        node.start_agent(&[POD_V4])?;
        ensure!(node.log().contains("ignoring an invalid deferred DEL"), "{}", node.log());
        ensure!(deferred_dels()? == ["directory"]);
        Ok(())
    })
    .unwrap();
}
