//! Associations of SCTP with a port of the node. A kernel without SCTP sockets translates it all the same, so
//! that the packets are made by hand: those of a handshake, and data, as conntrack follows them.

use std::{fs, net::IpAddr, path::Path};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    node::{NODE_V4, NODE_V6},
    packet::{self, IPV4, IPV6, Ipv4, Ipv6, Mac, SCTP},
    pod::Pod,
    runtime::CniError,
    sys,
    wire::{self, Wire},
};
use serde_json::json;

use super::{OUTSIDE, OUTSIDE_V4, OUTSIDE_V6, POD_PORT, PORT, TIMEOUT, attach, mapping, with_outside};

/// An end of an association.
struct End {
    wire: Wire,
    own: Mac,
    next: Mac,
    address: IpAddr,
    port: u16,
}

/// Conntrack's settings.
const SETTINGS: &str = "/proc/sys/net/netfilter";
/// The MAC of the host ends of all pods.
const NODE_MAC: Mac = *b"ferrul";
const CLIENT_PORT: u16 = 41_000;
/// The verification tags that client and server choose.
const CLIENT: u32 = 0x0c11_e471;
const SERVER: u32 = 0x5e44_e471;

/// Types of chunks (RFC 9260, 3.2).
const DATA: u8 = 0;
const INIT: u8 = 1;
const INIT_ACK: u8 = 2;
const COOKIE_ECHO: u8 = 10;
const COOKIE_ACK: u8 = 11;

// === impl End ===

impl End {
    fn new(netns: &Path, next: Mac, address: IpAddr, port: u16) -> anyhow::Result<Self> {
        let own = sys::in_netns(netns, || wire::mac("eth0"))?;
        Ok(Self { wire: Wire::open(netns, "eth0")?, own, next, address, port })
    }

    fn of_pod(pod: &Pod, node: IpAddr, port: u16) -> anyhow::Result<Self> {
        let own = pod.addresses.iter().find(|it| it.is_ipv4() == node.is_ipv4()).context("no address")?;
        Self::new(pod.path(), NODE_MAC, *own, port)
    }

    fn send(&self, to: (IpAddr, u16), tag: u32, chunk: &[u8]) -> anyhow::Result<()> {
        let segment = segment(self.port, to.1, tag, chunk);
        let (kind, packet) = match (self.address, to.0) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                (IPV4, Ipv4::new(from.octets(), to.octets(), SCTP).with(&segment))
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                (IPV6, Ipv6::new(from.octets(), to.octets(), SCTP).with(&segment))
            }
            ends => anyhow::bail!("two families: {ends:?}"),
        };
        self.wire.send(&packet::frame(self.next, self.own, kind, &packet))
    }

    /// Waits for a packet with exactly this content, its checksum included, and returns the port it is from.
    fn expect(&self, from: IpAddr, tag: u32, chunk: &[u8]) -> anyhow::Result<u16> {
        let addresses = match (from, self.address) {
            (IpAddr::V4(from), IpAddr::V4(own)) => [from.octets(), own.octets()].concat(),
            (IpAddr::V6(from), IpAddr::V6(own)) => [from.octets(), own.octets()].concat(),
            ends => anyhow::bail!("two families: {ends:?}"),
        };
        let port = |frame: &[u8]| {
            let length = addresses.len() + segment(0, 0, 0, chunk).len();
            let (found, rest) = frame.get(frame.len().checked_sub(length)?..)?.split_at(addresses.len());
            let port = u16::from_be_bytes(*rest.first_chunk()?);
            (found == addresses && rest == segment(port, self.port, tag, chunk)).then_some(port)
        };
        let found = self.wire.receive(TIMEOUT, |frame| port(frame).is_some())?;
        let kind = chunk.first().copied().unwrap_or_default();
        found
            .and_then(|it| port(&it))
            .with_context(|| format!("no chunk {kind} from {from} at {}", self.address))
    }
}

fn segment(from: u16, to: u16, tag: u32, chunk: &[u8]) -> Vec<u8> {
    let ports = [from.to_be_bytes(), to.to_be_bytes()].concat();
    let with = |sum: u32| [&ports, tag.to_be_bytes().as_slice(), &sum.to_le_bytes(), chunk].concat();
    with(crc32c(&with(0)))
}

/// RFC 9260, appendix A.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |sum: u32, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| (sum >> 1) ^ (0x82f6_3b78 * (sum & 1)))
    })
}

