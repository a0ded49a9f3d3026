//! The packet that is being judged, and the end for which: in a map and not on the stack, so that the
//! verifier walks the code that judges once, and not once for every way that a packet can have come here.

use core::{cell::Cell, hint::black_box, mem::offset_of};

use agent_common::{
    DropReason, RingKey,
    event::direction,
    policy::{self, FragmentKey, FragmentPorts, PeerKey, Subject, ViewKey},
};
use aya_ebpf::{btf_maps::PerCpuArray, macros::btf_map};

use super::{new_view::NewView, subject::Judge};
use crate::{
    address::Address,
    clear,
    flow_key::Padded,
    headers::{ICMP, ICMPV6, Ipv4, SCTP, TCP, Transport, UDP},
    icmp,
    meta::{self, Family, Meta},
    packet::Packet,
    quote,
};

#[btf_map]
static POLICY_CASE: PerCpuArray<Case, 1> = PerCpuArray::new();

/// Cells, because the functions that share the only value of the map call each other.
#[repr(C)]
pub struct Case {
    /// Of the packet.
    pub ends: Cell<Ends>,
    /// The first eight bytes behind the IP headers; valid with [`Case::HAS_TRANSPORT`].
    transport: Cell<Transport>,
    shape: Cell<Shape>,
    /// The packet quoted in an ICMP error; valid with [`Case::HAS_QUOTE`].
    pub quote: Cell<Ends>,
    quote_transport: Cell<Transport>,
    /// A set of the flags below.
    pub flags: Cell<u32>,
    pub tcp_flags: Cell<u32>,

    /// The ends, and what judges them: an end that no policy judges, and one that is not of this node, is
    /// open.
    pub sender: Cell<End>,
    pub receiver: Cell<End>,
    pub sends: Cell<Subject>,
    pub receives: Cell<Subject>,

    /// The end that is judged.
    pub end: Cell<End>,
    pub subject: Cell<Subject>,
    /// The flow as that end sees it.
    pub view: Cell<View>,
    pub ports: Cell<[u16; 2]>,

    /// What the rules are asked.
    pub question: Cell<Question>,
    pub peer_key: Cell<Peer>,
    pub class: Cell<Class>,
    /// Not 0 if the question is about what a pod sends to an address that the host may translate, now or once
    /// its Service has another port.
    pub may_translate: Cell<u32>,
    /// The bits whose peers contain the other end, and those of them whose ports contain the packet's.
    pub peers: [Cell<u64>; 4],
    pub bits: [Cell<u64>; 4],
    /// What the rules have found, in the form of [`answer`](super::judge::answer).
    pub answer: Cell<u32>,
    pub verdict: Cell<Verdict>,
    /// The answer to the sender.
    pub sent: Cell<u32>,
    /// One of [`pair`].
    pub pair: Cell<u32>,
    /// The ends of a packet whose flow can have one entry for both.
    pub both: Cell<Both>,
    /// The entry of the flow that the packet begins.
    pub begun: Cell<NewView>,
    /// A flow that leaves its place to another one.
    pub displaced: Cell<[u64; 4]>,
    /// The place of a fragmented packet.
    pub place: Cell<RingKey>,
}

/// Where the parts of a packet are.
#[derive(Clone, Copy)]
#[repr(C)]
struct Shape {
    /// Offset of the transport header.
    payload: u32,
    /// Flag "more fragments" and offset, as in IPv4.
    fragment: u16,
    is_v6: u16,
}

/// A `FragmentKey` whose addresses are words.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Ends {
    pub source: Address,
    pub destination: Address,
    pub id: u32,
    pub protocol: Padded<u32>,
}

/// A `ViewKey` whose address is words.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct View {
    pub peer: Address,
    pub ifindex: u32,
    pub own_port: u16,
    pub peer_port: u16,
    pub protocol: Padded<u64>,
}

/// A `PeerKey` whose address is words, and padding.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Peer {
    pub address: Address,
    pub table: u32,
    pub padding: u32,
}

