//! Many concurrent ADDs.

use std::{
    fs,
    net::{IpAddr, Ipv6Addr},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    node::{POD_V6, on_node, with_agent},
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

/// `RTF_LOCAL` in `linux/ipv6_route.h`.
const LOCAL: u32 = 0x8000_0000;

/// Whether the calling thread's namespace delivers to an address: it has a local route.
fn has_local_route(address: Ipv6Addr) -> anyhow::Result<bool> {
    let address: String = address.octets().iter().map(|byte| format!("{byte:02x}")).collect();
    let routes = fs::read_to_string("/proc/thread-self/net/ipv6_route")?;
    Ok(routes.lines().any(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let flags = fields.get(8).and_then(|flags| u32::from_str_radix(flags, 16).ok()).unwrap_or_default();
        fields.first() == Some(&address.as_str()) && flags & LOCAL != 0
    }))
}

#[test]
fn add_on_a_busy_node_returns_only_when_the_pod_accepts_ipv6() {
    on_node(|node| {
        node.start_agent(&["10.244.0.0/16", POD_V6])?;
        let (node, runtime) = (&*node, node.runtime()?);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            // Links and namespaces that come and go keep RTNL busy, for which the kernel's IPv6 workqueue
            // waits.
            for churn in 0..4 {
                let is_over = &is_over;
                scope.spawn(move || -> anyhow::Result<()> {
                    for number in 0.. {
                        if is_over.load(Ordering::Relaxed) {
                            break;
                        }
                        let pod = node.attach(&format!("c{churn}-{number}"))?;
                        node.runtime()?.del(&pod)?;
                        pod.remove()?;
                    }
                    Ok(())
                });
            }
            let outcome = (0..150).try_for_each(|number| {
                let pod = node.attach(&format!("p{number}"))?;
                let v6 = pod.addresses.iter().find_map(|it| match it {
                    IpAddr::V6(v6) => Some(*v6),
                    IpAddr::V4(_) => None,
                });
                let v6 = v6.context("no IPv6 address")?;
                ensure!(sys::in_netns(pod.path(), || has_local_route(v6))?, "no local route to {v6}");
                runtime.del(&pod)
            });
            is_over.store(true, Ordering::Relaxed);
            outcome
        })
    })
    .unwrap();
}
