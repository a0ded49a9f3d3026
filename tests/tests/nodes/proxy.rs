//! The rules of kube-proxy for Services with one backend each, in both of its modes.

use std::{
    fmt::Write as _,
    fs,
    net::{IpAddr, SocketAddr},
};

use anyhow::{Context as _, ensure};
use ferrule_tests::{fabric::Member, pod::Pod, sys};

/// How kube-proxy programs the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Proxy {
    Iptables,
    Nftables,
}

/// A Service of one address family.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Service {
    pub(crate) address: SocketAddr,
    /// On every address of every node.
    pub(crate) node_port: u16,
    pub(crate) backend: SocketAddr,
}

/// kube-proxy's `--cluster-cidr`: sources that need no masquerading.
const PODS: [&str; 2] = ["10.244.0.0/16", "fd00:10:244::/48"];
const RULES: &str = "/run/services.rules";

/// The IPv4 and the IPv6 Service of a pod. `number` tells pods apart.
pub(crate) fn services(number: u8, backend: &Pod) -> Vec<Service> {
    let service = |address: &IpAddr| {
        let cluster: IpAddr = match address {
            IpAddr::V4(_) => [10, 96, 0, number].into(),
            IpAddr::V6(_) => [0xfd00, 0x96, 0, 0, 0, 0, 0, u16::from(number)].into(),
        };
        Service {
            address: SocketAddr::new(cluster, 80),
            node_port: 30_000 + u16::from(number),
            backend: SocketAddr::new(*address, 8080),
        }
    };
    backend.addresses.iter().map(service).collect()
}

// === impl Proxy ===

impl Proxy {
    /// Programs a node.
    ///
    /// # Errors
    /// If the tools refuse.
    pub(crate) fn program(self, node: &Member, services: &[Service]) -> anyhow::Result<()> {
        for (is_ipv4, pods) in [true, false].into_iter().zip(PODS) {
            let services: Vec<_> = services.iter().filter(|it| it.address.is_ipv4() == is_ipv4).collect();
            node.on(|_| {
                let (rules, command) = match (self, is_ipv4) {
                    (Self::Iptables, true) => (iptables(&services, pods)?, "iptables-restore"),
                    (Self::Iptables, false) => (iptables(&services, pods)?, "ip6tables-restore"),
                    (Self::Nftables, _) => (nftables(&services, pods, is_ipv4)?, "nft -f"),
                };
                fs::write(RULES, rules)?;
                sys::run(&format!("{command} {RULES}")).map(drop)
            })?;
        }
        Ok(())
    }

    /// Checks that a node's connection tracking has found no packet invalid, which kube-proxy would drop.
    ///
    /// # Errors
    /// If it has.
    pub(crate) fn expect_nothing_invalid(self, node: &Member) -> anyhow::Result<()> {
        for family in ["", "6"] {
            let line = match self {
                Self::Iptables => format!("ip{family}tables -nvxL KUBE-FORWARD"),
                Self::Nftables => format!("nft list chain ip{family} kube-proxy filter-forward"),
            };
            let rules = node.run(&line)?;
            let rule = rules.lines().find(|line| line.to_lowercase().contains("invalid"));
            let mut words = rule.with_context(|| format!("no rule in {rules}"))?.split_whitespace();
            let packets = match self {
                Self::Iptables => words.next(),
                Self::Nftables => words.skip_while(|word| *word != "packets").nth(1),
            };
            ensure!(packets == Some("0"), "invalid packets on {}: {rule:?}", node.name);
        }
        Ok(())
    }
}

