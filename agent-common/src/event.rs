//! Records of the ring buffer `EVENTS`: dropped packets, and the flows of pods.
//!
//! Every record begins with its kind.

use crate::FlowKey;

/// What a record describes: its first field.
pub mod kind {
    /// A [`DropRecord`](super::DropRecord).
    pub const DROP: u32 = 1;
    /// A [`FlowRecord`](super::FlowRecord).
    pub const FLOW: u32 = 2;
}

/// Directions of a packet, the pod's.
pub mod direction {
    pub const INGRESS: u32 = 1;
    pub const EGRESS: u32 = 2;
    /// From another host, at the tunnel device or an uplink.
    pub const LINK: u32 = 3;
}

/// Bytes of a dropped packet in its record: Ethernet, IPv6, one extension header, and an ICMP error with the
/// headers that the error quotes.
pub const CAPTURE: usize = 112;

/// A dropped packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct DropRecord {
    /// [`kind::DROP`].
    pub kind: u32,
    /// One of [`direction`].
    pub direction: u32,
    /// Nanoseconds since boot (`CLOCK_BOOTTIME`).
    pub time: u64,
    /// Index of the pod's host interface, of the tunnel device or of the uplink.
    pub ifindex: u32,
    /// Of the interface's entry in `VIFS`; 0 without an entry.
    pub generation: u32,
    /// A [`DropReason`](crate::DropReason).
    pub reason: u32,
    /// Length of the frame, in bytes.
    pub len: u32,
    /// Earlier packets of this interface, direction and reason that have no record, because there were too
    /// many.
    pub suppressed: u32,
    /// The same, because the ring buffer was full.
    pub lost: u32,
    /// Bytes of `head` that are the packet's.
    pub captured: u32,
    /// The VLAN tag (TCI) that the kernel keeps beside the frame, and 1 << 16; 0 without one.
    pub vlan: u32,
    /// Of a packet that policies deny: the ruleset; otherwise 0, as the next fields.
    pub ruleset: u32,
    /// The other end's class.
    pub class: u32,
    /// 1 and the number of the bit that denies; 0 if none allows.
    pub bit: u32,
    /// Not 0 if the packet passes nevertheless, because its pod is only audited.
    pub audit: u32,
    /// The frame's first bytes; zeros behind them.
    pub head: [u8; CAPTURE],
}

/// States of a flow in its records.
pub mod flow_state {
    /// The first packet.
    pub const NEW: u32 = 1;
    /// A packet, a minute or more after the record before.
    pub const ACTIVE: u32 = 2;
    /// TCP: both ends have closed, or one has reset.
    pub const CLOSED: u32 = 3;
    /// No packet for a minute. The agent makes these records.
    pub const ENDED: u32 = 4;
}

/// A flow, as of one of its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct FlowRecord {
    /// [`kind::FLOW`].
    pub kind: u32,
    /// One of [`flow_state`].
    pub state: u32,
    /// Of the packet, in nanoseconds since boot (`CLOCK_BOOTTIME`).
    pub time: u64,
    /// Earlier records of flows of this interface that were not written, because there were too many.
    pub suppressed: u32,
    /// The same, because the ring buffer was full.
    pub lost: u32,
    pub flow: FlowKey,
    pub stats: FlowStats,
}

/// Value of `FLOW_STATS`. The counts are approximate: of two CPUs that count a direction at once, one
/// count can be lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct FlowStats {
    /// From the end `low` of the key.
    pub from_low: FlowTraffic,
    /// From the end `high` of the key.
    pub from_high: FlowTraffic,
    /// Time of the first packet, in nanoseconds since boot.
    pub first: u64,
    /// Time of the last record, in nanoseconds since boot.
    pub reported: u64,
    /// Index of the host interface of the pod that sent or received the first packet.
    pub ifindex: u32,
    /// Of that interface's entry in `VIFS`.
    pub generation: u32,
    /// One of [`direction`]: that of the first packet.
    pub direction: u32,
    /// When a program looks at the clock next, in jiffies modulo 2^32.
    pub look_at: u32,
    /// TCP flags that `low` has sent: FIN 1, SYN 2, RST 4, PSH 8, ACK 16, URG 32, ECE 64, CWR 128.
    pub flags_of_low: u8,
    /// TCP flags that `high` has sent.
    pub flags_of_high: u8,
    /// Not 0 if `high` sent the first packet.
    pub opened_by_high: u8,
    /// Not 0 after the record with [`flow_state::CLOSED`].
    pub closed: u8,
    /// Time of the last packet, in jiffies modulo 2^32.
    pub used: u32,
}

/// One direction of a flow. A packet that is segmented later (GSO) counts once, with all its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct FlowTraffic {
    pub packets: u64,
    /// Including Ethernet headers.
    pub bytes: u64,
}

// A change of these sizes is a change of the ABI.
const _: () = assert!(size_of::<DropRecord>() == 64 + CAPTURE);
const _: () = assert!(size_of::<FlowStats>() == 72);
const _: () = assert!(size_of::<FlowRecord>() == 24 + 40 + 72);

#[cfg(feature = "user")]
mod user {
    use super::{CAPTURE, DropRecord, FlowRecord, FlowStats, FlowTraffic, kind};
    use crate::{EndpointKey, FlowKey};

    #[expect(unsafe_code, reason = "aya::Pod is an unsafe trait")]
    mod pod {
        // SAFETY: `repr(C)` of integers only, without padding (the size is asserted above): every bit pattern
        // is valid.
        unsafe impl aya::Pod for super::FlowStats {}
    }