/// An end of a packet: a pod of this node. Aligned, as the verifier requires of words on the stack.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub struct End {
    /// The pod's host interface.
    pub ifindex: u32,
    /// One of [`direction`](agent_common::event::direction).
    pub direction: u32,
    /// Of a packet to the pod: the interface by which the packet came to this node; 0: none.
    pub via: u32,
    /// One of [`origin`].
    pub origin: u32,
    /// Not 0 if a later program can judge what goes to an address that the host translates.
    pub may_defer: u32,
    pub reserved: u32,
}

/// What is known of a flow that has one entry for both ends.
pub mod pair {
    /// Each end has an entry by itself.
    pub const NONE: u32 = 0;
    pub const NEW: u32 = 1;
    /// The entry is of an earlier flow.
    pub const REPLACED: u32 = 2;
    /// Of other rules; the sender has begun the flow.
    pub const FORWARD: u32 = 3;
    /// Of other rules; the receiver has begun the flow.
    pub const BACK: u32 = 4;
}

/// Two pods of this node that policies judge.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Both {
    /// The host interfaces of the sender and of the receiver.
    pub from: u32,
    pub to: u32,
    /// The sum of both ends'.
    pub epochs: u32,
    pub reserved: u32,
}

/// Where the other end is.
pub mod origin {
    pub const OTHER: u32 = 0;
    pub const OWN_NODE: u32 = 1;
    pub const HAIRPIN: u32 = 2;
}

/// A flow's first packet, as the rules judge it.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Question {
    /// One of [`direction`](agent_common::event::direction).
    pub direction: u32,
    pub origin: u32,
    pub may_defer: u32,
    /// The host interface of the other end's pod if that is of this node, otherwise 0.
    pub peer: u32,
    /// The destination's.
    pub port: u16,
    pub protocol: u8,
    /// Whether the flow is known: one of the constants below.
    pub known: u8,
}

/// What is known of the other end.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Class {
    pub class: u32,
    pub is_pod: u32,
    /// 0 if the address may be that of a pod of unknown labels.
    pub is_known: u32,
    pub origin: u32,
    /// The answer to a packet that passes.
    pub deferred: u32,
}

/// Why the rules deny a packet.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Verdict {
    /// A [`DropReason`].
    pub reason: u32,
    pub ruleset: u32,
    pub class: u32,
    /// 1 and the bit's number; 0: no bit.
    pub bit: u32,
}

const _: () = assert!(size_of::<Ends>() == size_of::<FragmentKey>());
const _: () = assert!(offset_of!(Ends, source) == offset_of!(FragmentKey, source));
const _: () = assert!(offset_of!(Ends, destination) == offset_of!(FragmentKey, destination));
const _: () = assert!(offset_of!(Ends, id) == offset_of!(FragmentKey, id));
const _: () = assert!(offset_of!(Ends, protocol) == offset_of!(FragmentKey, protocol));
const _: () = assert!(size_of::<FragmentPorts>() == size_of::<[u16; 2]>());
const _: () = assert!(size_of::<View>() == size_of::<ViewKey>());
const _: () = assert!(offset_of!(View, peer) == offset_of!(ViewKey, peer));
const _: () = assert!(offset_of!(View, ifindex) == offset_of!(ViewKey, ifindex));
const _: () = assert!(offset_of!(View, own_port) == offset_of!(ViewKey, own_port));
const _: () = assert!(offset_of!(View, peer_port) == offset_of!(ViewKey, peer_port));
const _: () = assert!(offset_of!(View, protocol) == offset_of!(ViewKey, protocol));
const _: () = assert!(offset_of!(Peer, address) == offset_of!(PeerKey, address));
const _: () = assert!(offset_of!(Peer, table) == offset_of!(PeerKey, table));

/// The case of this CPU.
#[inline(always)]
pub fn get() -> Option<&'static Case> {
    // SAFETY: the only value of an array, valid whatever its bytes are, but for `Family` and the like, which
    // are not in it. The value is this CPU's, and with BH disabled, no other tc program runs there.
    POLICY_CASE.get_ptr(0).map(|case| unsafe { &*case })
}

