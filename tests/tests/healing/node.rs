//! Node-wide settings: forwarding and map pins.

use std::{
    fs::{self, File, TryLockError},
    time::Duration,
};

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
    node.count(&format!("ferrule_deviations_total{{kind=\"{kind}\"}}"))
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
                node.count("ferrule_repairs_total{kind=\"node-forwarding\",outcome=\"repaired\"}")?;
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
fn pods_interfaces_send_no_redirects_whatever_others_set() {
    with_short_period(|node| {
        let (pod, peer) = (node.attach("a")?, node.attach("b")?);
        let own = format!("net/ipv4/conf/{}/send_redirects", node.host_ifname(&pod)?);
        let all = "net/ipv4/conf/all/send_redirects";
        ensure!(get(all)? == "0" && get(&own)? == "0", "after ADD");
        ensure!(get("net/ipv4/conf/uplink/send_redirects")? == "1", "another interface's setting changed");
        for (kind, name) in [("node-redirects", all), ("link-redirects", own.as_str())] {
            set(name, "1")?;
            sys::wait_until("redirects are off again", TIMEOUT, || Ok(get(name)? == "0"))?;
            wait_until_healed(node, &pod, &peer)?;
            ensure!(deviations(node, kind)? == 1.0, "{kind}");
        }
        Ok(())
    })
    .unwrap();
}

/// The pinned maps.
pub const MAPS: usize = 23;

/// Maps have capitals.
fn is_of_a_program(pin: &str) -> bool {
    pin.starts_with(|it: char| it.is_ascii_lowercase())
}

/// Kernel IDs of the pinned maps, by name.
fn pinned() -> anyhow::Result<Vec<(String, u64)>> {
    let mut all = Vec::new();
    for pin in fs::read_dir(PINS)? {
        let pin = pin?.path();
        let name = pin.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if is_of_a_program(&name) {
            continue;
        }
        let shown = sys::run(&format!("bpftool -j map show pinned {}", pin.display()))?;
        let map: serde_json::Value = serde_json::from_str(&shown)?;
        let id = map.get("id").and_then(serde_json::Value::as_u64);
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
        let all = before.len() as f64;
        ensure!(before.len() == MAPS, "{before:?}");
        for (number, damage) in [
            (all, format!("rm -r {PINS}")),
            (all + 1.0, format!("rm {PINS}/STACK_FLOWS")),
            (2.0 * all + 1.0, "mount -t bpf bpf /sys/fs/bpf".to_owned()),
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

/// Whether the component is healthy, and why.
fn component(node: &Node, name: &str) -> anyhow::Result<(bool, String)> {
    let status: serde_json::Value = serde_json::from_str(&node.ctl(&["status", "-o", "json"])?)?;
    ensure!(status.get("ready") == Some(&true.into()), "{status:#}");
    let all = status.get("components").and_then(|it| it.as_array()).context("no components")?;
    let text = |it: &serde_json::Value, key: &str| it.get(key)?.as_str().map(str::to_owned);
    let found = all.iter().find(|it| text(it, "name").as_deref() == Some(name));
    let found = found.with_context(|| format!("{status:#}"))?;
    Ok((text(found, "state").as_deref() == Some("healthy"), text(found, "reason").unwrap_or_default()))
}

#[test]
fn status_shows_lost_pins_at_once() {
    with_agent_without_healing(|node| {
        let pod = node.attach("a")?;
        let healthy = (true, format!("the maps are pinned in {PINS}"));
        ensure!(component(node, "pins")? == healthy, "{:?}", component(node, "pins")?);
        sys::run("mount -t tmpfs tmpfs /sys/fs/bpf")?;
        let (is_healthy, why) = component(node, "pins")?;
        ensure!(!is_healthy && why.contains("is not on a BPF file system; mount one"), "{why}");
        sys::run("umount /sys/fs/bpf")?;
        ensure!(component(node, "pins")? == healthy);
        sys::run(&format!("rm {PINS}/ENDPOINTS"))?;
        let (is_healthy, why) = component(node, "pins")?;
        ensure!(!is_healthy && why.contains("would not find the maps ENDPOINTS, and start"), "{why}");
        // The agent holds the locked directory.
        sys::run("umount -l /sys/fs/bpf")?;
        let (is_healthy, why) = component(node, "pins")?;
        ensure!(
            !is_healthy
                && why.contains(
                    "VIFS, ENDPOINTS, VIF_TRAFFIC, VIF_COUNTERS, STACK_FLOWS, FLOW_RINGS, NODES, NODE_PREFIXES, \
                     NODE_LENGTHS, UNDERLAY, LINK_COUNTERS"
                ),
            "{why}"
        );
        // Neither running nor new pods depend on the pins.
        node.attach("b")?.ping(&pod.addresses[0].to_string())
    })
    .unwrap();
}

#[test]
fn a_new_directory_of_pins_is_locked_and_marked() {
    with_short_period(|node| {
        let directory = "/sys/fs/bpf/ferrule";
        let is_locked =
            || anyhow::Ok(matches!(File::open(directory)?.try_lock(), Err(TryLockError::WouldBlock)));
        ensure!(is_locked()?);
        let owner = fs::read_link(format!("{directory}/netns"))?;
        for damage in [format!("rm -r {directory}"), "mount -t bpf bpf /sys/fs/bpf".to_owned()] {
            sys::run(&damage)?;
            sys::wait_until("the pins are restored", TIMEOUT, || Ok(component(node, "pins")?.0))?;
            ensure!(pinned()?.len() == MAPS, "{:?}", pinned()?);
            ensure!(is_locked()?, "the lock is on another directory after {damage}");
            ensure!(fs::read_link(format!("{directory}/netns"))? == owner);
        }
        // The first directory is visible again.
        sys::run("umount -l /sys/fs/bpf")?;
        sys::wait_until("the directory is locked", TIMEOUT, is_locked)?;
        // Another agent has taken a new directory first.
        sys::run(&format!("rm -r {directory}"))?;
        fs::create_dir(directory)?;
        let other = File::open(directory)?;
        other.lock()?;
        sys::wait_until("the refused repair is logged", TIMEOUT, || {
            Ok(node.log().contains("another agent uses the maps"))
        })?;
        ensure!(fs::read_dir(directory)?.next().is_none(), "pins in another agent's directory");
        drop(other);
        sys::wait_until("the pins are restored", TIMEOUT, || Ok(component(node, "pins")?.0 && is_locked()?))
    })
    .unwrap();
}
