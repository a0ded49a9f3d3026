//! Packets that exist on a real interface only: with a VLAN tag beside the frame, with headers outside the
//! linear data, or with less than an IP header.

use std::{
    os::fd::{AsRawFd as _, OwnedFd},
    path::Path,
    time::Duration,
};

use agent_common::{DropReason, GATEWAY_MAC, VifEntry, VifKey};
use anyhow::{Context as _, ensure};
use ferrule_tests::{
    packet::{IPV4, IPV6, Ipv4, Ipv6, QINQ, TCP, UDP, VLAN, cut, data, hexdump, tagged, tcp, udp},
    program::{AllCounters, Program, Programs},
    sys, wire,
};
use nix::sys::{
    socket::{
        AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, recv, sendto, setsockopt,
        socket, sockopt::ReceiveTimeout,
    },
    time::{TimeVal, TimeValLike as _},
};

use crate::{
    table::{A, B, Counted, FAR_V4, FAR_V6, Pod, with_pods},
    tx_ring::TxRing,
};

/// The network namespace of the pods' ends.
const PODS_NAMESPACE: &str = "/run/netns/pods";
/// Longer than a page: then a raw socket places the headers outside the linear data.
const LONG: usize = 6000;

/// A node with `from_pod` attached to the interfaces of pods `A` and `B`.
struct Wire<'a> {
    programs: &'a mut Programs,
    /// A packet socket in the pods' namespace.
    socket: OwnedFd,
    to_a: LinkAddr,
}

fn with_wire(run: impl FnOnce(&mut Wire<'_>) -> anyhow::Result<()> + Send) -> anyhow::Result<()> {
    with_pods(|programs| {
        sys::mount_private("tmpfs", "/run")?;
        std::fs::create_dir("/run/netns")?;
        let namespace = Path::new(PODS_NAMESPACE);
        sys::make_netns(namespace)?;
        // No packets but the test's.
        disable_ipv6()?;
        sys::in_netns(namespace, disable_ipv6)?;
        for pod in [A, B] {
            let Pod { ifindex, mac, .. } = pod;
            let (host, peer) = (format!("pod{ifindex}"), format!("peer{ifindex}"));
            sys::run(&format!("ip link set {peer} netns pods address {} mtu 9000 up", colons(mac)))?;
            sys::run(&format!("ip link set {host} address {} mtu 9000 up", colons(GATEWAY_MAC)))?;
            programs.attach(Program::FromPod, &host)?;
            let key = VifKey { ifindex };
            let vif: VifEntry = programs.vifs.get(&key, 0)?;
            programs.vifs.insert(&key, &VifEntry { mtu: 9000, ..vif }, 0)?;
        }
        let (socket, to_a) = sys::in_netns(namespace, || {
            let socket =
                socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll)?;
            setsockopt(&socket, ReceiveTimeout, &TimeVal::seconds(5))?;
            Ok((socket, wire::link(&format!("peer{}", A.ifindex))?))
        })?;
        run(&mut Wire { programs, socket, to_a })
    })
}

