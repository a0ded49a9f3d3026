//! `ferrulectl ipam`: which address is whose.

use anyhow::{Context as _, ensure};
use ferrule_tests::node::on_node;
use serde_json::Value;

use super::{ctl, data};

#[test]
fn addresses_are_whose_they_are_until_they_rest() {
    on_node(|node| {
        node.start_agent(&["10.244.0.0/29"])?;
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        node.runtime()?.del(&a)?;
        let listed = data(&["ipam"])?;
        let range = listed.pointer("/ranges/0").context("no range")?;
        ensure!(range["used"] == 1 && range["resting"] == 1 && range["free"] == 3, "{listed:#}");
        let of = |address: &str| {
            let all = listed["addresses"].as_array().into_iter().flatten();
            all.filter(|it| it["address"] == address).cloned().collect::<Vec<Value>>()
        };
        let [resting] = <[Value; 1]>::try_from(of(&a.addresses[0].to_string()))
            .map_err(|it| anyhow::anyhow!("{it:?}"))?;
        let rest = resting["rests_ms"].as_u64().unwrap_or_default();
        ensure!(resting["state"] == "resting" && rest > 20_000 && rest <= 30_000, "{resting}");
        ensure!(resting["container_id"] == a.container_id.as_str(), "{resting}");
        let used = of(&b.addresses[0].to_string());
        ensure!(used[0]["state"] == "used" && used[0]["pod_name"] == "b", "{used:?}");
        let (code, text) = ctl(&["ipam", "--pod", "b"])?;
        ensure!(code == Some(0) && text.contains("default/b") && !text.contains("resting"), "{text}");
        for name in ["c", "d", "e"] {
            node.attach(name)?;
        }
        let (code, text) = ctl(&["ipam"])?;
        ensure!(code == Some(1) && text.contains("10.244.0.0/29  4     1        0"), "{text}");
        Ok(())
    })
    .unwrap();
}
