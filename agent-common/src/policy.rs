//! Keys and values of the maps of policy: `PEERS`, `BLOCKS`, `RULESETS`, `RULES`, `NAMED` and `PORTS`, which
//! the agent writes, and `POLICY_FLOWS`, `POLICY_PENDING`, `POLICY_PLACES`, `FRAGMENTS` and
//! `FRAGMENT_PLACES`, which the programs write; and what `VIFS` says of policies.
//!
//! The crate `policy/` compiles policies into these rows, and documents what classes and rulesets are.

/// A set of the 256 bits of a ruleset: bit `n` is bit `n % 64` of word `n / 64`.
pub type Bits = [u64; 4];

/// Ranges in a [`Ruleset`].
pub const MAX_RANGES: usize = 24;

/// Key of `PEERS`: an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(C)]
pub struct PeerKey {
    /// IPv6, or IPv4-mapped IPv6 (RFC 4291, 2.5.5.2) for IPv4.
    pub address: [u8; 16],
    /// 0 or 1: a restarted agent fills the other table, and switches one subject after the other.
    pub table: u32,
}

/// Value of `PEERS`: what is known of an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Peer {
    /// The class, blocks included.
    pub class: u32,
    /// A set of the flags below; none for another node's address.
    pub flags: u32,
}

/// Key of `BLOCKS`: a prefix within a table. A look-up finds the longest one that contains an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(C)]
pub struct BlockKey {
    /// Bits of `table` and `address` that count: 32 and those of the prefix (of IPv4: and 96).
    pub prefix_len: u32,
    /// As in [`PeerKey`], and [`BlockKey::IPV4`] of a prefix of IPv4: a look-up of an IPv4 address does not
    /// find `::/0`.
    pub table: u32,
    /// As in [`PeerKey`], with zeros behind the prefix.
    pub address: [u8; 16],
}

/// Value of `RULESETS`: the rules that judge one direction of subjects with the same policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Ruleset {
    /// The bits with any peer.
    pub any: Bits,
    /// The bits with any pod as peer.
    pub any_pod: Bits,
    /// The bits that deny or pass pods by labels: they deny an address that may be a pod of unknown labels.
    pub unknown: Bits,
    /// The bits with any port.
    pub any_port: Bits,
    /// The bits that accept.
    pub accept: Bits,
    /// The bits that pass to the next tier. What neither accepts nor passes denies.
    pub pass: Bits,
    /// The bits of the admin tier.
    pub admin: Bits,
    /// The bits of the baseline tier. What is in neither tier is of NetworkPolicies.
    pub baseline: Bits,
    /// A set of the flags below.
    pub flags: u32,
    /// How many of `ranges` count.
    pub used: u32,
    /// Disjoint.
    pub ranges: [PortRange; MAX_RANGES],
}

/// Ports of one protocol, and the bits that they match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PortRange {
    /// The bits.
    pub bits: Bits,
    /// The first port, in host order.
    pub first: u16,
    /// The last port, in host order.
    pub last: u16,
    /// As in the IP header.
    pub protocol: u8,
    /// Zero.
    pub reserved: [u8; 3],
}

/// Key of `RULES`. The value is the bits whose peers contain the class; a missing row means
/// [`Ruleset::any`], and [`Ruleset::any_pod`] for a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(C)]
pub struct RuleKey {
    pub ruleset: u32,
    /// Of the peer.
    pub class: u32,
}

/// Key of `NAMED`. The value is the bits with a port name that means this port at destinations of the class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(C)]
pub struct NamedKey {
    pub ruleset: u32,
    /// Of the destination.
    pub class: u32,
    /// The destination port, in host order.
    pub port: u16,
    /// As in the IP header.
    pub protocol: u8,
    /// Zero.
    pub reserved: u8,
}

/// Key of `PORTS`: a prefix of ports. The value is the bits whose ports contain the prefix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(C)]
pub struct PortKey {
    /// Bits of the other fields that count: 48 and those of the port.
    pub prefix_len: u32,
    pub ruleset: u32,
    /// As in the IP header.
    pub protocol: u8,
    /// Zero.
    pub reserved: u8,
    /// In network order, with zeros behind the prefix.
    pub port: [u8; 2],
}