/// What the rules have found, for a record of a packet with a reason: ruleset, class and bit.
#[inline(always)]
pub fn verdict(reason: u32) -> (u32, u32, u32) {
    match get().filter(|_| is_of_policy(reason)).map(|case| case.verdict.get()) {
        Some(Verdict { ruleset, class, bit, .. }) => (ruleset, class, bit),
        None => (0, 0, 0),
    }
}

#[inline(always)]
pub fn is_of_policy(reason: u32) -> bool {
    const OF_POLICY: [DropReason; 4] = [
        DropReason::PolicyEgress,
        DropReason::PolicyIngress,
        DropReason::PeerUnknown,
        DropReason::PolicyUnknown,
    ];
    OF_POLICY.iter().any(|it| *it as u32 == reason)
}

/// Arithmetic instead of a branch: the verifier would walk the rest once for each outcome.
#[inline(always)]
fn subject(judge: Judge) -> Subject {
    let unknown = u32::from(!judge.is_known()) * Case::UNKNOWN_FLAG;
    let subject = judge.unpack();
    Subject { flags: subject.flags | unknown, ..subject }
}

/// The other fields count for nothing then: they stay as they are.
#[inline(always)]
fn leave_out(subject: &Cell<Subject>) {
    subject.set(Subject { ingress: Subject::OPEN, egress: Subject::OPEN, ..subject.get() });
}

/// Source and destination port. An echo has its identifier at the end that asks, and the next number at the
/// other end: whatever the identifiers are, no echo has the ports of one that the other end asks, nor those
/// of a packet without ports, which are zeros.
#[inline(always)]
fn ports(protocol: u8, transport: Transport) -> [u16; 2] {
    match (protocol, transport.icmp_type()) {
        (TCP | UDP | SCTP, _) => transport.ports(),
        (ICMP, 8) | (ICMPV6, 128) => [transport.echo_id(), transport.echo_id().wrapping_add(1)],
        (ICMP, 0) | (ICMPV6, 129) => [transport.echo_id().wrapping_add(1), transport.echo_id()],
        _ => [0; 2],
    }
}

/// The first eight bytes of TCP, UDP, SCTP and ICMP contain what tells flows apart.
#[inline(always)]
fn has_ports(protocol: u8) -> bool {
    matches!(protocol, TCP | UDP | SCTP)
}

// === impl Case ===

impl Case {
    pub const HAS_TRANSPORT: u32 = 1;
    pub const HAS_QUOTE: u32 = 2;
    pub const FIRST_FRAGMENT: u32 = 4;
    pub const LATER_FRAGMENT: u32 = 8;

    /// In the flags of an end of which it is not known what judges it; in no row.
    const UNKNOWN_FLAG: u32 = 1 << 31;

    /// Notes a packet.
    #[inline(always)]
    pub fn note(&self, meta: &Meta) {
        self.pair.set(pair::NONE);
        self.ends.set(Ends::new(meta.source, meta.destination, meta.protocol));
        self.transport.set(meta.first_bytes());
        self.shape.set(Shape {
            payload: meta.payload as u32,
            fragment: meta.fragment() as u16,
            is_v6: meta.family as u16,
        });
    }

    /// Reads what tells whether the noted packet, a plain one, belongs to a known flow.
    #[inline(always)]
    pub fn fill_plain(&self, packet: &Packet) {
        let payload = self.shape.get().payload as usize;
        let has_transport = payload + size_of::<Transport>() <= packet.len() as usize;
        let is_tcp = has_transport && self.ends.get().protocol.byte() == TCP;
        self.tcp_flags.set(if is_tcp { meta::tcp_flags(packet, payload).into() } else { 0 });
        self.flags.set(if has_transport { Self::HAS_TRANSPORT } else { 0 });
    }

