//! The node's state as operators' tools show it: kernel, maps and the agent's registry. Without what the node
//! has for other nodes ([`crate::others`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::{IpAddr, Ipv6Addr},
    path::Path,
};

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::{
    node::{Node, PINS},
    others::TUNNEL,
    sys,
};

/// A snapshot of the node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observed {
    /// By container, and interface if that is not `eth0`; `None` if no agent was queried.
    pub registry: Option<BTreeMap<String, Registered>>,
    pub links: BTreeMap<u32, Link>,
    /// Address and interface.
    pub routes: BTreeSet<(IpAddr, String)>,
    pub neighbours: BTreeSet<(IpAddr, String)>,
    /// Our filters, by interface.
    pub filters: BTreeMap<u32, BTreeSet<String>>,
    pub vifs: BTreeMap<u32, Vif>,
    pub endpoints: BTreeMap<IpAddr, (u32, String)>,
    pub counters: BTreeSet<u32>,
}

/// An attachment as `ferrulectl` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registered {
    pub pod_uid: String,
    pub addresses: BTreeSet<IpAddr>,
    pub mac: String,
    pub host_ifname: String,
    pub host_ifindex: u32,
    pub created_at_ms: u64,
    pub state: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    pub name: String,
    pub alias: String,
    pub group: String,
    pub up: bool,
    pub mtu: u64,
    pub mac: String,
}

/// An entry of `VIFS`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vif {
    pub addresses: BTreeSet<IpAddr>,
    pub mac: String,
    pub pod_uid: String,
}

/// The link group of retired interfaces, which the reaper deletes.
pub const RETIRED_GROUP: &str = "1717924466";

const IP_BATCH: &str = "/run/model.ip";
const BPF_BATCH: &str = "/run/model.bpf";

// === impl Observed ===

impl Observed {
    /// Takes a snapshot.
    ///
    /// # Errors
    /// If a tool fails or prints unexpected output.
    pub fn collect(node: &Node, with_agent: bool) -> anyhow::Result<Self> {
        let mut seen = Self::default();
        if with_agent {
            let attachments = node.attachments()?;
            let mut registry = BTreeMap::new();
            for it in &attachments {
                let container = text(it, "container_id")?;
                let key = match text(it, "ifname")?.as_str() {
                    "eth0" => container,
                    further => format!("{container}/{further}"),
                };
                let earlier = registry.insert(key, Registered::read(it)?);
                ensure!(earlier.is_none(), "duplicate attachment: {it}");
            }
            seen.registry = Some(registry);
        }
        seen.read_kernel()?;
        seen.read_maps()?;
        Ok(seen)
    }

    fn read_kernel(&mut self) -> anyhow::Result<()> {
        if !Path::new(IP_BATCH).exists() {
            fs::write(IP_BATCH, "link show\nroute show proto 70 type unicast\nneigh show nud permanent\n")?;
        }
        for family in ["-4", "-6"] {
            let printed = sys::run(&format!("ip {family} -j -batch {IP_BATCH}"))?;
            let lists = serde_json::Deserializer::from_str(&printed).into_iter::<Vec<Value>>();
            let [links, routes, neighbours] =
                <[Vec<Value>; 3]>::try_from(lists.collect::<Result<Vec<_>, _>>()?)
                    .map_err(|lists| anyhow::anyhow!("`ip -batch` printed {} lists", lists.len()))?;
            // The first snapshot's links: an entry of a link that is missing there is newer than the
            // snapshot.
            if self.links.is_empty() {
                let others = links.iter().filter(|it| it.get("ifname") != Some(&TUNNEL.into()));
                self.links = others.map(Link::read).collect::<anyhow::Result<_>>()?;
            }
            for (list, into) in [(routes, &mut self.routes), (neighbours, &mut self.neighbours)] {
                for it in list {
                    let dst = text(&it, "dst")?;
                    // The kernel's tool prints two fields `dst` of a route by the tunnel.
                    if dst.contains('/') || it.get("dev") == Some(&TUNNEL.into()) {
                        continue;
                    }
                    let address =
                        dst.parse().with_context(|| format!("a route or neighbour of ours: {it}"))?;
                    into.insert((address, text(&it, "dev")?));
                }
            }
        }
        Ok(())
    }

