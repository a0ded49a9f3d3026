//! Tables of packets: the pods of the node, a row, and the check of a row.

use std::{fmt::Write as _, net::Ipv6Addr};

use agent_common::{
    Counters, DropReason, Drops, Endpoint, EndpointKey, Flow, FlowKey, GATEWAY_IPV6, GATEWAY_MAC, Traffic,
    VifEntry, VifKey,
    policy::{PackedSubject, Subject},
};
use anyhow::{Context as _, ensure};
use ferrule_tests::{
    packet::{self, IPV4, IPV6, Ipv4Address, Ipv6Address, Mac},
    program::{
        AllCounters, Program, Programs, Ran, SkBuff, TC_ACT_REDIRECT, TC_ACT_SHOT, TC_ACT_UNSPEC,
        verdict_name, with_programs,
    },
    sys,
};

use crate::oracle;

/// A pod of the node, as in the maps.
#[derive(Debug, Clone, Copy)]
pub struct Pod {
    pub ifindex: u32,
    pub mac: Mac,
    /// Zeros if the pod has no IPv4 address.
    pub v4: Ipv4Address,
    /// Zeros if the pod has no IPv6 address.
    pub v6: Ipv6Address,
    /// `VifEntry::HAS_` flags.
    pub has: u32,
}

/// A packet and its expected result.
pub struct Row {
    about: &'static str,
    skb: SkBuff,
    packet: Vec<u8>,
    verdict: u32,
    /// The packet that comes out.
    out: Vec<u8>,
    rewritten: Option<Rewritten>,
    /// The only changes of counters, by ifindex.
    counted: Vec<(u32, Counted)>,
}

/// Why a packet is rewritten, and for which pod.
#[derive(Debug, Clone, Copy)]
pub enum Rewritten {
    Delivered(Pod),
    Answered(Pod),
}

/// A counter that a packet increments.
#[derive(Debug, Clone, Copy)]
pub enum Counted {
    Egress,
    Ingress,
    Drop(DropReason),
}

/// The pod that sends in most rows, and another pod of the node.
pub const A: Pod = pod(101, 5, VifEntry::HAS_IPV4 | VifEntry::HAS_IPV6);
pub const B: Pod = pod(102, 6, VifEntry::HAS_IPV4 | VifEntry::HAS_IPV6);
pub const ONLY_V4: Pod = pod(103, 7, VifEntry::HAS_IPV4);
pub const ONLY_V6: Pod = pod(104, 8, VifEntry::HAS_IPV6);
/// An interface with counters and without an entry in `VIFS`.
pub const STRANGER: u32 = 105;
/// Drops of interfaces without an entry are counted under this ifindex.
pub const UNKNOWN: u32 = 0;

/// No policy judges the pod.
pub const OPEN: Subject =
    Subject { ingress: Subject::OPEN, egress: Subject::OPEN, table: 0, epoch: 0, flags: 0 };
/// Of every pod.
pub const MTU: u16 = 1500;
pub const GENERATION: u32 = 77;
/// Addresses of the node, and of a host outside the cluster.
pub const NODE_V4: Ipv4Address = [192, 0, 2, 1];
pub const NODE_V6: Ipv6Address = v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1]);
pub const FAR_V4: Ipv4Address = [203, 0, 113, 9];
pub const FAR_V6: Ipv6Address = v6([0x2001, 0xdb8, 0xff, 0, 0, 0, 0, 9]);
/// A MAC that no interface has.
pub const OTHER_MAC: Mac = [2, 0, 0, 0, 0, 0x99];

/// A pod that the agent does not know policies of yet: without a subject in `VIFS`.
pub const NEW: Pod = pod(106, 9, VifEntry::HAS_IPV4 | VifEntry::HAS_IPV6);

pub const PODS: [Pod; 5] = [A, B, ONLY_V4, ONLY_V6, NEW];

pub const fn v6(groups: [u16; 8]) -> Ipv6Address {
    let [a, b, c, d, e, f, g, h] = groups;
    Ipv6Addr::new(a, b, c, d, e, f, g, h).octets()
}

const fn pod(ifindex: u32, host: u8, has: u32) -> Pod {
    let v4 = if has & VifEntry::HAS_IPV4 != 0 { [10, 244, 0, host] } else { [0; 4] };
    let v6 = if has & VifEntry::HAS_IPV6 != 0 {
        v6([0xfd00, 0x10, 0x244, 0, 0, 0, 0, host as u16])
    } else {
        [0; 16]
    };
    Pod { ifindex, mac: [0x0a, 0x58, 10, 244, 0, host], v4, v6, has }
}

