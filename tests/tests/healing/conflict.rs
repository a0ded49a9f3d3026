//! Repairs that another program keeps undoing.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::ensure;
use ferrule_tests::{
    node::{Node, with_agent},
    sys,
};

use super::{TIMEOUT, log_lines, node::MAPS, verify, wait_until_healed, with_short_period};

const CONFLICT: &str = "is there another program";
/// Covers repairs at 0, 0.5, 1.5, 3.5 and 7.5 s, on a slow machine.
const FIVE_REPAIRS: Duration = Duration::from_secs(60);
/// Between attempts of the other program.
const PAUSE: Duration = Duration::from_millis(20);

/// Runs `run` while another program repeats `damage`.
fn while_damaging<T>(damage: impl Fn() + Send, run: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let stop = &AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                damage();
                thread::sleep(PAUSE);
            }
        });
        let result = run();
        stop.store(true, Ordering::Relaxed);
        result
    })
}

fn wait_for_conflict(node: &Node) -> anyhow::Result<()> {
    sys::wait_until("the conflict is logged", FIVE_REPAIRS, || Ok(node.log().contains(CONFLICT)))
}

fn attempts(node: &Node, kind: &str) -> anyhow::Result<f64> {
    let count =
        |outcome| node.count(&format!("ferrule_repairs_total{{kind=\"{kind}\",outcome=\"{outcome}\"}}"));
    Ok(count("repaired")? + count("failed")?)
}

#[test]
fn repairs_of_a_contested_kind_back_off_and_other_kinds_are_repaired_at_once() {
    with_agent(|node| {
        let (pod, peer) = (node.attach("a")?, node.attach("b")?);
        let host = node.host_ifname(&pod)?;
        let delete = || {
            // The qdisc may be missing already.
            let _ = sys::run(&format!("tc qdisc del dev {host} clsact"));
        };
        while_damaging(delete, || {
            wait_for_conflict(node)?;
            // Two filters per repair.
            let repairs = attempts(node, "filter")?;
            ensure!(repairs == 10.0, "{repairs} repairs until the conflict is logged");
            // The next attempt is due after 8 s, and a kind that is new is repaired and logged before.
            sys::run(&format!("ip link set {host} mtu 1300"))?;
            sys::wait_until("the MTU is repaired", Duration::from_secs(10), || {
                Ok(attempts(node, "link-mtu")? >= 1.0)
            })?;
            ensure!(attempts(node, "filter")? == 10.0, "filters were repaired before their time");
            ensure!(log_lines(node, "deviation found", "link-mtu") == 1, "link-mtu is not logged once");
            ensure!(log_lines(node, "repaired", "link-mtu") == 1, "the repair is not logged once");
            sys::wait_until("a sixth attempt", Duration::from_secs(60), || {
                Ok(attempts(node, "filter")? > 10.0)
            })
        })?;
        let log = node.log();
        ensure!(log.matches(CONFLICT).count() == 1, "{log}");
        ensure!(log_lines(node, CONFLICT, "filter") == 1, "{log}");
        // Each of the first five repairs was preceded by at most one line for each filter.
        let found = log_lines(node, "deviation found", "filter");
        ensure!((2..=10).contains(&found), "{found} lines: {log}");
        sys::wait_until("the pod is repaired in the end", Duration::from_secs(90), || {
            Ok(node.runtime()?.check(&pod).is_ok())
        })?;
        wait_until_healed(node, &pod, &peer)
    })
    .unwrap();
}

#[test]
fn repairs_of_contested_forwarding_back_off_and_are_reported_once() {
    const SETTING: &str = "/proc/sys/net/ipv4/ip_forward";
    with_agent(|node| {
        node.attach("a")?;
        // Opened here: `/proc/sys/net` belongs to the opening thread's namespace.
        let setting = std::fs::File::options().write(true).open(SETTING)?;
        let disable = || {
            let _ = std::os::unix::fs::FileExt::write_at(&setting, b"0", 0);
        };
        while_damaging(disable, || {
            wait_for_conflict(node)?;
            let repairs = attempts(node, "node-forwarding")?;
            ensure!(repairs == 5.0, "{repairs} repairs until the conflict is logged");
            sys::wait_until("a sixth attempt", Duration::from_secs(60), || {
                Ok(attempts(node, "node-forwarding")? > 5.0)
            })
        })?;
        let log = node.log();
        ensure!(log.matches(CONFLICT).count() == 1, "{log}");
        let found = log_lines(node, "deviation found", "node-forwarding");
        ensure!((1..=5).contains(&found), "{found} lines: {log}");
        sys::wait_until("forwarding is enabled in the end", Duration::from_secs(90), || {
            Ok(std::fs::read_to_string(SETTING)?.trim_end() == "1")
        })
    })
    .unwrap();
}

#[test]
fn repairs_that_keep_failing_are_logged_four_times_and_then_reported_once() {
    with_short_period(|node| {
        // No map can be pinned there.
        sys::run("mount -t tmpfs tmpfs /sys/fs/bpf")?;
        sys::wait_until("a sixth attempt for each of the maps", FIVE_REPAIRS, || {
            Ok(attempts(node, "pin")? >= 6.0 * MAPS as f64)
        })?;
        let (failures, conflicts) =
            (log_lines(node, "repair failed; retrying", "pin"), log_lines(node, CONFLICT, "pin"));
        ensure!((failures, conflicts) == (4 * MAPS, MAPS), "{failures} failures and {conflicts} conflicts");
        sys::run("umount /sys/fs/bpf")?;
        sys::wait_until("the pins are back", TIMEOUT, || Ok(verify()?.0 == Some(0)))
    })
    .unwrap();
}
