//! `ferrulectl support-bundle`: what no other call returns. Without secrets.

use std::{fmt::Write as _, fs};

use ferrule_proto::agent::{Fact, GetFactsResponse};

use crate::{
    attach::Journal,
    chain::chain,
    dataplane::Dataplane,
    log,
    metrics::{Metrics, ProgramInfo},
    plug::{
        host_inventory::HostInventory,
        netlink::Socket,
        nft::{firewall, listing},
        routing,
    },
};

/// What the agent keeps for a bug report.
#[derive(Clone)]
pub struct Facts {
    /// The settings, of which none is a secret.
    pub config: String,
    pub metrics: Metrics,
    pub log: log::Control,
}

/// Bytes of a fact.
const MAX: usize = 1 << 20;
/// Files that tell about the kernel, none with a secret.
const KERNEL: [&str; 14] = [
    "/proc/sys/kernel/osrelease",
    "/proc/sys/kernel/version",
    "/proc/sys/kernel/unprivileged_bpf_disabled",
    "/proc/sys/net/core/bpf_jit_enable",
    "/proc/sys/net/core/netdev_max_backlog",
    "/proc/sys/net/ipv4/ip_forward",
    "/proc/sys/net/ipv4/conf/all/rp_filter",
    "/proc/sys/net/ipv4/conf/all/send_redirects",
    "/proc/sys/net/ipv6/conf/all/forwarding",
    "/proc/sys/net/ipv6/conf/all/disable_ipv6",
    "/proc/sys/net/netfilter/nf_conntrack_count",
    "/proc/sys/net/netfilter/nf_conntrack_max",
    "/proc/loadavg",
    "/proc/self/status",
];

// === impl Facts ===

impl Facts {
    /// Blocks.
    pub(super) fn collect(&self, journal: &Journal, dataplane: &Dataplane) -> GetFactsResponse {
        let metrics =
            self.metrics.encode().unwrap_or_else(|error| format!("cannot read the metrics: {error}\n"));
        let facts = [
            ("config.txt", self.config.clone()),
            ("metrics.txt", metrics),
            ("kernel.txt", kernel(dataplane)),
            ("links.txt", links()),
            ("adds.txt", adds(journal)),
            ("log.txt", self.log.recent()),
            ("routes.txt", routing::listing().unwrap_or_else(|error| format!("{}\n", chain(&error)))),
            ("nft.txt", listing::listing()),
        ];
        let fact = |(name, text): (&str, String)| Fact { name: name.to_owned(), text: bounded(text) };
        GetFactsResponse { facts: facts.into_iter().map(fact).collect() }
    }
}

fn kernel(dataplane: &Dataplane) -> String {
    let mut text = format!("{}\npins: {}\n", dataplane.kernel(), dataplane.pins().display());
    if let Some(warning) = dataplane.kernel().warning() {
        let _ = writeln!(text, "{warning}");
    }
    for ProgramInfo { name, id, tag, .. } in dataplane.programs() {
        let _ = writeln!(text, "program {name}: id {id}, tag {tag}");
    }
    let lost = dataplane.lost_pins();
    if !lost.is_empty() {
        let _ = writeln!(text, "maps without a pin: {}", lost.join(", "));
    }
    for of_nftables in firewall::forward_drops() {
        let _ = writeln!(text, "firewall: {of_nftables}");
    }
    for file in KERNEL {
        let read = fs::read_to_string(file).unwrap_or_else(|error| error.to_string());
        let separator = if read.lines().count() > 1 { "\n" } else { " " };
        let _ = writeln!(text, "{file}:{separator}{}", read.trim_end());
    }
    text
}

/// The interfaces of the host's network namespace, in the order of their indexes.
fn links() -> String {
    let read = Socket::open().and_then(|mut host| HostInventory::links(&mut host));
    let links = match read {
        Ok(inventory) => inventory.links,
        Err(error) => return format!("cannot list the interfaces: {}\n", chain(&error)),
    };
    let mut links: Vec<_> = links.into_iter().collect();
    links.sort_by_key(|(index, _)| *index);
    let mut text = String::new();
    for (index, it) in links {
        let up = if it.up { "up" } else { "down" };
        let mac = it.mac.map(|mac| format!(" mac {mac}")).unwrap_or_default();
        let stamp = it.stamp.map(|stamp| format!(" stamp {stamp}")).unwrap_or_default();
        let xdp = if it.xdp.is_empty() { String::new() } else { format!(" xdp {:?}", it.xdp) };
        let _ =
            writeln!(text, "{index}: {} {up} mtu {}{mac} group {}{stamp}{xdp}", it.name, it.mtu, it.group);
    }
    text
}

/// The ADDs in flight, and those that failed.
fn adds(journal: &Journal) -> String {
    let mut text = String::new();
    for it in journal.in_flight(|_, _| true) {
        let _ = writeln!(text, "{} in flight: {} of {}, {}", it.began_ms, it.key, it.pod, it.phase());
    }
    for it in journal.failures(|_, _| true) {
        let _ = writeln!(
            text,
            "{} failed {} times: {} of {}, code {}: {}",
            it.last_ms, it.times, it.key, it.pod, it.code, it.message
        );
    }
    text
}

/// Cut between two characters.
fn bounded(mut text: String) -> String {
    if text.len() > MAX {
        let end = (0..=MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        let cut = text.len() - end;
        text.truncate(end);
        let _ = writeln!(text, "\n... {cut} bytes more");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_fact_is_cut_and_says_so() {
        assert_eq!(bounded("short".to_owned()), "short");
        let cut = bounded("ä".repeat(MAX));
        assert!(cut.len() < MAX + 64 && cut.ends_with(&format!("\n... {MAX} bytes more\n")), "{}", cut.len());
    }
}