// === impl Pod ===

impl Pod {
    /// The link-local address that the pod's kernel derives from the MAC (RFC 4291, appendix A).
    pub fn link_local(&self) -> Ipv6Address {
        let [a, b, c, d, e, f] = self.mac;
        [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f]
    }

    /// A frame from the pod to the gateway.
    pub fn sends(&self, ethertype: u16, payload: &[u8]) -> Vec<u8> {
        packet::frame(GATEWAY_MAC, self.mac, ethertype, payload)
    }

    pub fn sends_v4(&self, packet: &[u8]) -> Vec<u8> {
        self.sends(IPV4, packet)
    }

    pub fn sends_v6(&self, packet: &[u8]) -> Vec<u8> {
        self.sends(IPV6, packet)
    }

    /// A frame from the gateway to the pod.
    pub fn receives(&self, ethertype: u16, payload: &[u8]) -> Vec<u8> {
        packet::frame(self.mac, GATEWAY_MAC, ethertype, payload)
    }

    fn insert(&self, programs: &mut Programs) -> anyhow::Result<()> {
        let Self { ifindex, mac, v4, v6, has } = *self;
        programs.start_counting(ifindex)?;
        let vif = VifEntry {
            ipv4: v4,
            flags: has,
            ipv6: v6,
            mac,
            mtu: MTU,
            subject: if ifindex == NEW.ifindex { PackedSubject::default() } else { OPEN.pack() },
            // The numbers of the pods are small.
            slot: ifindex,
            stack_flows: 0,
            stack_peers: [0; 32],
            reserved: 0,
            generation: GENERATION,
            pod: VifEntry::text("default/pod"),
            pod_uid: VifEntry::text(""),
            ifname: VifEntry::text("eth0"),
        };
        programs.vifs.insert(&VifKey { ifindex }, &vif, 0)?;
        let endpoint = Endpoint { ifindex, mac, reserved: [0; 2] };
        if has & VifEntry::HAS_IPV4 != 0 {
            programs.endpoints.insert(&EndpointKey::ipv4(v4), &endpoint, 0)?;
        }
        if has & VifEntry::HAS_IPV6 != 0 {
            programs.endpoints.insert(&EndpointKey::ipv6(v6), &endpoint, 0)?;
        }
        Ok(())
    }
}

/// Runs a closure with newly loaded programs on a node that has the pods.
pub fn with_pods<T: Send>(run: impl FnOnce(&mut Programs) -> anyhow::Result<T> + Send) -> anyhow::Result<T> {
    let interfaces: Vec<u32> = PODS.iter().map(|pod| pod.ifindex).chain([STRANGER]).collect();
    with_programs(&interfaces, |programs| {
        PODS.iter().try_for_each(|pod| pod.insert(programs))?;
        programs.start_counting(STRANGER)?;
        programs.start_counting(UNKNOWN)?;
        run(programs)
    })
}

/// Runs all rows; the error lists every row that fails.
pub fn check(program: Program, rows: &[Row]) -> anyhow::Result<()> {
    check_with_flows(program, &[], rows)
}

/// The same with entries in `STACK_FLOWS`.
pub fn check_with_flows(program: Program, flows: &[FlowKey], rows: &[Row]) -> anyhow::Result<()> {
    check_on(program, |programs| flows.iter().try_for_each(|flow| record(programs, flow)), rows)
}

/// The same on a node that a closure prepares.
pub fn check_on(
    program: Program,
    prepare: impl FnOnce(&mut Programs) -> anyhow::Result<()> + Send,
    rows: &[Row],
) -> anyhow::Result<()> {
    ensure!(!rows.is_empty(), "the table is empty");
    with_pods(|programs| {
        prepare(programs)?;
        let mut failed = String::new();
        for row in rows {
            if let Err(error) = row.check(programs, program) {
                writeln!(failed, "\n{}, \"{}\": {error:#}", program.name(), row.about)?;
            }
        }
        ensure!(failed.is_empty(), "{failed}");
        Ok(())
    })
}

