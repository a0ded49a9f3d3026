//! What a node has for the other nodes of its cluster, as operators' tools show it. All functions are about
//! the namespaces of the calling thread.

use std::collections::BTreeSet;

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::{fabric::destination, node::PINS, sys};

/// The agent's tunnel device.
pub const TUNNEL: &str = "ferrule-vxlan";

/// The tunnel device, without what differs between two devices of the same form; `None` if there is none.
///
/// # Errors
/// If a tool fails.
pub fn tunnel() -> anyhow::Result<Option<Value>> {
    if sys::run("ip -o link show type vxlan")?.lines().all(|line| !line.contains(TUNNEL)) {
        return Ok(None);
    }
    let shown: Value = serde_json::from_str(&sys::run(&format!("ip -j -d addr show dev {TUNNEL}"))?)?;
    let link = shown.get(0).context("no device")?;
    let addresses = link.get("addr_info").and_then(Value::as_array).into_iter().flatten();
    let addresses: Vec<_> = addresses.map(|it| (&it["local"], &it["prefixlen"])).collect();
    let networks: Value = serde_json::from_str(&sys::run(&format!("bridge -j vni show dev {TUNNEL}"))?)?;
    let networks = &networks[0]["vnis"];
    let settings = &link["linkinfo"]["info_data"];
    Ok(Some(json!([link["flags"], link["mtu"], link["ifalias"], settings, addresses, networks])))
}

/// Device, routes, routing rules, filters and map entries, one line each.
///
/// # Errors
/// If a tool fails.
pub fn state() -> anyhow::Result<BTreeSet<String>> {
    let mut state: BTreeSet<_> = tunnel()?.iter().map(Value::to_string).collect();
    for family in ["-4", "-6"] {
        let routes = sys::run(&format!("ip {family} route show table all proto 70 type unicast"))?;
        let of_nodes = |line: &&str| line.contains("table 7070") || destination(line).contains('/');
        state.extend(routes.lines().filter(of_nodes).map(|line| line.trim_end().to_owned()));
        let rules = sys::run(&format!("ip {family} rule show"))?;
        state.extend(rules.lines().filter(|line| line.contains("7070")).map(str::to_owned));
    }
    let net: Value = serde_json::from_str(&sys::run("bpftool -j net")?)?;
    let filters = net.pointer("/0/tc").and_then(Value::as_array).into_iter().flatten();
    let of_tunnel = filters.filter(|it| it["devname"] == TUNNEL);
    state.extend(of_tunnel.map(|it| format!("{} at {}", it["name"], it["kind"])));
    let index = index()?;
    let named = |value: &Value| if *value == index { json!(TUNNEL) } else { value.clone() };
    for it in dump("NODES")? {
        let (key, value) = (&it["key"], &it["value"]);
        let [id, flags, address, mtu] = ["id", "flags", "address", "mtu"].map(|name| &value[name]);
        state.insert(format!("NODES {key} {id} {flags} {address} {} {mtu}", named(&value["ifindex"])));
    }
    state.extend(dump("LINK_COUNTERS")?.iter().map(|it| format!("counts {}", named(&it["key"]["ifindex"]))));
    Ok(state)
}

/// The index of the tunnel device; null without one.
fn index() -> anyhow::Result<Value> {
    let links: Value = serde_json::from_str(&sys::run("ip -j link show")?)?;
    let tunnel = links.as_array().into_iter().flatten().find(|it| it["ifname"] == TUNNEL);
    Ok(tunnel.map_or(Value::Null, |it| it["ifindex"].clone()))
}

fn dump(map: &str) -> anyhow::Result<Vec<Value>> {
    let entries: Vec<Value> =
        serde_json::from_str(&sys::run(&format!("bpftool -j map dump pinned {PINS}/{map}"))?)?;
    Ok(entries.into_iter().map(|it| it.get("formatted").cloned().unwrap_or(it)).collect())
}
