//! `ferrulectl explain` of healthy pods, and of pods without an attachment.

use anyhow::{Context as _, ensure};
use ferrule_tests::node::{POD_V4, on_node, with_agent};
use serde_json::Value;

use super::{ctl, data, verdict};

fn text<'a>(told: &'a Value, pointer: &str) -> anyhow::Result<&'a str> {
    told.pointer(pointer).and_then(Value::as_str).with_context(|| format!("no {pointer} in {told:#}"))
}

#[test]
fn a_healthy_pod_is_carried_and_has_its_whole_story() {
    with_agent(|node| {
        let (pod, peer) = (node.attach("a")?, node.attach("b")?);
        pod.ping(&peer.addresses[0].to_string())?;
        ensure!(verdict("default/a")? == (Some(0), "default/a: carried".to_owned()));
        // The namespace is needed only for a name in several, and a container's ID names its pod, too.
        ensure!(verdict("a")?.0 == Some(0) && verdict(&pod.container_id)?.1 == "default/a: carried");
        let told = data(&["explain", "a", "-n", "default"])?;
        let it = told.pointer("/interfaces/0").context("no interface")?;
        ensure!(
            text(it, "/source")?.starts_with("the agent's own IPAM, because the pod has no annotation"),
            "{it:#}"
        );
        ensure!(text(it, "/host_end/name")? == node.host_ifname(&pod)?, "{it:#}");
        let address = pod.addresses[0].to_string();
        for (pointer, expected) in [
            ("/attachment/state", "attached"),
            ("/attachment/addresses/0", address.as_str()),
            ("/host_end/routes/0", address.as_str()),
            ("/host_end/filters/0/name", "from_pod"),
            ("/host_end/filters/1/name", "to_pod"),
            ("/pod_end/addresses/0", address.as_str()),
            ("/routes/0", "default via 169.254.1.1"),
            ("/rows/0/map", "VIFS"),
            ("/rows/1/map", "ENDPOINTS"),
        ] {
            ensure!(text(it, pointer)? == expected, "{pointer}: {it:#}");
        }
        ensure!(text(it, "/host_end/filters/0/tag")?.len() == 16, "{it:#}");
        let rows = it.pointer("/rows").and_then(Value::as_array).context("rows")?;
        ensure!(rows.iter().all(|row| row["value"] != "") && rows.len() == 5, "{it:#}");
        let phases = it.pointer("/add/phases").and_then(Value::as_array).context("no times of the ADD")?;
        ensure!(phases.iter().any(|it| it["phase"] == "plug" && it["took_us"].as_u64() > Some(0)), "{it:#}");
        ensure!(
            it.pointer("/attachment/counters/egress_packets").and_then(Value::as_u64) > Some(0),
            "{it:#}"
        );

        // The journal is in memory; all else is the kernel's or the registry's.
        node.stop_agent()?;
        node.start_again()?;
        let (code, story) = ctl(&["explain", "a"])?;
        ensure!(code == Some(0) && story.starts_with("default/a: carried\n"), "{story}");
        for line in
            ["source    unknown since the agent's restart", "ADD       unknown since the agent's restart"]
        {
            ensure!(story.contains(line), "{story}");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_pod_whose_add_fails_is_explained_by_its_error() {
    on_node(|node| {
        node.start_agent(&["10.244.0.0/30"])?;
        node.attach("a")?;
        let (code, text) = ctl(&["explain", "b"])?;
        ensure!(code == Some(2) && text.contains("knows no pod b"), "{text}");
        for _ in 0..2 {
            ensure!(node.attach("b").is_err(), "the range has one address");
        }
        let (code, line) = verdict("default/b")?;
        ensure!(code == Some(1) && line.contains("not carried: the ADD failed"), "{line}");
        ensure!(line.contains("no IPv4 address is free in 10.244.0.0/30"), "{line}");
        let told = data(&["explain", "b"])?;
        ensure!(told["failed_adds"].as_array().map(Vec::len) == Some(1), "{told:#}");
        ensure!(told["failed_adds"][0]["times"] == 2 && told["verdict"]["kind"] == "not carried", "{told:#}");
        let (code, text) = ctl(&["check", "b"])?;
        ensure!(code == Some(1) && text.contains("failed  the ADD failed"), "{text}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn nothing_is_known_of_a_pod_that_is_gone() {
    on_node(|node| {
        node.start_agent_with(&["--standalone", "--pod-cidr", POD_V4])?;
        let pod = node.attach("a")?;
        let (code, text) = ctl(&["explain", "stranger"])?;
        ensure!(code == Some(2) && text.contains("this node knows no pod stranger"), "{text}");
        node.runtime()?.del(&pod)?;
        let (code, _) = ctl(&["explain", "a"])?;
        ensure!(code == Some(2), "its attachment is removed");
        let (code, text) = ctl(&["policy", "explain", "shop/stranger"])?;
        ensure!(code == Some(0) && text.starts_with("open: no policy is known"), "{text}");
        Ok(())
    })
    .unwrap();
}