/// Gives the node its addresses and routes to the world, by `ONLY_V4`'s interface, and lets it forward.
pub fn add_routes(_: &mut Programs) -> anyhow::Result<()> {
    let [a, b, c, d] = NODE_V4;
    let (node6, link_local) = (Ipv6Addr::from(NODE_V6), Ipv6Addr::from(GATEWAY_IPV6));
    let (host, uplink) = (format!("pod{}", A.ifindex), format!("pod{}", ONLY_V4.ifindex));
    for line in [
        "ip link set lo up".to_owned(),
        format!("ip link set peer{} up", ONLY_V4.ifindex),
        format!("ip link set peer{} up", A.ifindex),
        format!("ip link set {host} up"),
        format!("ip link set {uplink} up"),
        format!("ip addr add {a}.{b}.{c}.{d}/24 dev {uplink}"),
        format!("ip addr add {node6}/64 dev {uplink} nodad"),
        format!("ip addr add {link_local}/64 dev {host} nodad"),
        format!("ip route add default via {a}.{b}.{c}.254"),
        format!("ip route add default via 2001:db8::254 dev {uplink}"),
        "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1".to_owned(),
    ] {
        sys::run(&line)?;
    }
    Ok(())
}

/// Adds an entry to `STACK_FLOWS`, and the marks of its pods.
pub fn record(programs: &mut Programs, flow: &FlowKey) -> anyhow::Result<()> {
    for pod in PODS {
        let key = VifKey { ifindex: pod.ifindex };
        let vif: VifEntry = programs.vifs.get(&key, 0)?;
        programs.vifs.insert(&key, &VifEntry { stack_peers: [1; 32], ..vif }, 0)?;
    }
    Ok(programs.stack_flows.insert(flow, &Flow { ifindex: A.ifindex, used: 1 }, 0)?)
}

// === impl Row ===

impl Row {
    pub fn dropped(about: &'static str, ifindex: u32, packet: Vec<u8>, reason: DropReason) -> Self {
        Self::unchanged(about, ifindex, packet, TC_ACT_SHOT, Counted::Drop(reason))
    }

    /// Left to the stack.
    pub fn stack(about: &'static str, from: Pod, packet: Vec<u8>) -> Self {
        Self::unchanged(about, from.ifindex, packet, TC_ACT_UNSPEC, Counted::Egress)
    }

    /// Delivered to a pod of this node.
    pub fn delivered(about: &'static str, from: Pod, packet: Vec<u8>, to: Pod, out: Vec<u8>) -> Self {
        Self {
            about,
            skb: SkBuff::on(from.ifindex),
            packet,
            verdict: TC_ACT_REDIRECT,
            out,
            rewritten: Some(Rewritten::Delivered(to)),
            counted: vec![(from.ifindex, Counted::Egress), (to.ifindex, Counted::Ingress)],
        }
    }

    /// Returned to the pod as the gateway's answer.
    pub fn answered(about: &'static str, from: Pod, packet: Vec<u8>, out: Vec<u8>) -> Self {
        Self {
            about,
            skb: SkBuff::on(from.ifindex),
            packet,
            verdict: TC_ACT_REDIRECT,
            out,
            rewritten: Some(Rewritten::Answered(from)),
            counted: vec![(from.ifindex, Counted::Egress)],
        }
    }

    /// From the host's stack, passed on to a pod.
    pub fn enters(about: &'static str, to: Pod, packet: Vec<u8>) -> Self {
        Self::unchanged(about, to.ifindex, packet, TC_ACT_UNSPEC, Counted::Ingress)
    }

    /// The same packet, forwarded from an interface; otherwise, the host itself sends it.
    pub fn forwarded_from(mut self, ifindex: u32) -> Self {
        self.skb.ingress_ifindex = ifindex;
        self
    }

    /// Counted under another ifindex than that of the packet's interface.
    pub fn counted_for(mut self, ifindex: u32) -> Self {
        self.counted.iter_mut().for_each(|(counted_for, _)| *counted_for = ifindex);
        self
    }

    /// Segmented later (GSO), into segments of this length.
    pub fn with_gso(mut self, gso_size: u32) -> Self {
        self.skb.gso_size = gso_size;
        self
    }

    fn unchanged(about: &'static str, ifindex: u32, packet: Vec<u8>, verdict: u32, counted: Counted) -> Self {
        let out = packet.clone();
        let counted = vec![(ifindex, counted)];
        Self { about, skb: SkBuff::on(ifindex), packet, verdict, out, rewritten: None, counted }
    }