    /// A record of `EVENTS`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Event {
        Drop(DropRecord),
        Flow(FlowRecord),
    }

    /// The fields of a record, one after another.
    struct Fields<'a>(&'a [u8]);

    // === impl Event ===

    impl Event {
        /// Decodes a record. `None` if it is of an unknown kind, or too short.
        pub fn decode(record: &[u8]) -> Option<Self> {
            let mut fields = Fields(record);
            match fields.u32()? {
                kind::DROP => fields.drop_record().map(Self::Drop),
                kind::FLOW => fields.flow_record().map(Self::Flow),
                _ => None,
            }
        }
    }

    // === impl DropRecord ===

    impl DropRecord {
        /// The first bytes of the frame.
        pub fn frame(&self) -> &[u8] {
            self.head.get(..self.captured as usize).unwrap_or(&self.head)
        }
    }

    // === impl Fields ===

    impl Fields<'_> {
        fn drop_record(&mut self) -> Option<DropRecord> {
            Some(DropRecord {
                kind: kind::DROP,
                direction: self.u32()?,
                time: self.u64()?,
                ifindex: self.u32()?,
                generation: self.u32()?,
                reason: self.u32()?,
                len: self.u32()?,
                suppressed: self.u32()?,
                lost: self.u32()?,
                captured: self.u32()?,
                vlan: self.u32()?,
                ruleset: self.u32()?,
                class: self.u32()?,
                bit: self.u32()?,
                audit: self.u32()?,
                head: self.bytes::<CAPTURE>()?,
            })
        }

        fn flow_record(&mut self) -> Option<FlowRecord> {
            Some(FlowRecord {
                kind: kind::FLOW,
                state: self.u32()?,
                time: self.u64()?,
                suppressed: self.u32()?,
                lost: self.u32()?,
                flow: FlowKey {
                    low: EndpointKey { address: self.bytes()? },
                    high: EndpointKey { address: self.bytes()? },
                    low_port: self.bytes().map(u16::from_ne_bytes)?,
                    high_port: self.bytes().map(u16::from_ne_bytes)?,
                    protocol: self.u8()?,
                    reserved: self.bytes()?,
                },
                stats: FlowStats {
                    from_low: self.traffic()?,
                    from_high: self.traffic()?,
                    first: self.u64()?,
                    reported: self.u64()?,
                    ifindex: self.u32()?,
                    generation: self.u32()?,
                    direction: self.u32()?,
                    look_at: self.u32()?,
                    flags_of_low: self.u8()?,
                    flags_of_high: self.u8()?,
                    opened_by_high: self.u8()?,
                    closed: self.u8()?,
                    used: self.u32()?,
                },
            })
        }

        fn traffic(&mut self) -> Option<FlowTraffic> {
            Some(FlowTraffic { packets: self.u64()?, bytes: self.u64()? })
        }

        fn u8(&mut self) -> Option<u8> {
            self.bytes().map(u8::from_ne_bytes)
        }

        fn u32(&mut self) -> Option<u32> {
            self.bytes().map(u32::from_ne_bytes)
        }

        fn u64(&mut self) -> Option<u64> {
            self.bytes().map(u64::from_ne_bytes)
        }

        fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
            let (field, rest) = self.0.split_first_chunk()?;
            self.0 = rest;
            Some(*field)
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        /// Bytes that differ from their neighbours, as the kernel would hand them over.
        fn bytes<const N: usize>(kind: u32) -> [u8; N] {
            let mut bytes = core::array::from_fn(|at| (at * 7 % 251) as u8);
            bytes[..4].copy_from_slice(&kind.to_ne_bytes());
            bytes
        }

        fn u32_at(bytes: &[u8], at: usize) -> u32 {
            u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
        }

        #[test]
        fn fields_are_at_the_offsets_of_the_programs_struct() {
            let record = bytes::<176>(1);
            let Some(Event::Drop(drop)) = Event::decode(&record) else { panic!("no drop") };
            assert_eq!(drop.direction, u32_at(&record, 4));
            assert_eq!((drop.ifindex, drop.generation), (u32_at(&record, 16), u32_at(&record, 20)));
            assert_eq!((drop.reason, drop.len), (u32_at(&record, 24), u32_at(&record, 28)));
            assert_eq!((drop.suppressed, drop.lost), (u32_at(&record, 32), u32_at(&record, 36)));
            assert_eq!(drop.captured, u32_at(&record, 40));
            assert_eq!(drop.head[..], record[64..176]);

            let record = bytes::<136>(2);
            let Some(Event::Flow(flow)) = Event::decode(&record) else { panic!("no flow") };
            assert_eq!((flow.state, flow.suppressed), (u32_at(&record, 4), u32_at(&record, 16)));
            assert_eq!(flow.flow.low.address, record[24..40]);
            assert_eq!(flow.flow.protocol, record[60]);
            assert_eq!(flow.stats.from_high.packets.to_ne_bytes(), record[80..88]);
            assert_eq!((flow.stats.opened_by_high, flow.stats.closed), (record[130], record[131]));
        }

        #[test]
        fn short_and_unknown_records_are_none() {
            assert_eq!(Event::decode(&bytes::<175>(1)), None);
            assert_eq!(Event::decode(&bytes::<135>(2)), None);
            assert_eq!(Event::decode(&bytes::<400>(3)), None);
            assert_eq!(Event::decode(&[1, 0, 0]), None);
        }
    }
}

#[cfg(feature = "user")]
pub use user::Event;