/// What judges a pod's packets: in `VIFS` as a [`PackedSubject`]. One store switches both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Subject {
    /// Judges what the pod receives: a key of `RULESETS`, or [`Subject::OPEN`] if no policy does.
    pub ingress: u32,
    /// Judges what the pod sends.
    pub egress: u32,
    /// Which rows of `PEERS` and `BLOCKS` to read: 0 or 1.
    pub table: u32,
    /// Another one whenever a live flow may be judged otherwise; at most [`Subject::LAST_EPOCH`].
    pub epoch: u32,
    /// A set of the flags below.
    pub flags: u32,
}

/// A [`Subject`] as it is in `VIFS`: one word, so that every packet is judged by the subject before a change
/// or by the one after. All zeros: nothing is known of the pod, and nothing passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct PackedSubject {
    /// [`Subject::ingress`]: the number in its table, or [`PackedSubject::OPEN`], and the table in the
    /// highest bit.
    pub ingress: u16,
    /// [`Subject::egress`], in the same way.
    pub egress: u16,
    /// [`Subject::epoch`], and [`Subject::AUDIT`] in the highest bit.
    pub epoch: u32,
}

/// The argument of the program `set_subject`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SubjectChange {
    /// Zeros, in the place of an Ethernet header: the kernel refuses a short packet of a protocol that it
    /// knows.
    pub header: [u8; 16],
    /// The pod's host interface.
    pub ifindex: u32,
    /// Zero.
    pub reserved: u32,
    pub subject: PackedSubject,
}

/// Key of `POLICY_FLOWS` and `POLICY_PENDING`: a flow as one of its pods sees it. Two pods of this node have
/// two entries for a flow between them, and neither lets anything in at the other; or one entry, if policies
/// judge both, and packets go past the stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(C, align(8))]
pub struct ViewKey {
    /// The other end's address in the packets that the pod's interface sees, as in [`PeerKey`].
    pub peer: [u8; 16],
    /// Index of the pod's host interface; of an entry for both ends, the lower one, and [`ViewKey::PAIR`].
    pub ifindex: u32,
    /// The pod's port, in host order; 0 without ports. Of an echo: its identifier if the pod has asked,
    /// otherwise the next number, and 0 after the last one.
    pub own_port: u16,
    /// The other end's port, in the same way.
    pub peer_port: u16,
    /// IPv4 protocol or IPv6 next header.
    pub protocol: u8,
    /// Zero.
    pub reserved: [u8; 7],
}

/// Value of `POLICY_FLOWS`, whose flows both ends have used, and of `POLICY_PENDING`, whose flows only one
/// end has, or the other one once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct View {
    /// Time of the last packet, in jiffies since boot.
    pub used: u64,
    /// Of [`Subject::epoch`] when the flow was judged; of an entry for both ends, the sum of both.
    pub epoch: u32,
    /// Index of the host interface of the other end's pod if that pod is of this node, otherwise 0. Unlike
    /// the address, source NAT does not change the interface.
    pub peer: u32,
    /// A set of the flags below.
    pub flags: u8,
    /// Not 0 after a packet of the end that did not begin the flow.
    pub answered: u8,
    /// TCP flags with which the pod has closed the flow: FIN 1, RST 4.
    pub closed_by_pod: u8,
    /// TCP flags with which the other end has closed the flow.
    pub closed_by_peer: u8,
    /// Zero.
    pub reserved: u32,
}

/// Key of `FRAGMENTS`: a packet that has been fragmented.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(C, align(8))]
pub struct FragmentKey {
    /// As in [`PeerKey`].
    pub source: [u8; 16],
    /// As in [`PeerKey`].
    pub destination: [u8; 16],
    /// The packet's identification, as in the header.
    pub id: [u8; 4],
    /// IPv4 protocol or IPv6 next header.
    pub protocol: u8,
    /// Zero.
    pub reserved: [u8; 3],
}