/// A chunk; its value has a multiple of four bytes.
fn chunk(kind: u8, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX).to_be_bytes();
    // A whole message, if it is data.
    let flags = if kind == DATA { 3 } else { 0 };
    [&[kind, flags], length.as_slice(), value].concat()
}

/// Offers a tag; window, streams and first number are of no interest.
fn init(kind: u8, tag: u32) -> Vec<u8> {
    chunk(kind, &[tag.to_be_bytes(), [0, 1, 0, 0], [0, 1, 0, 1], [0, 0, 0, 1]].concat())
}

/// Opens an association with the port of the node, sends data both ways, and returns the client's port as the
/// pod sees it. The pod sees the client's own address.
fn associate(client: &End, server: &End, node: IpAddr) -> anyhow::Result<u16> {
    let data =
        |text: &[u8; 8]| chunk(DATA, &[&[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0], text.as_slice()].concat());
    let mut seen = None;
    for (from_client, tag, chunk) in [
        (true, 0, init(INIT, CLIENT)),
        (false, CLIENT, init(INIT_ACK, SERVER)),
        (true, SERVER, chunk(COOKIE_ECHO, b"a cookie")),
        (false, CLIENT, chunk(COOKIE_ACK, b"")),
        (true, SERVER, data(b"question")),
        (false, CLIENT, data(b"response")),
    ] {
        if from_client {
            client.send((node, PORT), tag, &chunk)?;
            let by = server.expect(client.address, tag, &chunk)?;
            ensure!(*seen.get_or_insert(by) == by, "{seen:?}, then {by}");
        } else {
            server.send((client.address, seen.context("no client")?), tag, &chunk)?;
            let by = client.expect(node, tag, &chunk)?;
            ensure!(by == PORT, "from the port {by}");
        }
    }
    seen.context("no client")
}

#[test]
fn an_association_leads_to_the_pod_from_outside_and_from_pods() {
    with_outside(|node| {
        let other = node.attach("other")?;
        let (pod, mut chain) = attach(node, "server", json!([mapping("sctp", "")]))?;
        let outside = Path::new(OUTSIDE);
        let uplink = wire::mac("uplink")?;
        for (to, from) in [(NODE_V4, OUTSIDE_V4), (NODE_V6, OUTSIDE_V6)] {
            let to: IpAddr = to.parse()?;
            let server = End::of_pod(&pod, to, POD_PORT)?;
            let beyond = End::new(outside, uplink, from.parse()?, CLIENT_PORT)?;
            let seen = associate(&beyond, &server, to).with_context(|| format!("from {from} to {to}"))?;
            ensure!(seen == CLIENT_PORT, "{seen}");
            // The client's port is another one, as that of UDP (`plug/nft/masquerade_table.rs`).
            associate(&End::of_pod(&other, to, CLIENT_PORT)?, &server, to).context("from a pod")?;
        }
        chain.check(&pod)?;
        chain.del(&pod)?;
        let flows = sys::run("conntrack -L -p sctp")?;
        ensure!(!flows.contains(&format!("dport={PORT} ")), "flows of the port go on: {flows}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_port_is_refused_where_conntrack_does_not_know_sctp() {
    with_outside(|node| {
        let empty = node.kernel_state()?;
        // As on a kernel without CONFIG_NF_CT_PROTO_SCTP, whose conntrack is loaded.
        node.stop_agent()?;
        sys::mount_private("tmpfs", SETTINGS)?;
        fs::write(Path::new(SETTINGS).join("nf_conntrack_generic_timeout"), "600")?;
        node.start_again()?;
        let error = attach(node, "server", json!([mapping("sctp", "")])).map(drop).unwrap_err();
        let refused = error.downcast_ref::<CniError>().with_context(|| format!("{error:#}"))?;
        ensure!(refused.code == 2 && refused.msg.contains("does not know SCTP"), "{refused}");
        ensure!(refused.details.contains("CONFIG_NF_CT_PROTO_SCTP"), "{refused}");
        ensure!(sys::run("nft list table inet ferrule-ports").is_err(), "a table for a refused port");
        node.wait_for_kernel_state(&empty)?;
        attach(node, "web", json!([mapping("tcp", "")])).map(drop)
    })
    .unwrap();
}

#[test]
fn a_sum_is_what_everybody_computes() {
    // RFC 3720, B.4, and the usual test vector.
    assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
}
