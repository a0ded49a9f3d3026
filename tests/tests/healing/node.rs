//! What is the whole node's: forwarding, and the pins of the maps.

use std::{fs, thread, time::Duration};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    node::{Node, PINS, with_agent, with_agent_that_leaves_damage},
    sys,
};

use super::{SOON, kinds, verify, wait_until_healed, with_short_period};

/// Sooner than the period: the kernel tells of it.
const AT_ONCE: Duration = Duration::from_secs(8);
const V4: &str = "net/ipv4/ip_forward";
const V6: &str = "net/ipv6/conf/all/forwarding";

fn get(name: &str) -> anyhow::Result<String> {
    Ok(fs::read_to_string(format!("/proc/sys/{name}"))?.trim_end().to_owned())
}

fn set(name: &str, value: &str) -> anyhow::Result<()> {
    sys::run(&format!("sysctl -qw {name}={value}")).map(drop)
}

fn told(node: &Node, kind: &str) -> anyhow::Result<f64> {
    node.metric(&format!("ferrule_deviations_total{{kind=\"{kind}\"}}"))
}

#[test]
fn forwarding_that_somebody_switches_off_is_switched_on_again_at_once() {
    with_agent(|node| {
        let (pod, peer) = (node.attach("a")?, node.attach("b")?);
        let host = node.host_ifname(&pod)?;
        for (number, name) in [(1.0, V4), (2.0, V6)] {
            wait_until_healed(node, &pod, &peer)?;
            set(name, "0")?;
            sys::wait_until("it is on again", AT_ONCE, || Ok(get(name)? == "1"))?;
            wait_until_healed(node, &pod, &peer)?;
            ensure!(told(node, "node-forwarding")? == number, "{name}");
            let repaired =
                node.metric("ferrule_repairs_total{kind=\"node-forwarding\",outcome=\"repaired\"}")?;
            ensure!(repaired == number, "{repaired} repairs after {name}");
        }
        ensure!(get(&format!("net/ipv4/conf/{host}/forwarding"))? == "1");
        ensure!(told(node, "link-forwarding")? == 0.0, "the node's is told once, and not by each interface");
        ensure!(node.log().contains("net.ipv4.ip_forward"), "it is said");
        Ok(())
    })
    .unwrap();
}

#[test]
fn forwarding_that_is_off_is_told_where_nothing_is_put_right() {
    with_agent_that_leaves_damage(|node| {
        let pod = node.attach("a")?;
        let host = node.host_ifname(&pod)?;
        set(V4, "0")?;
        sys::wait_until("it is told", SOON, || Ok(told(node, "node-forwarding")? == 1.0))?;
        let (code, found) = verify()?;
        ensure!(code == Some(1) && kinds(&found) == ["node-forwarding"], "{found:#}");
        ensure!(get(V4)? == "0", "it was touched");
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
fn a_fight_about_forwarding_is_bounded_and_told_once() {
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
        ensure!(log.matches("not as it should be").count() <= 7, "{log}");
        ensure!(log.matches("is there another program").count() <= 1, "{log}");
        sys::wait_until("the agent has the last word", Duration::from_secs(60), || Ok(get(V4)? == "1"))
    })
    .unwrap();
}

/// The kernel's IDs of the maps that are pinned, by name.
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
fn pins_that_somebody_removes_or_hides_are_there_again_with_the_same_maps() {
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
            sys::wait_until("it is told", SOON, || Ok(told(node, "pin")? == number))
                .context(damage.clone())?;
            wait_until_healed(node, &pod, &peer).context(damage.clone())?;
            ensure!(pinned()? == before, "after {damage}: {:?}", pinned()?);
        }
        // The next agent goes on with them.
        node.kill_agent()?;
        node.start_again()?;
        wait_until_healed(node, &pod, &peer)?;
        ensure!(pinned()? == before);
        Ok(())
    })
    .unwrap();
}

#[test]
fn pins_that_are_gone_are_told_where_nothing_is_put_right() {
    with_agent_that_leaves_damage(|node| {
        node.attach("a")?;
        sys::run(&format!("rm -r {PINS}"))?;
        let (code, found) = verify()?;
        ensure!(code == Some(1) && kinds(&found) == ["pin"], "{found:#}");
        ensure!(!fs::exists(PINS)?, "it only looks");
        Ok(())
    })
    .unwrap();
}