/// Of kube-proxy 1.35 in mode iptables, without the parts about Services that have no endpoints.
fn iptables(services: &[&Service], pods: &str) -> Result<String, std::fmt::Error> {
    let mut rules = String::from(
        "*filter\n:FORWARD ACCEPT [0:0]\n:KUBE-FORWARD - [0:0]\n\
         -A FORWARD -m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD\n\
         -A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP\n\
         -A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT\n\
         -A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\nCOMMIT\n\
         *nat\n:KUBE-SERVICES - [0:0]\n:KUBE-NODEPORTS - [0:0]\n:KUBE-POSTROUTING - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n\
         -A PREROUTING -j KUBE-SERVICES\n-A OUTPUT -j KUBE-SERVICES\n-A POSTROUTING -j KUBE-POSTROUTING\n\
         -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN\n\
         -A KUBE-POSTROUTING -j MARK --xor-mark 0x4000\n\
         -A KUBE-POSTROUTING -j MASQUERADE --random-fully\n\
         -A KUBE-MARK-MASQ -j MARK --or-mark 0x4000\n",
    );
    for (number, Service { address, node_port, backend }) in services.iter().enumerate() {
        let (ip, port, pod) = (address.ip(), address.port(), backend.ip());
        for protocol in ["tcp", "udp"] {
            let name = format!("{number}{protocol}");
            write!(
                rules,
                ":KUBE-SVC-{name} - [0:0]\n:KUBE-EXT-{name} - [0:0]\n:KUBE-SEP-{name} - [0:0]\n\
                 -A KUBE-SERVICES -d {ip} -p {protocol} -m {protocol} --dport {port} -j KUBE-SVC-{name}\n\
                 -A KUBE-NODEPORTS -p {protocol} -m {protocol} --dport {node_port} -j KUBE-EXT-{name}\n\
                 -A KUBE-EXT-{name} -j KUBE-MARK-MASQ\n\
                 -A KUBE-EXT-{name} -j KUBE-SVC-{name}\n\
                 -A KUBE-SVC-{name} ! -s {pods} -d {ip} -p {protocol} -m {protocol} --dport {port} -j KUBE-MARK-MASQ\n\
                 -A KUBE-SVC-{name} -j KUBE-SEP-{name}\n\
                 -A KUBE-SEP-{name} -s {pod} -j KUBE-MARK-MASQ\n\
                 -A KUBE-SEP-{name} -p {protocol} -m {protocol} -j DNAT --to-destination {backend}\n",
            )?;
        }
    }
    rules.push_str("-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS\nCOMMIT\n");
    Ok(rules)
}

/// Of kube-proxy 1.35 in mode nftables, likewise.
fn nftables(services: &[&Service], pods: &str, is_ipv4: bool) -> Result<String, std::fmt::Error> {
    let (family, kind) = if is_ipv4 { ("ip", "ipv4_addr") } else { ("ip6", "ipv6_addr") };
    let (mut chains, mut cluster, mut nodes) = (String::new(), Vec::new(), Vec::new());
    for (number, Service { address, node_port, backend }) in services.iter().enumerate() {
        let (ip, port, pod) = (address.ip(), address.port(), backend.ip());
        for protocol in ["tcp", "udp"] {
            let name = format!("{number}-{protocol}");
            cluster.push(format!("{ip} . {protocol} . {port} : goto service-{name}"));
            nodes.push(format!("{protocol} . {node_port} : goto external-{name}"));
            write!(
                chains,
                "chain endpoint-{name} {{\n{family} saddr {pod} jump mark-for-masquerade\n\
                 meta l4proto {protocol} dnat to {backend}\n}}\n\
                 chain service-{name} {{\n\
                 {family} daddr {ip} {protocol} dport {port} {family} saddr != {pods} jump mark-for-masquerade\n\
                 goto endpoint-{name}\n}}\n\
                 chain external-{name} {{\njump mark-for-masquerade\ngoto service-{name}\n}}\n",
            )?;
        }
    }
    let nat = |hook, priority| {
        format!("chain nat-{hook} {{\ntype nat hook {hook} priority {priority};\njump services\n}}\n")
    };
    Ok(format!(
        "table {family} kube-proxy {{\n\
         map service-ips {{\ntype {kind} . inet_proto . inet_service : verdict\nelements = {{ {} }}\n}}\n\
         map service-nodeports {{\ntype inet_proto . inet_service : verdict\nelements = {{ {} }}\n}}\n\
         chain mark-for-masquerade {{\nmeta mark set meta mark | 0x4000\n}}\n{chains}\
         chain services {{\n{family} daddr . meta l4proto . th dport vmap @service-ips\n\
         fib daddr type local meta l4proto . th dport vmap @service-nodeports\n}}\n{}{}\
         chain nat-postrouting {{\ntype nat hook postrouting priority srcnat;\n\
         meta mark & 0x4000 != 0 meta mark set meta mark ^ 0x4000 masquerade fully-random\n}}\n\
         chain filter-forward {{\ntype filter hook forward priority filter;\nct state invalid counter drop\n}}\n}}\n",
        cluster.join(", "),
        nodes.join(", "),
        nat("prerouting", "dstnat"),
        nat("output", "-100"),
    ))
}
