//! BIG TCP between pods: packets above 64 KiB, whose length does not fit into the IP header. IPv4 then has a
//! total length of 0, IPv6 a payload length of 0 and a hop-by-hop header with the length (RFC 2675).

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    os::fd::AsRawFd as _,
    thread,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    node::{Node, with_agent},
    pod::Pod,
    sys,
};
use nix::{
    net::if_::if_nametoindex,
    sys::socket::{
        AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket,
        sockopt::ReceiveTimeout,
    },
    sys::time::{TimeVal, TimeValLike as _},
};

/// Bytes of the largest packet.
const LARGEST: u32 = 200_000;
/// Above what the header of a packet can tell.
const BIG: f64 = 65_536.0;
const STREAM: usize = 64 << 20;
const LIMIT: Duration = Duration::from_secs(20);

/// Lets an interface of this namespace have big packets in both families. `ip` of many distributions does not
/// know the settings of IPv4.
fn allow_big(interface: &str) -> anyhow::Result<()> {
    /// `RTM_NEWLINK`, and `NLM_F_REQUEST` with `NLM_F_ACK`.
    const NEW_LINK: u16 = 16;
    const ACKNOWLEDGED: u16 = 5;
    /// `IFLA_GSO_MAX_SIZE`, `IFLA_GRO_MAX_SIZE`, `IFLA_GSO_IPV4_MAX_SIZE` and `IFLA_GRO_IPV4_MAX_SIZE`.
    const SIZES: [u16; 4] = [41, 58, 63, 64];
    let index = if_nametoindex(interface)?;
    let mut body = [&[0; 4], &index.to_ne_bytes(), &[0; 8][..]].concat();
    for kind in SIZES {
        body.extend([&8_u16.to_ne_bytes()[..], &kind.to_ne_bytes(), &LARGEST.to_ne_bytes()].concat());
    }
    let length = u32::try_from(16 + body.len())?;
    let head = [&length.to_ne_bytes()[..], &NEW_LINK.to_ne_bytes(), &ACKNOWLEDGED.to_ne_bytes(), &[0; 8]];
    let socket =
        socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRoute)?;
    setsockopt(&socket, ReceiveTimeout, &TimeVal::seconds(5))?;
    send(socket.as_raw_fd(), &[&head.concat()[..], &body].concat(), MsgFlags::empty())?;
    let mut answer = [0; 256];
    recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty()).context("the kernel does not answer")?;
    let code = answer.get(16..20).and_then(|it| it.try_into().ok()).map(i32::from_ne_bytes);
    ensure!(code == Some(0), "the kernel refuses big packets on {interface}: {code:?}");
    Ok(())
}

/// Packets and bytes that a pod has sent.
fn sent(node: &Node, pod: &Pod) -> anyhow::Result<[f64; 2]> {
    let labels = format!(r#"namespace="default",pod="{}",interface="eth0",direction="egress""#, pod.name);
    let count = |what: &str| node.count(&format!("ferrule_pod_{what}_total{{{labels}}}"));
    Ok([count("packets")?, count("bytes")?])
}

/// Packets between pods that the host has forwarded.
fn forwarded() -> anyhow::Result<u64> {
    let rules = sys::run("nft -j list chain inet watch forward")?;
    let rules: serde_json::Value = serde_json::from_str(&rules)?;
    let all = rules.pointer("/nftables").and_then(serde_json::Value::as_array).context("no rules")?;
    let counter = all.iter().find_map(|it| it.pointer("/rule/expr/0/counter/packets")?.as_u64());
    counter.context("no counter")
}

/// Streams bytes and checks them; a write is larger than the largest packet.
fn stream(from: &Pod, to: &Pod, address: IpAddr) -> anyhow::Result<()> {
    let at = SocketAddr::new(address, 8080);
    let listener = sys::bind_in(to.path(), at, TcpListener::bind)?;
    let expected: Vec<u8> = (0..STREAM).map(|it| (it % 251) as u8).collect();
    thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let mut stream = listener.accept()?.0;
            stream.set_read_timeout(Some(LIMIT))?;
            let mut received = vec![0; STREAM];
            stream.read_exact(&mut received)?;
            ensure!(received == expected, "the stream was changed");
            Ok(())
        });
        let mut client = sys::in_netns(from.path(), || Ok(TcpStream::connect_timeout(&at, LIMIT)?))?;
        client.set_write_timeout(Some(LIMIT))?;
        client.write_all(&expected)?;
        receiver.join().map_err(|_| anyhow::anyhow!("the receiver panicked"))?
    })
}

#[test]
fn a_stream_in_packets_above_64_kib_arrives_whole_and_passes_the_stack_by() {
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        for pod in [&a, &b] {
            sys::in_netns(pod.path(), || allow_big("eth0"))?;
            allow_big(&node.host_ifname(pod)?)?;
        }
        sys::run("nft add table inet watch")?;
        sys::run("nft add chain inet watch forward { type filter hook forward priority 0 ; }")?;
        sys::run("nft add rule inet watch forward counter")?;
        for address in &b.addresses {
            let [packets, bytes] = sent(node, &a)?;
            stream(&a, &b, *address).with_context(|| format!("to {address}"))?;
            let [packets, bytes] = sent(node, &a).map(|now| [now[0] - packets, now[1] - bytes])?;
            ensure!(bytes / packets > BIG, "{packets} packets of {} bytes to {address}", bytes / packets);
            ensure!(
                forwarded()? == 0,
                "{} packets to or from {address} went through the stack",
                forwarded()?
            );
        }
        Ok(())
    })
    .unwrap();
}
