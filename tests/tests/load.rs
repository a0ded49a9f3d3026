//! Many concurrent ADDs.

use std::thread;

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    node::{POD_V6, on_node, with_agent},
    pod::Pod,
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
