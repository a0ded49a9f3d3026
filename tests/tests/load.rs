//! Many concurrent ADDs, and an ADD that waits for the pod's kernel.

use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    node::{NODE_V6, Node, POD_V6, on_node, with_agent},
    pod::Pod,
    sys,
};
use serde_json::Value;

#[test]
fn concurrent_adds_get_unique_addresses() {
    with_agent(|node| {
        let runtime = node.runtime()?;
        let pods =
            (0..24).map(|number| node.pod(&format!("p{number}"))).collect::<anyhow::Result<Vec<_>>>()?;
        let results: Vec<anyhow::Result<Value>> = thread::scope(|scope| {
            let calls: Vec<_> = pods.iter().map(|pod| scope.spawn(|| runtime.add(pod))).collect();
            calls.into_iter().map(|call| call.join().unwrap()).collect()
        });
        let mut addresses = std::collections::HashSet::new();
        for result in results {
            for ip in result?["ips"].as_array().context("no ips")? {
                ensure!(addresses.insert(ip["address"].to_string()), "{ip} was given out twice");
            }
        }
        ensure!(addresses.len() == 48);
        Ok(())
    })
    .unwrap();
}

#[test]
fn five_hundred_concurrent_adds_all_succeed() {
    on_node(|node| {
        node.start_agent(&["10.244.0.0/16", POD_V6])?;
        let runtime = node.runtime()?;
        let pods =
            (0..500).map(|number| node.pod(&format!("p{number}"))).collect::<anyhow::Result<Vec<_>>>()?;
        let all = |call: &(dyn Fn(&Pod) -> anyhow::Result<()> + Sync)| -> anyhow::Result<()> {
            thread::scope(|scope| {
                let calls: Vec<_> = pods.iter().map(|pod| scope.spawn(move || call(pod))).collect();
                calls.into_iter().try_for_each(|call| call.join().unwrap())
            })
        };
        all(&|pod| runtime.add(pod).map(drop))?;
        ensure!(node.attachments()?.len() == 500);
        all(&|pod| runtime.del(pod))?;
        ensure!(node.attachments()?.is_empty());
        Ok(())
    })
    .unwrap();
}

/// `RTNLGRP_IPV6_ROUTE` in `linux/rtnetlink.h`, as a bit of the groups that `/proc/net/netlink` shows.
const IPV6_ROUTES: u32 = 1 << (11 - 1);

/// Whether a socket in the calling thread's namespace waits for changes of IPv6 routes.
fn has_waiting_socket() -> anyhow::Result<bool> {
    let sockets = fs::read_to_string("/proc/thread-self/net/netlink")?;
    let groups = sockets.lines().skip(1).filter_map(|line| line.split_whitespace().nth(3));
    Ok(groups.filter_map(|it| u32::from_str_radix(it, 16).ok()).any(|it| it & IPV6_ROUTES != 0))
}

/// A pod whose kernel finds no local IPv6 route: as between a request for an address and its local route,
/// which the kernel inserts from a workqueue.
fn pod_without_local_routes(node: &Node, name: &str) -> anyhow::Result<Pod> {
    let pod = node.pod(name)?;
    pod.run("ip -6 rule add pref 1 prohibit")?;
    pod.run("ip -6 rule del pref 0")?;
    Ok(pod)
}

#[test]
fn add_returns_only_when_the_pods_kernel_delivers_to_its_ipv6_address() {
    with_agent(|node| {
        let runtime = node.runtime()?;
        let pod = pod_without_local_routes(node, "late")?;
        ensure!(!sys::in_netns(pod.path(), has_waiting_socket)?);
        let is_local = AtomicBool::new(false);
        thread::scope(|scope| {
            let adding = scope.spawn(|| {
                let answer = runtime.add(&pod);
                // Before the answer is inspected: whether the route was there when ADD returned.
                (answer, is_local.load(Ordering::SeqCst))
            });
            sys::wait_until("ADD waits for the local route", Duration::from_secs(20), || {
                Ok(adding.is_finished() || sys::in_netns(pod.path(), has_waiting_socket)?)
            })?;
            is_local.store(true, Ordering::SeqCst);
            pod.run("ip -6 rule add pref 0 lookup local")?;
            pod.run("ip -6 rule del pref 1")?;
            // A change of any route wakes ADD.
            pod.run("ip -6 route add 2001:db8:ffff::/64 dev eth0")?;
            let (answer, was_local) = adding.join().map_err(|_| anyhow::anyhow!("panicked"))?;
            answer?;
            ensure!(was_local, "ADD returned before the local route was there");
            anyhow::Ok(())
        })?;
        pod.ping(NODE_V6)?;
        ensure!(!sys::in_netns(pod.path(), has_waiting_socket)?, "the agent left a socket in the pod");
        runtime.del(&pod)
    })
    .unwrap();
}

#[test]
fn add_to_a_pod_that_never_delivers_to_its_ipv6_address_fails_and_is_rolled_back() {
    with_agent(|node| {
        let before = node.kernel_state()?;
        let pod = pod_without_local_routes(node, "never")?;
        let error = node.runtime()?.call("ADD", &pod)?.into_error()?;
        ensure!(error.code == 11 && error.to_string().contains("fd00:10:244::2"), "{error}");
        ensure!(node.attachments()?.is_empty());
        node.wait_for_kernel_state(&before)
    })
    .unwrap();
}
