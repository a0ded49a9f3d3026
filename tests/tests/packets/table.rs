//! The tables' rows, the pods in them, and how a row is judged.

use std::{fmt::Write as _, net::Ipv6Addr};

use agent_common::{
    Counters, DropReason, Endpoint, EndpointKey, Flow, FlowKey, GATEWAY_MAC, Traffic, VifEntry, VifKey,
};
use anyhow::ensure;
use ferrule_tests::{
    packet::{self, IPV4, IPV6, Ipv4Address, Ipv6Address, Mac},
    program::{
        AllCounters, Beside, Program, Programs, Ran, TC_ACT_REDIRECT, TC_ACT_SHOT, TC_ACT_UNSPEC,
        verdict_name, with_programs,
    },
};

/// A pod of the node, as the maps know it.
#[derive(Debug, Clone, Copy)]
pub struct Pod {
    pub ifindex: u32,
    pub mac: Mac,
    /// Zeros, if it has none; likewise below.
    pub v4: Ipv4Address,
    pub v6: Ipv6Address,
    pub has: u32,
}

/// A packet, and all that is to come of it.
pub struct Row {
    about: &'static str,
    beside: Beside,
    packet: Vec<u8>,
    verdict: u32,
    /// The packet that comes out.
    out: Vec<u8>,
    /// What is counted, and for which interface. Nothing else may be.
    counted: Vec<(u32, Counted)>,
}

/// One packet, counted.
#[derive(Debug, Clone, Copy)]
pub enum Counted {
    Egress,
    Ingress,
    Drop(DropReason),
}

/// The pod that sends, and its sibling.
pub const A: Pod = pod(101, 5, VifEntry::HAS_IPV4 | VifEntry::HAS_IPV6);
pub const B: Pod = pod(102, 6, VifEntry::HAS_IPV4 | VifEntry::HAS_IPV6);
pub const ONLY_V4: Pod = pod(103, 7, VifEntry::HAS_IPV4);
pub const ONLY_V6: Pod = pod(104, 8, VifEntry::HAS_IPV6);
/// An interface that has counters, and no entry in `VIFS`.
pub const STRANGER: u32 = 105;
/// What has no entry is counted here.
pub const UNKNOWN: u32 = 0;

/// The node's own address, and somebody's on the Internet.
pub const NODE_V4: Ipv4Address = [192, 0, 2, 1];
pub const NODE_V6: Ipv6Address = v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1]);
pub const FAR_V4: Ipv4Address = [203, 0, 113, 9];
pub const FAR_V6: Ipv6Address = v6([0x2001, 0xdb8, 0xff, 0, 0, 0, 0, 9]);
/// Nobody's MAC.
pub const OTHER_MAC: Mac = [2, 0, 0, 0, 0, 0x99];

pub const PODS: [Pod; 4] = [A, B, ONLY_V4, ONLY_V6];

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
    /// The link-local address that its kernel makes of the MAC (RFC 4291, appendix A).
    pub fn link_local(&self) -> Ipv6Address {
        let [a, b, c, d, e, f] = self.mac;
        [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f]
    }

    /// A frame of its own, to the gateway.
    pub fn sends(&self, ethertype: u16, payload: &[u8]) -> Vec<u8> {
        packet::frame(GATEWAY_MAC, self.mac, ethertype, payload)
    }

    pub fn sends_v4(&self, packet: &[u8]) -> Vec<u8> {
        self.sends(IPV4, packet)
    }

    pub fn sends_v6(&self, packet: &[u8]) -> Vec<u8> {
        self.sends(IPV6, packet)
    }

    /// A frame from the gateway to it.
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
            reserved: [0; 2],
            pod: VifEntry::text("default/pod"),
            pod_uid: VifEntry::text(""),
            ifname: VifEntry::text("eth0"),
        };
        programs.vifs.insert(VifKey { ifindex }, vif, 0)?;
        let endpoint = Endpoint { ifindex, mac, reserved: [0; 2] };
        if has & VifEntry::HAS_IPV4 != 0 {
            programs.endpoints.insert(EndpointKey::ipv4(v4), endpoint, 0)?;
        }
        if has & VifEntry::HAS_IPV6 != 0 {
            programs.endpoints.insert(EndpointKey::ipv6(v6), endpoint, 0)?;
        }
        Ok(())
    }
}

/// Does something with freshly loaded programs on a node that has the pods.
pub fn with_pods<T: Send>(run: impl FnOnce(&mut Programs) -> anyhow::Result<T> + Send) -> anyhow::Result<T> {
    let interfaces: Vec<u32> = PODS.iter().map(|pod| pod.ifindex).chain([STRANGER]).collect();
    with_programs(&interfaces, |programs| {
        PODS.iter().try_for_each(|pod| pod.insert(programs))?;
        programs.start_counting(STRANGER)?;
        programs.start_counting(UNKNOWN)?;
        run(programs)
    })
}