    /// Reads what else is to be known of the noted packet.
    #[inline(always)]
    pub fn fill(&self, packet: &Packet) {
        let (Shape { payload, fragment, is_v6 }, mut ends) = (self.shape.get(), self.ends.get());
        let (payload, is_v6, mut flags) = (payload as usize, is_v6 != 0, 0);
        let is_later = fragment & Ipv4::OFFSET != 0;
        if fragment != 0 {
            flags = if is_later { Self::LATER_FRAGMENT } else { Self::FIRST_FRAGMENT };
            ends.id = u32::from_ne_bytes(meta::fragment_id(packet, payload, is_v6));
            self.ends.set(ends);
        }
        self.tcp_flags.set(0);
        if payload + size_of::<Transport>() <= packet.len() as usize && !is_later {
            flags |= Self::HAS_TRANSPORT;
            let protocol = ends.protocol.byte();
            if protocol == TCP {
                self.tcp_flags.set(meta::tcp_flags(packet, payload).into());
            }
            let family = if is_v6 { Family::Ipv6 } else { Family::Ipv4 };
            if icmp::is_error_of(family, protocol, self.transport.get())
                && self.fill_quote(packet, family, payload + icmp::ERROR)
            {
                flags |= Self::HAS_QUOTE;
            }
        }
        self.flags.set(flags);
    }

    #[inline(always)]
    pub fn set_sender(&self, end: End, sends: Judge) {
        self.sender.set(end);
        self.sends.set(subject(sends));
    }

    #[inline(always)]
    pub fn set_receiver(&self, end: End, receives: Judge) {
        self.receiver.set(end);
        self.receives.set(subject(receives));
    }

    /// No policy judges the sender.
    #[inline(always)]
    pub fn without_sender(&self) {
        leave_out(&self.sends);
    }

    /// No policy judges a receiver.
    #[inline(always)]
    pub fn without_receiver(&self) {
        leave_out(&self.receives);
    }

    #[inline(always)]
    pub fn is_fragment_v6(&self) -> bool {
        let Shape { fragment, is_v6, .. } = self.shape.get();
        fragment != 0 && is_v6 != 0
    }

    #[inline(always)]
    fn fill_quote(&self, packet: &Packet, family: Family, at: usize) -> bool {
        let Some(quote) = quote::find(packet, family, at) else { return false };
        self.quote.set(Ends::new(quote.source, quote.destination, quote.protocol));
        let Some(transport) = quote.transport(packet) else { return false };
        self.quote_transport.set(transport);
        true
    }

    /// The end that is judged from now on.
    #[inline(always)]
    pub fn turn_to(&self, is_receiver: bool) {
        let (end, subject) =
            if is_receiver { (&self.receiver, &self.receives) } else { (&self.sender, &self.sends) };
        self.end.set(end.get());
        self.subject.set(subject.get());
    }

    /// Whether it is not known what judges the end that is judged.
    #[inline(always)]
    pub fn is_unknown(&self) -> bool {
        self.subject.get().flags & Self::UNKNOWN_FLAG != 0
    }

    #[inline(always)]
    pub fn has(&self, flag: u32) -> bool {
        self.flags.get() & flag != 0
    }

    /// The packet's ports; `None` if the packet should have ports and does not contain them.
    #[inline(always)]
    pub fn read_ports(&self) -> Option<[u16; 2]> {
        let protocol = self.ends.get().protocol.byte();
        match self.has(Self::HAS_TRANSPORT) {
            true => Some(ports(protocol, self.transport.get())),
            false if has_ports(protocol) => None,
            false => Some([0; 2]),
        }
    }

    /// The ports of the packet quoted in an ICMP error.
    #[inline(always)]
    pub fn quoted_ports(&self, protocol: u8) -> [u16; 2] {
        ports(protocol, self.quote_transport.get())
    }

    /// Whether the packet is an ICMP message other than an echo request.
    #[inline(always)]
    pub fn is_icmp_but_no_request(&self) -> bool {
        let kind = if self.has(Self::HAS_TRANSPORT) { self.transport.get().icmp_type() } else { 0 };
        match self.ends.get().protocol.byte() {
            ICMP => kind != 8,
            ICMPV6 => kind != 128,
            _ => false,
        }
    }

