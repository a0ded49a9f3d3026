//! The peers: pods of the plugin `ptp`, and the same rules in the host's firewall, as implementations of
//! policies without eBPF write them.

use std::{
    fmt::Write as _,
    fs,
    net::{IpAddr, Ipv4Addr},
    time::{Duration, Instant},
};

use ferrule_tests::{node::Node, pod::Pod, sys};

use super::{
    bed::v4,
    rules::{FIRST_PORT, PORTS, block},
};
use crate::{
    rates::path::Path,
    target::{Name, Target},
};

/// How the host has the rules. In each form, established connections pass first, and the pair's own rule is
/// the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// A list in nftables: a new connection passes one rule after the other.
    List,
    /// One rule of nftables, which looks address and port up in a set.
    Set,
    /// A list in iptables, of the kernel's earlier tables.
    Iptables,
}

pub(super) struct HostRules {
    pub(super) path: Path,
    ends: [IpAddr; 2],
}

/// Of all pods of `ptp` here.
const RANGE: &str = "10.246.0.0/16";
const FILE: &str = "/run/host-rules";

// === impl HostRules ===

impl HostRules {
    pub(super) fn new(node: &Node) -> anyhow::Result<Self> {
        let target = Target::new(Name::Ptp)?;
        let mut pods = [node.pod("ptp-client")?, node.pod("ptp-server")?];
        pods.iter_mut().try_for_each(|pod| target.add(pod).map(drop))?;
        let [client, server]: &[Pod; 2] = &pods;
        let ends = [v4(client)?, v4(server)?];
        Ok(Self { path: Path::new("ptp", client, server, ends[1]), ends })
    }

    /// Replaces the rules: so many others, and that of the pair. Returns how long the host's own tool took,
    /// after which they are in force.
    pub(super) fn set(&self, form: Form, count: usize) -> anyhow::Result<Duration> {
        self.clear()?;
        let (text, load) = match form {
            Form::List => (self.nft("", &list(count)), "nft -f"),
            Form::Set => (self.nft(&set(count), "ip saddr . tcp dport @allowed accept\n"), "nft -f"),
            Form::Iptables => (self.iptables(count), "iptables-legacy-restore"),
        };
        fs::write(FILE, text)?;
        let since = Instant::now();
        sys::run(&format!("{load} {FILE}"))?;
        Ok(since.elapsed())
    }

    pub(super) fn clear(&self) -> anyhow::Result<()> {
        fs::write(FILE, "table ip host-rules {}\ndelete table ip host-rules\n")?;
        sys::run(&format!("nft -f {FILE}"))?;
        sys::run("iptables-legacy -F FORWARD").map(drop)
    }

    fn nft(&self, set: &str, rules: &str) -> String {
        let ([client, server], port) = (self.ends, self.path.listen.port());
        format!(
            "table ip host-rules {{\n{set}\
             chain forward {{ type filter hook forward priority filter; policy accept;\n\
             ip saddr != {RANGE} accept\n\
             ct state established,related accept\n\
             {rules}\
             ip saddr {client} ip daddr {server} tcp dport {port} accept\ndrop\n}}\n}}\n"
        )
    }

    fn iptables(&self, count: usize) -> String {
        let ([client, server], port) = (self.ends, self.path.listen.port());
        let mut text = format!(
            "*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD ! -s {RANGE} -j ACCEPT\n\
             -A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT\n"
        );
        for (block, port) in others(count) {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "-A FORWARD -s {block} -p tcp --dport {port} -j ACCEPT");
        }
        let pair = format!("-s {client} -d {server} -p tcp --dport {port}");
        text + &format!("-A FORWARD {pair} -j ACCEPT\n-A FORWARD -j DROP\nCOMMIT\n")
    }
}

fn list(count: usize) -> String {
    let rule = |(block, port)| format!("ip saddr {block} tcp dport {port} accept\n");
    others(count).map(rule).collect()
}

fn set(count: usize) -> String {
    let elements: Vec<_> = others(count).map(|(block, port)| format!("{block} . {port}")).collect();
    let elements = elements.join(", ");
    format!("set allowed {{ type ipv4_addr . inet_service; elements = {{ {elements} }} }}\n")
}

/// Address and port of each rule but the pair's.
fn others(count: usize) -> impl Iterator<Item = (Ipv4Addr, usize)> {
    (0..count).map(|number| (block(number), FIRST_PORT + number % PORTS))
}
