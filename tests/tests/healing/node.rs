//! Node-wide settings: forwarding and map pins.

use std::{fs, thread, time::Duration};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    node::{Node, PINS, with_agent, with_agent_without_healing},
    sys,
};

use super::{TIMEOUT, kinds, verify, wait_until_healed, with_short_period};

/// Shorter than the period: the kernel notifies the agent.
const AT_ONCE: Duration = Duration::from_secs(8);
const V4: &str = "net/ipv4/ip_forward";
const V6: &str = "net/ipv6/conf/all/forwarding";

fn get(name: &str) -> anyhow::Result<String> {
    Ok(fs::read_to_string(format!("/proc/sys/{name}"))?.trim_end().to_owned())
}

fn set(name: &str, value: &str) -> anyhow::Result<()> {
    sys::run(&format!("sysctl -qw {name}={value}")).map(drop)
}

fn deviations(node: &Node, kind: &str) -> anyhow::Result<f64> {
    node.metric(&format!("ferrule_deviations_total{{kind=\"{kind}\"}}"))
}

#[test]
fn disabled_forwarding_is_repaired_on_notification() {
    with_agent(|node| {
        let (pod, peer) = (node.attach("a")?, node.attach("b")?);
        let host = node.host_ifname(&pod)?;
        for (number, name) in [(1.0, V4), (2.0, V6)] {
            wait_until_healed(node, &pod, &peer)?;
            set(name, "0")?;
            sys::wait_until("forwarding is enabled again", AT_ONCE, || Ok(get(name)? == "1"))?;
            wait_until_healed(node, &pod, &peer)?;
            ensure!(deviations(node, "node-forwarding")? == number, "{name}");
            let repaired =
                node.metric("ferrule_repairs_total{kind=\"node-forwarding\",outcome=\"repaired\"}")?;
            ensure!(repaired == number, "{repaired} repairs after {name}");
        }
        ensure!(get(&format!("net/ipv4/conf/{host}/forwarding"))? == "1");
        ensure!(deviations(node, "link-forwarding")? == 0.0, "an interface reports the node's deviation");
        ensure!(node.log().contains("net.ipv4.ip_forward"), "the repair is not logged");
        Ok(())
    })
    .unwrap();
}

#[test]
fn disabled_forwarding_is_only_reported_with_healing_off() {
    with_agent_without_healing(|node| {
        let pod = node.attach("a")?;
        let host = node.host_ifname(&pod)?;
        set(V4, "0")?;
        sys::wait_until("the deviation is reported", TIMEOUT, || {
            Ok(deviations(node, "node-forwarding")? == 1.0)
        })?;
        let (code, found) = verify()?;
        ensure!(code == Some(1) && kinds(&found) == ["node-forwarding"], "{found:#}");
        ensure!(get(V4)? == "0", "forwarding was repaired");
        set(V4, "1")?;
        let (code, found) = verify()?;
        ensure!(code == Some(0), "{found:#}");
        set(&format!("net/ipv4/conf/{host}/forwarding"), "0")?;
        let (code, found) = verify()?;
        ensure!(code == Some(1) && kinds(&found) == ["link-forwarding"], "{found:#}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn repairs_of_contested_forwarding_are_rate_limited_and_reported_once() {
    with_agent(|node| {
        node.attach("a")?;
        let start = std::time::Instant::now();
        while start.elapsed() < Duration::from_secs(20) {
            set(V4, "0")?;
            thread::sleep(Duration::from_millis(50));
        }
        let repairs = node.metric("ferrule_repairs_total{kind=\"node-forwarding\",outcome=\"repaired\"}")?
            + node.metric("ferrule_repairs_total{kind=\"node-forwarding\",outcome=\"failed\"}")?;
        ensure!((2.0..=7.0).contains(&repairs), "{repairs} repairs in 20 s");
        let log = node.log();
        ensure!(log.matches("deviation found").count() <= 7, "{log}");
        ensure!(log.matches("is there another program").count() <= 1, "{log}");
        sys::wait_until("forwarding is enabled in the end", Duration::from_secs(60), || Ok(get(V4)? == "1"))
    })
    .unwrap();
}

/// Kernel IDs of the pinned maps, by name.
fn pinned() -> anyhow::Result<Vec<(String, u64)>> {
    let mut all = Vec::new();
    for pin in fs::read_dir(PINS)? {
        let pin = pin?.path();
        let shown = sys::run(&format!("bpftool -j map show pinned {}", pin.display()))?;
        let map: serde_json::Value = serde_json::from_str(&shown)?;
        let id = map.get("id").and_then(serde_json::Value::as_u64);
        let name = pin.file_name().unwrap_or_default().to_string_lossy().into_owned();
        all.push((name, id.with_context(|| shown)?));
    }
    all.sort();
    Ok(all)
}

#[test]
fn removed_or_hidden_pins_are_restored_with_the_same_maps() {
    with_short_period(|node| {
        let (pod, peer) = (node.attach("a")?, node.attach("b")?);
        let before = pinned()?;
        ensure!(before.len() == 4, "{before:?}");
        for (number, damage) in [
            (4.0, format!("rm -r {PINS}")),
            (5.0, format!("rm {PINS}/STACK_FLOWS")),
            (9.0, "mount -t bpf bpf /sys/fs/bpf".to_owned()),
        ] {
            sys::run(&damage)?;
            sys::wait_until("the deviation is reported", TIMEOUT, || Ok(deviations(node, "pin")? == number))
                .context(damage.clone())?;
            wait_until_healed(node, &pod, &peer).context(damage.clone())?;
            ensure!(pinned()? == before, "after {damage}: {:?}", pinned()?);
        }
        // The next agent adopts the pins.
        node.kill_agent()?;
        node.start_again()?;
        wait_until_healed(node, &pod, &peer)?;
        ensure!(pinned()? == before);
        Ok(())
    })
    .unwrap();
}

#[test]
fn missing_pins_are_only_reported_with_healing_off() {
    with_agent_without_healing(|node| {
        node.attach("a")?;
        sys::run(&format!("rm -r {PINS}"))?;
        let (code, found) = verify()?;
        ensure!(code == Some(1) && kinds(&found) == ["pin"], "{found:#}");
        ensure!(!fs::exists(PINS)?, "the pins were restored");
        Ok(())
    })
    .unwrap();
}