/// Value of `FRAGMENTS`: what only the first fragment contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct FragmentPorts {
    /// In host order, as in [`ViewKey`].
    pub source_port: u16,
    /// In host order.
    pub destination_port: u16,
}

// A change of these sizes is a change of the ABI.
const _: () = assert!(size_of::<ViewKey>() == 32);
const _: () = assert!(size_of::<View>() == 24);
const _: () = assert!(size_of::<FragmentKey>() == 40);
const _: () = assert!(size_of::<FragmentPorts>() == 4);
const _: () = assert!(size_of::<PeerKey>() == 20);
const _: () = assert!(size_of::<Peer>() == 8);
const _: () = assert!(size_of::<BlockKey>() == 24);
const _: () = assert!(size_of::<PortRange>() == 40);
const _: () = assert!(size_of::<Ruleset>() == 8 * 32 + 8 + MAX_RANGES * 40);
const _: () = assert!(size_of::<RuleKey>() == 8);
const _: () = assert!(size_of::<NamedKey>() == 12);
const _: () = assert!(size_of::<PortKey>() == 12);
const _: () = assert!(size_of::<Subject>() == 20);
const _: () = assert!(size_of::<PackedSubject>() == 8);
const _: () = assert!(size_of::<SubjectChange>() == 32);

// === impl Peer ===

impl Peer {
    /// The address is a pod's.
    pub const POD: u32 = 1;
    /// The address is a Service's: the host translates packets to it, which are judged afterwards.
    pub const SERVICE: u32 = 2;
    /// The address is one of this node.
    pub const OWN_NODE: u32 = 4;
}

// === impl BlockKey ===

impl BlockKey {
    /// Added to the table's number for IPv4.
    pub const IPV4: u32 = 2;
}

// === impl Ruleset ===

impl Ruleset {
    /// A NetworkPolicy isolates the subjects in this direction.
    pub const ISOLATES: u32 = 1;
    /// `NAMED` has rows of the ruleset.
    pub const HAS_NAMES: u32 = 2;
    /// The ports are in `PORTS`, because they are too many for `ranges`.
    pub const HAS_PORTS: u32 = 4;
}

// === impl ViewKey ===

impl ViewKey {
    /// Of [`ViewKey::ifindex`]: the entry stands for both ends of a flow between two pods of this node.
    pub const PAIR: u32 = 1 << 31;
}

// === impl View ===

impl View {
    /// The other end has begun the flow.
    pub const BEGUN_BY_PEER: u8 = 1;
    /// This node's host has begun the flow; known by the packet's way, not by its address.
    pub const OWN_NODE: u8 = 2;
    /// The other end is the pod itself, through a Service.
    pub const HAIRPIN: u8 = 4;
    /// To an address that the host may translate: each packet is judged afterwards.
    pub const UNJUDGED: u8 = 8;
}

// === impl Subject ===

impl Subject {
    /// No policy judges; `RULESETS` has no such row.
    pub const OPEN: u32 = u32::MAX;
    /// What is denied is recorded, and passes.
    pub const AUDIT: u32 = 1;
    /// The largest number of a ruleset in its table, and the largest epoch.
    pub const LAST_RULESET: u32 = PackedSubject::OPEN as u32 - 1;
    pub const LAST_EPOCH: u32 = PackedSubject::AUDIT - 1;

    /// Whether no policy judges the pod's packets, in either direction.
    #[inline(always)]
    pub const fn is_open(&self) -> bool {
        self.ingress == Self::OPEN && self.egress == Self::OPEN
    }

    /// The same as one word. Numbers above [`Subject::LAST_RULESET`] and epochs above
    /// [`Subject::LAST_EPOCH`] lose their highest bits.
    pub const fn pack(&self) -> PackedSubject {
        let table = (self.table as u16 & 1) << 15;
        let audit = if self.flags & Self::AUDIT == 0 { 0 } else { PackedSubject::AUDIT };
        PackedSubject {
            ingress: PackedSubject::half(self.ingress) | table,
            egress: PackedSubject::half(self.egress) | table,
            epoch: self.epoch & Self::LAST_EPOCH | audit,
        }
    }
}