/// Runs every row, and tells of all that fail.
pub fn check(program: Program, rows: &[Row]) -> anyhow::Result<()> {
    check_beside(program, &[], rows)
}

/// The same while the stack has some flows in hand.
pub fn check_beside(program: Program, flows: &[FlowKey], rows: &[Row]) -> anyhow::Result<()> {
    ensure!(!rows.is_empty(), "an empty table");
    with_pods(|programs| {
        for flow in flows {
            programs.nat_flows.insert(flow, Flow { ifindex: A.ifindex }, 0)?;
        }
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

// === impl Row ===

impl Row {
    /// Dropped for a reason.
    pub fn dropped(about: &'static str, ifindex: u32, packet: Vec<u8>, reason: DropReason) -> Self {
        Self::unchanged(about, ifindex, packet, TC_ACT_SHOT, Counted::Drop(reason))
    }

    /// From a pod to the stack.
    pub fn stack(about: &'static str, from: Pod, packet: Vec<u8>) -> Self {
        Self::unchanged(about, from.ifindex, packet, TC_ACT_UNSPEC, Counted::Egress)
    }

    /// From a pod to a pod of this node.
    pub fn delivered(about: &'static str, from: Pod, packet: Vec<u8>, to: Pod, out: Vec<u8>) -> Self {
        Self {
            about,
            beside: Beside::on(from.ifindex),
            packet,
            verdict: TC_ACT_REDIRECT,
            out,
            counted: vec![(from.ifindex, Counted::Egress), (to.ifindex, Counted::Ingress)],
        }
    }

    /// From a pod, and back to it as the gateway's answer.
    pub fn answered(about: &'static str, from: Pod, packet: Vec<u8>, out: Vec<u8>) -> Self {
        let counted = vec![(from.ifindex, Counted::Egress)];
        Self { about, beside: Beside::on(from.ifindex), packet, verdict: TC_ACT_REDIRECT, out, counted }
    }

    /// From the host's stack into a pod.
    pub fn enters(about: &'static str, to: Pod, packet: Vec<u8>) -> Self {
        Self::unchanged(about, to.ifindex, packet, TC_ACT_UNSPEC, Counted::Ingress)
    }

    /// Counted for another interface than the one it is on.
    pub fn counted_for(mut self, ifindex: u32) -> Self {
        self.counted.iter_mut().for_each(|(counted_for, _)| *counted_for = ifindex);
        self
    }

    /// To be cut into segments later.
    pub fn segmented_later(mut self, gso_size: u32) -> Self {
        self.beside.gso_size = gso_size;
        self
    }

    fn unchanged(about: &'static str, ifindex: u32, packet: Vec<u8>, verdict: u32, counted: Counted) -> Self {
        let out = packet.clone();
        Self { about, beside: Beside::on(ifindex), packet, verdict, out, counted: vec![(ifindex, counted)] }
    }

    fn check(&self, programs: &mut Programs, program: Program) -> anyhow::Result<()> {
        let mut expected = programs.counters()?;
        for (ifindex, counted) in &self.counted {
            counted.add_to(expected.entry(*ifindex).or_default(), self.packet.len());
        }
        let Ran { verdict, packet: out, .. } = programs.run(program, self.beside, &self.packet)?;
        let counters = programs.counters()?;
        if verdict == self.verdict && out == self.out && counters == expected {
            return Ok(());
        }
        let mut why = String::new();
        writeln!(why, "{}, should be {}", verdict_name(verdict), verdict_name(self.verdict))?;
        writeln!(why, "  in:\n{}", packet::hexdump(&self.packet))?;
        writeln!(why, "  out:\n{}", packet::hexdump(&out))?;
        if out != self.out {
            writeln!(why, "  should be:\n{}", packet::hexdump(&self.out))?;
        }
        why.push_str(&difference(&counters, &expected));
        Err(anyhow::Error::msg(why))
    }
}

/// The interfaces whose counters are not what they should be.
fn difference(counters: &AllCounters, expected: &AllCounters) -> String {
    let differing = counters.iter().filter(|(ifindex, counters)| expected.get(ifindex) != Some(counters));
    differing
        .map(|(ifindex, counters)| {
            let should = expected.get(ifindex).copied().unwrap_or_default();
            format!("  interface {ifindex} has {counters:?}\n  and should have {should:?}\n")
        })
        .collect()
}

// === impl Counted ===

impl Counted {
    pub fn add_to(self, counters: &mut Counters, len: usize) {
        let add = |traffic: &mut Traffic| {
            traffic.packets += 1;
            traffic.bytes += len as u64;
        };
        match self {
            Self::Egress => add(&mut counters.egress),
            Self::Ingress => add(&mut counters.ingress),
            Self::Drop(reason) => *drop_counter(counters, reason) += 1,
        }
    }
}

/// Spelled out: the programs find a counter by the reason's number, which is what is tested.
fn drop_counter(counters: &mut Counters, reason: DropReason) -> &mut u64 {
    let drops = &mut counters.drops;
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
    }
}
