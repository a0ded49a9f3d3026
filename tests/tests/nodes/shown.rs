//! `ferrulectl nodes` and the links of `ferrulectl status` say what is on the wire.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    process::{Command, Output},
};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    apiserver::{Resource, objects},
    dist,
    fabric::Member,
    node::UPLINK_MTU,
    sys,
};
use nix::libc::O_NONBLOCK;
use serde_json::{Value, json};

use crate::fixture::{TIMEOUT, captured, of, with_pods};

const OFF: &str = "--node-fast-path is off";

fn ferrulectl(node: &Member, line: &str) -> anyhow::Result<Output> {
    node.on(|_| Ok(Command::new(dist::binary("ferrulectl")?).args(line.split(' ')).output()?))
}

fn shown(node: &Member, line: &str) -> anyhow::Result<Value> {
    let output = ferrulectl(node, line)?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ferrulectl {line}: {complaint}");
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// The ranges of a node, IPv4 first, as another node's agent shows them.
fn ranges(by: &Member, of: &Member) -> anyhow::Result<[Value; 2]> {
    let shown = shown(by, &format!("nodes {} -o json", of.name))?;
    let nodes = shown.get("nodes").and_then(Value::as_array).context("no nodes")?;
    let [node] = &**nodes else { anyhow::bail!("not one node: {shown}") };
    let (name, addresses) = (json!(of.name), json!(of.addresses.map(|it| it.to_string())));
    let found = (node.get("name"), node.get("internal_ips"));
    ensure!(found == (Some(&name), Some(&addresses)), "{node}");
    let ranges = node.get("ranges").and_then(Value::as_array).cloned().unwrap_or_default();
    ranges.try_into().ok().with_context(|| format!("not two ranges: {node}"))
}

/// The line of `ferrulectl status` about a link.
fn link(node: &Member, name: &str) -> anyhow::Result<String> {
    let status = node.status()?;
    // A component of the agent is called `uplink`, too.
    let mut links = status.lines().skip_while(|it| !it.starts_with("LINK "));
    let line = links.find(|it| it.split_whitespace().next() == Some(name));
    line.map(str::to_owned).with_context(|| format!("no link {name}: {status}"))
}

#[test]
fn ferrulectl_names_the_ways_that_packets_take() {
    with_pods(&[], |fabric, [a, b, c]| {
        let [one, two, three] = &fabric.nodes;
        for (node, pod, is_near) in [(two, b, true), (three, c, false)] {
            for (family, range) in ranges(one, node)?.into_iter().enumerate() {
                let (own, to) = (of(&a.addresses, family)?, of(&pod.addresses, family)?);
                let (way, by, mtu) = if is_near {
                    ("direct", of(&node.addresses, family)?, UPLINK_MTU)
                } else {
                    ("vxlan", of(&node.addresses, 0)?, UPLINK_MTU - 50)
                };
                let expected = json!({
                    "range": node.ranges[family], "way": way, "to": by.to_string(), "interface": "uplink",
                    "mtu": mtu, "fast_path": true, "slow_because": "", "no_way_because": "",
                    "answered_us": null, "no_answer_because": "",
                });
                ensure!(range == expected, "{range}, expected {expected}");
                let frames = captured(one, || a.ping(&to.to_string()).map(drop))?;
                let frames = frames.between(own, to);
                if is_near {
                    frames.expect_bare()?
                } else {
                    frames.expect_tunnelled(&one.addresses, &node.addresses)?
                }
            }
        }
        ensure!(ranges(one, one)?.iter().all(|it| it["way"] == "own"), "{:?}", ranges(one, one)?);
        for name in ["uplink", "ferrule-vxlan"] {
            ensure!(link(one, name)?.ends_with("  on"), "{}", link(one, name)?);
        }
        let table = String::from_utf8(ferrulectl(one, "nodes")?.stdout)?;
        let [near, far] = [format!("direct via {} dev uplink", two.addresses[0]), "vxlan to ".to_owned()];
        ensure!(table.lines().count() == 7 && table.contains(&near) && table.contains(&far), "{table}");
        let unknown = ferrulectl(one, "nodes node-9")?;
        ensure!(unknown.status.code() == Some(1), "{unknown:?}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn ferrulectl_says_that_the_fast_path_is_off() {
    with_pods(&["--node-fast-path", "off"], |fabric, _| {
        let [one, two, three] = &fabric.nodes;
        for (node, way) in [(two, "direct"), (three, "vxlan")] {
            for range in ranges(one, node)? {
                let (is_fast, why) = (&range["fast_path"], &range["slow_because"]);
                ensure!(range["way"] == way && *is_fast == json!(false) && why == OFF, "{range}");
            }
        }
        for name in ["uplink", "ferrule-vxlan"] {
            ensure!(link(one, name)?.ends_with(&format!("  off: {OFF}")), "{}", link(one, name)?);
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn ferrulectl_names_what_is_refused_and_why() {
    with_pods(&[], |fabric, _| {
        let [one, two, _] = &fabric.nodes;
        // The first one contains the nodes' own addresses.
        let object = objects::node("node-4", &["192.0.2.0/24", "10.244.4.0/24"]);
        let object = objects::with_addresses(object, &["192.0.2.4".parse()?]);
        fabric.api.create(Resource::Nodes, object)?;
        sys::wait_until("the range of node 4 is refused", TIMEOUT, || {
            let shown = shown(one, "nodes node-4 -o json")?;
            let refused = &shown["refused"][0];
            let (node, what) = (&refused["node"], &refused["what"]);
            ensure!(node == "node-4" && what == "the range 192.0.2.0/24", "{shown}");
            ensure!(refused["why"].as_str().is_some_and(|it| it.contains("it contains 192.0.2.")), "{shown}");
            let accepted = &shown["nodes"][0]["ranges"];
            ensure!(accepted.as_array().is_some_and(|it| it.len() == 1), "{shown}");
            ensure!(accepted[0]["range"] == "10.244.4.0/24" && accepted[0]["way"] == "direct", "{shown}");
            Ok(true)
        })?;
        let table = String::from_utf8(ferrulectl(one, "nodes")?.stdout)?;
        ensure!(table.contains("the range 192.0.2.0/24  it contains"), "{table}");
        ensure!(shown(one, &format!("nodes {} -o json", two.name))?["nodes"][0]["name"] == two.name);
        let (_, metrics) = one.on(|node| node.http("/metrics"))?;
        for series in
            ["ranges{way=\"direct\"} 3", "ranges{way=\"vxlan\"} 2", "ranges{way=\"none\"} 0", "refused 1"]
        {
            ensure!(metrics.contains(&format!("ferrule_node_{series}\n")), "{series}: {metrics}");
        }
        Ok(())
    })
    .unwrap();
}

/// Packets from a link, as `ferrulectl status` shows them.
fn packets(node: &Member, name: &str) -> anyhow::Result<u64> {
    let line = link(node, name)?;
    line.split_whitespace().nth(1).and_then(|it| it.parse().ok()).with_context(|| line.clone())
}

#[test]
fn a_tunnel_that_cannot_be_set_up_keeps_what_it_has_counted() {
    with_pods(&[], |fabric, _| {
        let [one, ..] = &fabric.nodes;
        let before = packets(one, "ferrule-vxlan")?;
        ensure!(before > 0, "no packet came by the tunnel");
        one.on(|node| {
            node.kill_agent()?;
            sys::run("ip link set ferrule-vxlan down")?;
            sys::run("ip link add flannel.1 type vxlan id 1 dstport 4789 dev uplink")?;
            sys::run("ip link set flannel.1 up")?;
            node.start_again()
        })?;
        sys::wait_until("the status names the other device", TIMEOUT, || {
            let status = one.status()?;
            ensure!(status.contains("taken by the VXLAN device flannel.1"), "{status}");
            Ok(true)
        })?;
        ensure!(packets(one, "ferrule-vxlan")? >= before, "{}", one.status()?);
        Ok(())
    })
    .unwrap();
}

/// A setting that each pass reads.
const READ: &str = "/proc/sys/net/ipv4/conf/uplink/rp_filter";
/// In its place: readers wait until the file is written.
const HELD: &str = "/run/held";

fn wait_until_a_pass_waits(node: &Member) -> anyhow::Result<()> {
    let pid = node.on(|node| node.agent_pid().context("no agent"))?;
    sys::wait_until("a pass waits", TIMEOUT, || {
        let threads = fs::read_dir(format!("/proc/{pid}/task"))?.flatten();
        let mut waits = threads.filter_map(|it| fs::read_to_string(it.path().join("wchan")).ok());
        Ok(waits.any(|it| it.contains("wait_for_partner")))
    })
}

#[test]
fn ferrulectl_shows_the_last_pass_while_the_next_one_waits() {
    with_pods(&[], |fabric, _| {
        let [one, two, _] = &fabric.nodes;
        one.run(&format!("mkfifo {HELD}"))?;
        one.run(&format!("mount --bind {HELD} {READ}"))?;
        let shown = || {
            let object = objects::node("node-4", &["10.244.4.0/24"]);
            fabric.api.create(Resource::Nodes, objects::with_addresses(object, &["192.0.2.4".parse()?]))?;
            wait_until_a_pass_waits(one)?;
            let shown = (ranges(one, two)?, link(one, "uplink")?);
            wait_until_a_pass_waits(one)?;
            anyhow::Ok(shown)
        };
        let shown = shown();
        // Also after a failure: an agent with a pass that waits does not stop.
        one.on(|_| {
            sys::run(&format!("umount -l {READ}"))?;
            // Fails if none waits.
            if let Ok(mut held) = fs::OpenOptions::new().write(true).custom_flags(O_NONBLOCK).open(HELD) {
                held.write_all(b"2")?;
            }
            Ok(())
        })?;
        let ([v4, _], uplink) = shown?;
        ensure!(v4["way"] == "direct" && uplink.ends_with("  on"), "{v4} {uplink}");
        Ok(())
    })
    .unwrap();
}