// === impl PackedSubject ===

impl PackedSubject {
    /// In the place of a number: no policy judges.
    pub const OPEN: u16 = 0x7fff;
    const AUDIT: u32 = 1 << 31;

    /// Whether it is known what judges the pod.
    #[inline(always)]
    pub const fn is_known(self) -> bool {
        (self.ingress | self.egress) as u32 | self.epoch != 0
    }

    /// The subject that was packed.
    #[inline(always)]
    pub const fn unpack(self) -> Subject {
        let table = self.ingress >> 15;
        Subject {
            ingress: Self::ruleset(self.ingress, table),
            egress: Self::ruleset(self.egress, table),
            table: table as u32,
            epoch: self.epoch & Subject::LAST_EPOCH,
            flags: self.epoch >> 31,
        }
    }

    const fn half(ruleset: u32) -> u16 {
        ruleset as u16 & Self::OPEN
    }

    /// Arithmetic instead of a branch: the verifier would walk the rest once for each outcome.
    #[inline(always)]
    const fn ruleset(half: u16, table: u16) -> u32 {
        let number = (half & Self::OPEN) as u32;
        // 1 of `OPEN`, otherwise 0.
        let is_open = (number + 1) >> 15;
        number | (table as u32) << 31 | is_open.wrapping_neg()
    }
}

#[cfg(feature = "user")]
#[expect(unsafe_code, reason = "aya::Pod is an unsafe trait")]
mod user {
    // SAFETY: `repr(C)` of integers only, without padding (the sizes are asserted above): every bit pattern
    // is valid.
    unsafe impl aya::Pod for super::PeerKey {}
    // SAFETY: as for `PeerKey`.
    unsafe impl aya::Pod for super::Peer {}
    // SAFETY: as for `PeerKey`.
    unsafe impl aya::Pod for super::Ruleset {}
    // SAFETY: as for `PeerKey`.
    unsafe impl aya::Pod for super::RuleKey {}
    // SAFETY: as for `PeerKey`.
    unsafe impl aya::Pod for super::NamedKey {}
    // SAFETY: as for `PeerKey`.
    unsafe impl aya::Pod for super::Subject {}
    // SAFETY: as for `PeerKey`.
    unsafe impl aya::Pod for super::SubjectChange {}
    // SAFETY: as for `PeerKey`.
    unsafe impl aya::Pod for super::ViewKey {}
    // SAFETY: as for `PeerKey`.
    unsafe impl aya::Pod for super::View {}
    // SAFETY: as for `PeerKey`.
    unsafe impl aya::Pod for super::FragmentKey {}
    // SAFETY: as for `PeerKey`.
    unsafe impl aya::Pod for super::FragmentPorts {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_subject_is_unpacked_as_it_was() {
        let last = Subject::LAST_RULESET;
        for table in [0, 1] {
            let number = |it: u32| it | table << 31;
            let rulesets = [number(1), number(last), Subject::OPEN];
            for ingress in rulesets {
                for egress in rulesets {
                    for epoch in [0, 1, Subject::LAST_EPOCH] {
                        for flags in [0, Subject::AUDIT] {
                            let subject = Subject { ingress, egress, table, epoch, flags };
                            assert_eq!(subject.pack().unpack(), subject);
                            assert!(subject.pack().is_known(), "{subject:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn numbers_that_are_too_large_do_not_come_back() {
        let subject = Subject { ingress: 1, egress: 1, table: 0, epoch: 1, flags: 0 };
        for changed in [
            Subject { ingress: Subject::LAST_RULESET + 2, ..subject },
            Subject { egress: 1 << 16, ..subject },
            Subject { epoch: Subject::LAST_EPOCH + 1, ..subject },
        ] {
            assert_ne!(changed.pack().unpack(), changed);
        }
        assert!(!PackedSubject::default().is_known());
    }
}
