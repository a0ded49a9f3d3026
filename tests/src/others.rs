//! What a node has for the other nodes of its cluster, as operators' tools show it. All functions are about
//! the namespaces of the calling thread.

use std::{collections::BTreeSet, net::Ipv6Addr};

use anyhow::{Context as _, anyhow};
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
    let addresses: Vec<_> = addresses.map(|it| (it.get("local"), it.get("prefixlen"))).collect();
    let networks: Value = serde_json::from_str(&sys::run(&format!("bridge -j vni show dev {TUNNEL}"))?)?;
    let settings = ["/flags", "/mtu", "/ifalias", "/linkinfo/info_data"].map(|it| link.pointer(it));
    Ok(Some(json!([settings, addresses, networks.pointer("/0/vnis")])))
}

/// The map that is the index of `NODES`.
const INDEX: &str = "NODE_PREFIXES";

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
    let of_tunnel = filters.filter(|it| it.get("devname").is_some_and(|it| it == TUNNEL));
    state.extend(of_tunnel.map(|it| format!("{:?} at {:?}", it.get("name"), it.get("kind"))));
    let index = index()?;
    // The index of a new device is another one.
    let named = |value: Option<&Value>| if value == index.as_ref() { json!(TUNNEL) } else { json!(value) };
    for map in ["NODES", INDEX] {
        for it in dump(map)? {
            let value = ["id", "flags", "address", "mtu"].map(|name| it.pointer(&format!("/value/{name}")));
            let ifindex = named(it.pointer("/value/ifindex"));
            state.insert(format!("{map} {}", json!([it.get("key"), value, ifindex])));
        }
    }
    state.extend(dump("NODE_LENGTHS")?.iter().map(|it| format!("NODE_LENGTHS {it}")));
    let counted = dump("LINK_COUNTERS")?;
    state.extend(counted.iter().map(|it| format!("counts {}", named(it.pointer("/key/ifindex")))));
    Ok(state)
}

/// The agent's routes to other nodes' ranges, as `ip route` prints them.
///
/// # Errors
/// If a tool fails.
pub fn routes() -> anyhow::Result<BTreeSet<String>> {
    let mut routes = BTreeSet::new();
    for family in ["-4", "-6"] {
        let printed = sys::run(&format!("ip {family} route show proto 70 type unicast"))?;
        // Those of pods are of single addresses.
        let of_ranges = printed.lines().filter(|line| destination(line).contains('/'));
        routes.extend(of_ranges.map(str::to_owned));
    }
    Ok(routes)
}

/// The prefixes in the agent's map `NODES`.
///
/// # Errors
/// If the map cannot be read.
pub fn rows() -> anyhow::Result<BTreeSet<String>> {
    dump("NODES")?.iter().map(prefix).collect()
}

/// The prefixes in the index of that map.
///
/// # Errors
/// If the map cannot be read.
pub fn indexed() -> anyhow::Result<BTreeSet<String>> {
    dump(INDEX)?.iter().map(prefix).collect()
}

/// Removes all entries of a map behind the agent's back.
///
/// # Errors
/// If a tool fails.
pub fn clear(map: &str) -> anyhow::Result<()> {
    let entries: Vec<Value> =
        serde_json::from_str(&sys::run(&format!("bpftool -j map dump pinned {PINS}/{map}"))?)?;
    for entry in entries {
        let bytes = entry.get("key").and_then(Value::as_array).context("no key")?;
        let key: Vec<_> = bytes.iter().filter_map(Value::as_str).collect();
        sys::run(&format!("bpftool map delete pinned {PINS}/{map} key {}", key.join(" ")))?;
    }
    Ok(())
}

/// The index of the tunnel device, if there is one.
fn index() -> anyhow::Result<Option<Value>> {
    let links: Vec<Value> = serde_json::from_str(&sys::run("ip -j link show")?)?;
    let tunnel = links.iter().find(|it| it.get("ifname").is_some_and(|it| it == TUNNEL));
    Ok(tunnel.and_then(|it| it.get("ifindex").cloned()))
}

fn dump(map: &str) -> anyhow::Result<Vec<Value>> {
    let entries: Vec<Value> =
        serde_json::from_str(&sys::run(&format!("bpftool -j map dump pinned {PINS}/{map}"))?)?;
    Ok(entries.into_iter().map(|it| it.get("formatted").cloned().unwrap_or(it)).collect())
}

/// The prefix of an entry of `NODES`, or of its index.
fn prefix(entry: &Value) -> anyhow::Result<String> {
    let key = entry.get("key").with_context(|| format!("no key in {entry}"))?;
    let len = key.get("prefix_len").and_then(Value::as_u64).context("no prefix length")?;
    let bytes = key.get("data").or_else(|| key.get("address")).and_then(Value::as_array);
    let bytes = bytes.context("no address")?;
    let bytes = bytes.iter().map(|byte| Ok(u8::try_from(byte.as_u64().context("no byte")?)?));
    let bytes: Vec<u8> = bytes.collect::<anyhow::Result<_>>()?;
    let address = Ipv6Addr::from(<[u8; 16]>::try_from(bytes).map_err(|it| anyhow!("an address of {it:?}"))?);
    Ok(match address.to_ipv4_mapped() {
        Some(v4) => format!("{v4}/{}", len.checked_sub(96).context("too short for IPv4")?),
        None => format!("{address}/{len}"),
    })
}
