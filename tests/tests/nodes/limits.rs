//! A limit of what a pod receives also holds for what other nodes' pods send: by the tunnel, and directly.

use anyhow::ensure;
use ferrule_tests::{chain::Chain, traffic};
use serde_json::json;

use crate::fixture::{captured, wait_until_connected, with_pods};

/// Bits per second.
const RATE: u64 = 20_000_000;
/// Two and a half seconds at the limit, so that the burst does not matter.
const BYTES: u64 = RATE / 8 * 5 / 2;

#[test]
fn what_a_pod_receives_from_other_nodes_is_limited() {
    with_pods(&[], |fabric, [near, _, far]| {
        let [one, two, three] = &fabric.nodes;
        let plugin = json!({ "type": "ferrule", "capabilities": { "bandwidth": true } });
        let limits = json!({ "ingressRate": RATE });
        let mut limited = two.pod("limited", &[])?;
        let result = two.on(|_| Chain::new("1.0.0", [plugin]).with("bandwidth", limits).add(&limited))?;
        limited.attached(&result)?;
        wait_until_connected(&[near.clone(), far.clone(), limited.clone()])?;
        for (from, node, is_tunnelled) in [(far, three, true), (near, one, false)] {
            for (source, to) in from.addresses.iter().zip(&limited.addresses) {
                let mut rate = 0.0;
                let frames = captured(node, || {
                    let streamed = traffic::stream(from.path(), limited.path(), *to, BYTES)?;
                    rate = streamed.bytes as f64 * 8.0 / streamed.took.as_secs_f64() / RATE as f64;
                    Ok(())
                })?;
                let frames = frames.between(*source, *to);
                if is_tunnelled {
                    frames.expect_tunnelled(&node.addresses, &two.addresses)?
                } else {
                    frames.expect_bare()?
                }
                ensure!((0.3..1.2).contains(&rate), "{source} to {to}: {rate:.2} of the limit");
                // What the pod sends, on the same way.
                let streamed = traffic::stream(limited.path(), from.path(), *source, BYTES)?;
                let rate = streamed.bytes as f64 * 8.0 / streamed.took.as_secs_f64() / RATE as f64;
                ensure!(rate > 1.5, "{to} to {source}: {rate:.2} of the limit");
            }
        }
        Ok(())
    })
    .unwrap();
}