    /// The reason of a denied packet, and where to count it.
    #[inline(always)]
    pub fn reason(&self) -> DropReason {
        // `black_box`: LLVM would remove the check.
        let number = black_box(self.verdict.get().reason);
        if (number as usize) < DropReason::ALL.len() {
            // SAFETY: the reasons have the numbers from 0 on, without a gap (asserted in agent-common).
            unsafe { core::mem::transmute::<u32, DropReason>(number) }
        } else {
            DropReason::PolicyUnknown
        }
    }

    #[inline(always)]
    pub fn fragment_key(&self) -> &FragmentKey {
        // SAFETY: the same bytes (asserted above), valid whatever they are; nothing writes to them while
        // they are a key.
        unsafe { &*self.ends.as_ptr().cast() }
    }

    #[inline(always)]
    pub fn fragment_ports(&self) -> &FragmentPorts {
        // SAFETY: as for `fragment_key`.
        unsafe { &*self.ports.as_ptr().cast() }
    }

    #[inline(always)]
    pub fn place_key(&self) -> &RingKey {
        // SAFETY: as for `fragment_key`; the same type.
        unsafe { &*self.place.as_ptr() }
    }

    #[inline(always)]
    pub fn view_key(&self) -> &ViewKey {
        // SAFETY: as for `fragment_key`.
        unsafe { &*self.view.as_ptr().cast() }
    }

    #[inline(always)]
    pub fn view_words(&self) -> [u64; 4] {
        // SAFETY: the same size (asserted above), valid whatever the bytes are.
        unsafe { core::mem::transmute::<View, [u64; 4]>(self.view.get()) }
    }

    #[inline(always)]
    pub fn begun(&self) -> &policy::View {
        // SAFETY: the same bytes (asserted in `flows`), valid whatever they are.
        unsafe { &*self.begun.as_ptr().cast() }
    }

    #[inline(always)]
    pub fn displaced_key(&self) -> &ViewKey {
        // SAFETY: as for `fragment_key`.
        unsafe { &*self.displaced.as_ptr().cast() }
    }

    #[inline(always)]
    pub fn peer_key(&self) -> &PeerKey {
        // SAFETY: as for `fragment_key`.
        unsafe { &*self.peer_key.as_ptr().cast() }
    }
}

// === impl End ===

impl End {
    #[inline(always)]
    pub fn sender(ifindex: u32) -> Self {
        let direction = direction::EGRESS;
        Self { ifindex, direction, via: 0, origin: origin::OTHER, may_defer: clear::zero(), reserved: 0 }
    }

    #[inline(always)]
    pub fn receiver(ifindex: u32, via: u32) -> Self {
        let direction = direction::INGRESS;
        Self { ifindex, direction, via, origin: origin::OTHER, may_defer: clear::zero(), reserved: 0 }
    }
}

// === impl Both ===

impl Both {
    #[inline(always)]
    pub fn is_from_low(self) -> bool {
        self.from < self.to
    }

    /// The higher interface.
    #[inline(always)]
    pub fn high(self) -> u32 {
        self.from.max(self.to)
    }
}

// === impl Question ===

impl Question {
    /// The packet begins a flow.
    pub const NEW: u8 = 0;
    /// The packet is of the end that has begun the flow.
    pub const FORWARD: u8 = 1;
    pub const BACK: u8 = 2;
    /// The packet begins a flow, whose key an earlier one still has.
    pub const REPLACES: u8 = 4;

    #[inline(always)]
    pub fn is_of_known_flow(&self) -> bool {
        self.known & (Self::FORWARD | Self::BACK) != 0
    }
}

// === impl Ends ===

impl Ends {
    #[inline(always)]
    fn new(source: Address, destination: Address, protocol: u8) -> Self {
        Self { source, destination, id: 0, protocol: protocol.into() }
    }
}