    fn read_maps(&mut self) -> anyhow::Result<()> {
        if !Path::new(BPF_BATCH).exists() {
            let maps = ["ENDPOINTS", "VIFS", "VIF_COUNTERS"];
            let dumps = maps.map(|map| format!("map dump pinned {PINS}/{map}\n"));
            fs::write(BPF_BATCH, format!("{}net show\n", dumps.concat()))?;
        }
        let printed = sys::run(&format!("bpftool -j batch file {BPF_BATCH}"))?;
        let outputs: Vec<Value> = serde_json::from_str(&printed)?;
        let output = |number: usize| outputs.get(number).and_then(|it| it.get("output")).context("no output");
        for entry in entries(output(0)?) {
            let (key, value) = (field(entry, "/key/address")?, field(entry, "/value")?);
            let address =
                Ipv6Addr::from(<[u8; 16]>::try_from(bytes(key)?).map_err(|it| anyhow::anyhow!("{it:?}"))?);
            let address = address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4);
            self.endpoints.insert(address, (number(value, "ifindex")?, mac(field(value, "/mac")?)?));
        }
        for entry in entries(output(1)?) {
            self.vifs.insert(number(field(entry, "/key")?, "ifindex")?, Vif::read(field(entry, "/value")?)?);
        }
        for entry in entries(output(2)?) {
            self.counters.insert(number(field(entry, "/key")?, "ifindex")?);
        }
        // The entry of index 0 counts packets of interfaces without an entry.
        self.counters.remove(&0);
        let net = output(3)?.pointer("/0/tc").and_then(Value::as_array).context("no tc filters")?;
        for filter in net {
            let name = text(filter, "name")?;
            let hook = text(filter, "kind")?;
            match (name.as_str(), hook.as_str()) {
                ("from_pod", "clsact/ingress") | ("to_pod", "clsact/egress") => {}
                // Of no attachment.
                ("from_uplink", "clsact/ingress") | ("to_link", "clsact/egress")
                    if text(filter, "devname")? == "uplink" =>
                {
                    continue;
                }
                ("from_tunnel", "clsact/ingress") | ("to_tunnel", "clsact/egress")
                    if text(filter, "devname")? == TUNNEL =>
                {
                    continue;
                }
                _ => anyhow::bail!("unexpected filter: {filter}"),
            }
            self.filters.entry(number(filter, "ifindex")?).or_default().insert(name);
        }
        Ok(())
    }
}

// === impl Registered ===

impl Registered {
    fn read(it: &Value) -> anyhow::Result<Self> {
        let addresses = field(it, "/addresses")?.as_array().into_iter().flatten().filter_map(Value::as_str);
        Ok(Self {
            pod_uid: text(it, "pod_uid")?,
            addresses: addresses.map(str::parse).collect::<Result<_, _>>()?,
            mac: text(it, "mac")?,
            host_ifname: text(it, "host_ifname")?,
            host_ifindex: number(it, "host_ifindex")?,
            created_at_ms: field(it, "/created_at_ms")?.as_u64().context("created_at_ms")?,
            state: text(it, "state")?,
        })
    }
}

// === impl Link ===

impl Link {
    fn read(it: &Value) -> anyhow::Result<(u32, Self)> {
        let flags = field(it, "/flags")?.as_array().context("flags")?;
        let link = Self {
            name: text(it, "ifname")?,
            alias: text(it, "ifalias").unwrap_or_default(),
            group: text(it, "group")?,
            up: flags.contains(&"UP".into()),
            mtu: field(it, "/mtu")?.as_u64().context("mtu")?,
            mac: text(it, "address")?,
        };
        Ok((number(it, "ifindex")?, link))
    }
}

// === impl Vif ===

impl Vif {
    fn read(it: &Value) -> anyhow::Result<Self> {
        let flags = number(it, "flags")?;
        let mut addresses = BTreeSet::new();
        if flags & 1 != 0 {
            let v4 = <[u8; 4]>::try_from(bytes(field(it, "/ipv4")?)?);
            addresses.insert(IpAddr::from(v4.map_err(|it| anyhow::anyhow!("ipv4 is {it:?}"))?));
        }
        if flags & 2 != 0 {
            let v6 = <[u8; 16]>::try_from(bytes(field(it, "/ipv6")?)?);
            addresses.insert(IpAddr::from(v6.map_err(|it| anyhow::anyhow!("ipv6 is {it:?}"))?));
        }
        Ok(Self { addresses, mac: mac(field(it, "/mac")?)?, pod_uid: text(it, "pod_uid")? })
    }
}

/// The formatted entries of a dump; some versions of bpftool print them beside the raw bytes.
fn entries(dump: &Value) -> impl Iterator<Item = &Value> {
    dump.as_array().into_iter().flatten().map(|entry| entry.get("formatted").unwrap_or(entry))
}

fn field<'a>(it: &'a Value, at: &str) -> anyhow::Result<&'a Value> {
    it.pointer(at).with_context(|| format!("no {at} in {it}"))
}

fn text(it: &Value, key: &str) -> anyhow::Result<String> {
    it.get(key).and_then(Value::as_str).map(str::to_owned).with_context(|| format!("no {key} in {it}"))
}

fn number(it: &Value, key: &str) -> anyhow::Result<u32> {
    let number = it.get(key).and_then(Value::as_u64).with_context(|| format!("no {key} in {it}"))?;
    Ok(u32::try_from(number)?)
}

fn bytes(list: &Value) -> anyhow::Result<Vec<u8>> {
    let numbers = list.as_array().into_iter().flatten().filter_map(Value::as_u64);
    Ok(numbers.map(u8::try_from).collect::<Result<_, _>>()?)
}

fn mac(list: &Value) -> anyhow::Result<String> {
    Ok(bytes(list)?.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":"))
}