    fn check(&self, programs: &mut Programs, program: Program) -> anyhow::Result<()> {
        let mut expected = programs.counters()?;
        for (ifindex, counted) in &self.counted {
            counted.add_to(expected.entry(*ifindex).or_default(), program, self.packet.len());
        }
        let Ran { verdict, packet: out, .. } = programs.run(program, self.skb, &self.packet)?;
        let counters = programs.counters()?;
        if verdict == self.verdict && out == self.out && counters == expected {
            return self.rewritten.map_or(Ok(()), |rewritten| rewritten.check(&self.packet, &out));
        }
        let mut why = String::new();
        writeln!(why, "{}, expected {}", verdict_name(verdict), verdict_name(self.verdict))?;
        writeln!(why, "  in:\n{}", packet::hexdump(&self.packet))?;
        writeln!(why, "  out:\n{}", packet::hexdump(&out))?;
        if out != self.out {
            writeln!(why, "  expected:\n{}", packet::hexdump(&self.out))?;
        }
        why.push_str(&difference(&counters, &expected));
        Err(anyhow::Error::msg(why))
    }
}

/// The interfaces with wrong counters.
fn difference(counters: &AllCounters, expected: &AllCounters) -> String {
    let differing = counters.iter().filter(|(ifindex, counters)| expected.get(ifindex) != Some(counters));
    differing
        .map(|(ifindex, counters)| {
            let should = expected.get(ifindex).copied().unwrap_or_default();
            format!("  wrong counters of interface {ifindex}: {counters:?}\n  expected: {should:?}\n")
        })
        .collect()
}

// === impl Rewritten ===

impl Rewritten {
    /// Checks the packet that comes out against the one that went in.
    pub fn check(self, packet: &[u8], out: &[u8]) -> anyhow::Result<()> {
        let result = match self {
            Self::Delivered(to) => oracle::check_delivered(packet, out, to),
            Self::Answered(to) => oracle::check_answered(packet, out, to),
        };
        result.with_context(|| format!("wrong packet for {self:?}:\n{}", packet::hexdump(out)))
    }
}

// === impl Counted ===

impl Counted {
    /// Only the program of each direction drops packets of that direction.
    pub fn add_to(self, counters: &mut Counters, program: Program, len: usize) {
        let add = |traffic: &mut Traffic| {
            traffic.packets += 1;
            traffic.bytes += len as u64;
        };
        match self {
            Self::Egress => add(&mut counters.egress),
            Self::Ingress => add(&mut counters.ingress),
            Self::Drop(reason) => {
                let traffic = match program {
                    Program::FromPod => &mut counters.egress,
                    Program::ToPod
                    | Program::FromTunnel
                    | Program::FromUplink
                    | Program::ToTunnel
                    | Program::ToLink => &mut counters.ingress,
                };
                *drop_counter(&mut traffic.drops, reason) += 1;
            }
        }
    }
}

/// An exhaustive match: that the programs find a counter by the reason's number is what the tests check.
fn drop_counter(drops: &mut Drops, reason: DropReason) -> &mut u64 {
    match reason {
        DropReason::NoVif => &mut drops.no_vif,
        DropReason::SpoofedMac => &mut drops.spoofed_mac,
        DropReason::SpoofedIpv4 => &mut drops.spoofed_ipv4,
        DropReason::SpoofedIpv6 => &mut drops.spoofed_ipv6,
        DropReason::SpoofedArp => &mut drops.spoofed_arp,
        DropReason::SpoofedNd => &mut drops.spoofed_nd,
        DropReason::Malformed => &mut drops.malformed,
        DropReason::Ethertype => &mut drops.ethertype,
        DropReason::Vlan => &mut drops.vlan,
        DropReason::Multicast => &mut drops.multicast,
        DropReason::Martian => &mut drops.martian,
        DropReason::NotToGateway => &mut drops.not_to_gateway,
        DropReason::NotForPod => &mut drops.not_for_pod,
        DropReason::DhcpServer => &mut drops.dhcp_server,
        DropReason::ForgedIcmp => &mut drops.forged_icmp,
        DropReason::Tunnel => &mut drops.tunnel,
        DropReason::TunnelOuter => &mut drops.tunnel_outer,
        DropReason::TunnelInner => &mut drops.tunnel_inner,
        DropReason::TunnelDestination => &mut drops.tunnel_destination,
        DropReason::TunnelNested => &mut drops.tunnel_nested,
        DropReason::PolicyEgress => &mut drops.policy_egress,
        DropReason::PolicyIngress => &mut drops.policy_ingress,
        DropReason::PeerUnknown => &mut drops.peer_unknown,
        DropReason::PolicyUnknown => &mut drops.policy_unknown,
    }
}