fn disable_ipv6() -> anyhow::Result<()> {
    Ok(std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1")?)
}

fn colons(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

// === impl Wire ===

impl Wire<'_> {
    fn send(&self, frame: &[u8]) -> anyhow::Result<()> {
        let sent = sendto(self.socket.as_raw_fd(), frame, &self.to_a, MsgFlags::empty())?;
        ensure!(sent == frame.len(), "{sent} of {} bytes sent", frame.len());
        Ok(())
    }

    /// The next frame that a pod receives.
    fn received_by(&self, pod: Pod) -> anyhow::Result<Vec<u8>> {
        loop {
            let mut frame = vec![0; 2 * LONG];
            let len =
                recv(self.socket.as_raw_fd(), &mut frame, MsgFlags::empty()).context("no frame received")?;
            frame.truncate(len);
            // The socket also receives the frames that it sends.
            if frame.starts_with(&pod.mac) {
                return Ok(frame);
            }
        }
    }

    /// Sends a frame from `A`, and checks that only these counters change.
    fn expect(&self, frame: &[u8], counted: &[(u32, Counted)]) -> anyhow::Result<()> {
        let before = self.programs.counters()?;
        let mut expected = before.clone();
        for (ifindex, counted) in counted {
            counted.add_to(expected.entry(*ifindex).or_default(), Program::FromPod, frame.len());
        }
        self.send(frame)?;
        let mut counters = AllCounters::new();
        sys::wait_until("the frame is counted", Duration::from_secs(5), || {
            counters = self.programs.counters()?;
            Ok(counters != before)
        })?;
        ensure!(
            counters == expected,
            "got counters {counters:?}\nexpected {expected:?}:\n{}",
            hexdump(frame)
        );
        Ok(())
    }

    fn expect_drop(&self, frame: &[u8], reason: DropReason) -> anyhow::Result<()> {
        self.expect(frame, &[(A.ifindex, Counted::Drop(reason))])
    }

    fn expect_delivery(&self, frame: &[u8], out: &[u8]) -> anyhow::Result<()> {
        self.expect(frame, &[(A.ifindex, Counted::Egress), (B.ifindex, Counted::Ingress)])?;
        let received = self.received_by(B)?;
        ensure!(received == out, "received\n{}expected\n{}", hexdump(&received), hexdump(out));
        Ok(())
    }
}

#[test]
fn vlan_tag_beside_the_frame_is_dropped() {
    with_wire(|wire| {
        // The receiving interface moves the outer tag from the frame to the metadata.
        let v4 = A.sends_v4(&Ipv4::new(A.v4, B.v4, UDP).with(&udp(1, 2, b"tagged")));
        let v6 = A.sends_v6(&Ipv6::new(A.v6, FAR_V6, UDP).with(&udp(1, 2, b"tagged")));
        for frame in [v4, v6] {
            let len = frame.len();
            for tags in [[(VLAN, 5)].as_slice(), &[(VLAN, 0)], &[(QINQ, 5)], &[(QINQ, 5), (VLAN, 6)]] {
                let tagged = tagged(&frame, tags);
                ensure!(tagged.len() == len + 4 * tags.len());
                wire.expect_drop(&tagged, DropReason::Vlan)?;
            }
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn headers_outside_the_linear_data_are_read() {
    with_wire(|wire| {
        let payload = tcp(1, 2, &data(LONG));
        let v4 = Ipv4::new(A.v4, B.v4, TCP);
        let v6 = Ipv6::new(A.v6, B.v6, TCP);
        let less = (Ipv4 { ttl: 63, ..v4.clone() }, Ipv6 { hop_limit: 63, ..v6.clone() });
        wire.expect_delivery(&A.sends_v4(&v4.with(&payload)), &B.receives(IPV4, &less.0.with(&payload)))?;
        wire.expect_delivery(&A.sends_v6(&v6.with(&payload)), &B.receives(IPV6, &less.1.with(&payload)))?;
        let spoofed = Ipv4 { source: FAR_V4, ..v4 };
        wire.expect_drop(&A.sends_v4(&spoofed.with(&payload)), DropReason::SpoofedIpv4)?;
        let spoofed = Ipv6 { source: FAR_V6, ..v6 };
        wire.expect_drop(&A.sends_v6(&spoofed.with(&payload)), DropReason::SpoofedIpv6)
    })
    .unwrap();
}

#[test]
fn a_header_in_memory_of_the_sender_is_delivered_as_it_was_checked() {
    const LATER: u8 = 0xee;
    with_wire(|wire| {
        let mut ring = TxRing::open(Path::new(PODS_NAMESPACE))?;
        let payload = udp(1, 2, &data(1000));
        let (v4, v6) = (Ipv4::new(A.v4, B.v4, UDP), Ipv6::new(A.v6, B.v6, UDP));
        let less = (Ipv4 { ttl: 63, ..v4.clone() }, Ipv6 { hop_limit: 63, ..v6.clone() });
        for (sent, out, headers) in [
            (A.sends_v4(&v4.with(&payload)), B.receives(IPV4, &less.0.with(&payload)), 14 + 20 + 8),
            (A.sends_v6(&v6.with(&payload)), B.receives(IPV6, &less.1.with(&payload)), 14 + 40 + 8),
        ] {
            ring.send_and_overwrite(&sent, &wire.to_a, LATER)?;
            let received = wire.received_by(B)?;
            ensure!(
                received.get(..headers) == out.get(..headers),
                "received\n{}checked\n{}",
                hexdump(&received),
                hexdump(&out)
            );
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn truncated_ip_headers_are_malformed() {
    with_wire(|wire| {
        let v4 = A.sends_v4(&Ipv4::new(A.v4, B.v4, UDP).with(&udp(1, 2, b"")));
        let v6 = A.sends_v6(&Ipv6::new(A.v6, B.v6, UDP).with(&udp(1, 2, b"")));
        for (whole, headers) in [(v4, 34), (v6, 54)] {
            for len in 14..headers {
                wire.expect_drop(&cut(&whole, len), DropReason::Malformed)
                    .with_context(|| format!("{len} bytes"))?;
            }
        }
        Ok(())
    })
    .unwrap();
}
