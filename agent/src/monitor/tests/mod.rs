//! Tests of the room: parsing, joining, filtering and serving.

mod filters;
mod frames;
mod joins;
mod messages;
mod subscriptions;

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use agent_common::event::{CAPTURE, DropRecord, Event, direction, kind};
use etherparse::PacketBuilder;

use super::{
    clock::WallClock,
    seen::{Owners, Seen},
};
use crate::{
    cluster::PodRef,
    policy::RemotePod,
    registry::{Attachment, Owner, testing::attachment},
};

/// The pods of a node, each `shop/podN` with 10.0.0.N and fd00::N behind interface N.
#[derive(Default)]
struct Pods(HashMap<u8, Owner>);

impl Pods {
    /// `since_boot_ns`: when each was attached.
    fn new(pods: &[(u8, u64)]) -> Self {
        let owner = |(number, since_boot_ns): &(u8, u64)| {
            let pod =
                PodRef { namespace: "shop".to_owned(), name: format!("pod{number}"), uid: String::new() };
            let attached = attachment("eth0", None, *number);
            let attached = Attachment { pod, created_since_boot_ns: *since_boot_ns, ..attached };
            (*number, Owner::from(&attached))
        };
        Self(pods.iter().map(owner).collect())
    }
}

impl Owners for Pods {
    fn behind(&self, ifindex: u32) -> Option<Arc<Owner>> {
        self.0.get(&u8::try_from(ifindex).ok()?).cloned().map(Arc::new)
    }

    fn of_address(&self, address: IpAddr) -> Option<Arc<Owner>> {
        let has = |owner: &&Owner| owner.addresses.iter().any(|it| it == address);
        self.0.values().find(has).cloned().map(Arc::new)
    }

    /// Another node has the pods `far/podN` with 10.0.1.N.
    fn elsewhere(&self, address: IpAddr) -> Option<RemotePod> {
        let IpAddr::V4(v4) = address else { return None };
        let [10, 0, 1, number] = v4.octets() else { return None };
        Some(RemotePod { namespace: "far".to_owned(), name: format!("pod{number}"), address })
    }
}

/// A record of a frame that was dropped at an interface on its way out of the pod, a second after boot.
fn dropped(ifindex: u32, frame: &[u8]) -> DropRecord {
    let captured = frame.len().min(CAPTURE);
    let mut head = [0; CAPTURE];
    head[..captured].copy_from_slice(&frame[..captured]);
    DropRecord {
        kind: kind::DROP,
        direction: direction::EGRESS,
        time: 1_000_000_000,
        ifindex,
        generation: 0,
        reason: 2,
        len: u32::try_from(frame.len()).unwrap(),
        suppressed: 0,
        lost: 0,
        captured: u32::try_from(captured).unwrap(),
        vlan: 0,
        ruleset: 0,
        class: 0,
        bit: 0,
        audit: 0,
        head,
    }
}

fn seen(record: DropRecord, pods: &Pods) -> Seen {
    Seen::new(&Event::Drop(record), pods, &mut WallClock::default())
}

const MACS: ([u8; 6], [u8; 6]) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);

/// A SYN from port 40000 to port 80.
fn syn(source: [u8; 4], destination: [u8; 4]) -> Vec<u8> {
    let mut frame = Vec::new();
    let packet = PacketBuilder::ethernet2(MACS.0, MACS.1).ipv4(source, destination, 64);
    packet.tcp(40000, 80, 1, 1000).syn().write(&mut frame, b"").unwrap();
    frame
}

/// A datagram from port 40000 to port 53.
fn datagram(source: [u8; 4], destination: [u8; 4]) -> Vec<u8> {
    let mut frame = Vec::new();
    let packet = PacketBuilder::ethernet2(MACS.0, MACS.1).ipv4(source, destination, 64);
    packet.udp(40000, 53).write(&mut frame, b"who?").unwrap();
    frame
}
