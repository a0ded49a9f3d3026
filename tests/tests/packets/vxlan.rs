//! Packets of the tunnel between nodes, which the programs make and unpack past the kernel's tunnel device.

use agent_common::{
    EndpointKey, FlowKey, NodeEntry, NodeKey, TRANSLATED_PORTS, TUNNEL_PORT, TUNNEL_VNI, UnderlayEntry,
    VifKey,
};
use anyhow::{Context as _, ensure};
use ferrule_tests::{
    packet::{
        self, ARP, ICMP, IPV4, IPV6, Ipv4, Ipv4Address, Ipv6, Ipv6Address, Mac, TCP, UDP, VLAN, data, echo,
        frame, tagged, tcp, udp,
    },
    program::{Program, Programs, Ran, SkBuff, TC_ACT_REDIRECT, TC_ACT_UNSPEC},
    sys,
};

use crate::table::{A, B, MTU, NODE_V4, OTHER_MAC, STRANGER, record, v6, with_pods};

/// The interface that stands for the uplink, and for the tunnel device in `NODES`.
const UPLINK: u32 = STRANGER;
const DEVICE: u32 = B.ifindex;
const UPLINK_MAC: Mac = [2, 0, 0, 0, 0, 1];
/// Another node, and pods of it.
const OTHER: u32 = 2;
const OTHER_V4: Ipv4Address = [192, 0, 2, 2];
const REMOTE_V4: Ipv4Address = [10, 244, 2, 5];
const REMOTE_V6: Ipv6Address = v6([0xfd00, 0x10, 0x244, 2, 0, 0, 0, 5]);
/// A third node, and a pod of it.
const THIRD_V4: Ipv4Address = [192, 0, 2, 3];
const THIRDS_POD: Ipv4Address = [10, 244, 3, 5];
/// An address of this node that packets to the other node do not leave from.
const SECOND_V4: Ipv4Address = [192, 0, 2, 77];

/// `NODES` and `UNDERLAY` as the agent fills them.
fn prepare(programs: &mut Programs) -> anyhow::Result<()> {
    let fast = NodeEntry::VXLAN | NodeEntry::FAST;
    for (range, len, id, flags, address) in [
        ("192.0.2.1", 32, 1, NodeEntry::OWN | NodeEntry::ADDRESS, [0; 4]),
        ("192.0.2.77", 32, 1, NodeEntry::OWN | NodeEntry::ADDRESS, [0; 4]),
        ("10.244.0.0", 24, 1, NodeEntry::OWN, [0; 4]),
        ("192.0.2.2", 32, OTHER, NodeEntry::ADDRESS, [0; 4]),
        ("10.244.2.0", 24, OTHER, fast, OTHER_V4),
        ("fd00:10:244:2::", 64, OTHER, fast, OTHER_V4),
        ("192.0.2.3", 32, 3, NodeEntry::ADDRESS, [0; 4]),
        ("10.244.3.0", 24, 3, fast, THIRD_V4),
    ] {
        let is_fast = flags & NodeEntry::FAST != 0;
        let address = if is_fast { EndpointKey::ipv4(address).address } else { [0; 16] };
        let (ifindex, mtu) = if is_fast { (DEVICE, 1450) } else { (0, 0) };
        let row = NodeEntry { id, flags, address, ifindex, mtu };
        programs.add_node(NodeKey::new(range.parse()?, len), row)?;
    }
    programs.index_nodes()?;
    for (node, remote) in [(OTHER, OTHER_V4), (3, THIRD_V4)] {
        let next = [192, 0, 2, 254];
        let way = UnderlayEntry { ifindex: UPLINK, next, source: NODE_V4, remote, device: DEVICE };
        programs.add_underlay(node, way)?;
    }
    for link in [UPLINK, DEVICE] {
        programs.start_counting_link(link)?;
    }
    let mac = UPLINK_MAC.map(|byte| format!("{byte:02x}")).join(":");
    sys::run(&format!("ip link set pod{UPLINK} address {mac}")).map(drop)
}

/// A packet of the tunnel around a frame (RFC 7348, 5).
#[derive(Clone)]
struct Outer {
    destination: Mac,
    ip: Ipv4,
    source_port: u16,
    udp_checksum: u16,
    /// Added to the length in the UDP header.
    longer: u16,
    flags: [u8; 4],
    vni: u32,
    inner: Vec<u8>,
    trailer: Vec<u8>,
}

impl Outer {
    /// From the other node, to this one.
    fn around(inner: Vec<u8>) -> Self {
        Self {
            destination: UPLINK_MAC,
            ip: Ipv4 { fragment: 0, ..Ipv4::new(OTHER_V4, NODE_V4, UDP) },
            source_port: 50000,
            udp_checksum: 0,
            longer: 0,
            flags: [8, 0, 0, 0],
            vni: TUNNEL_VNI,
            inner,
            trailer: Vec::new(),
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let vxlan = [&self.flags, (self.vni << 8).to_be_bytes().as_slice(), &self.inner].concat();
        let mut datagram = udp(self.source_port, TUNNEL_PORT, &vxlan);
        let len = (datagram.len() as u16 + self.longer).to_be_bytes();
        datagram.splice(4..8, [len, self.udp_checksum.to_be_bytes()].concat());
        let packet = frame(self.destination, OTHER_MAC, IPV4, &self.ip.with(&datagram));
        [packet, self.trailer.clone()].concat()
    }
}

fn inner_frame(ethertype: u16, packet: &[u8]) -> Vec<u8> {
    frame([2, 0, 0, 0, 0, 9], [2, 0, 0, 0, 0, 8], ethertype, packet)
}

fn sent() -> Ipv4 {
    Ipv4::new(REMOTE_V4, A.v4, TCP)
}

/// A segment of the other node's pod to pod A.
fn segment() -> Vec<u8> {
    tcp(40000, 8080, &data(64))
}

fn receive(programs: &mut Programs, skb: SkBuff, outer: &Outer) -> anyhow::Result<Ran> {
    programs.run(Program::FromUplink, skb, &outer.bytes())
}

#[test]
fn a_packet_to_another_node_leaves_inside_of_one_of_the_tunnel() {
    with_pods(|programs| {
        prepare(programs)?;
        let v4 = |protocol| Ipv4::new(A.v4, REMOTE_V4, protocol);
        let v6 = |class: u32| Ipv6 { class_flow: class << 20, ..Ipv6::new(A.v6, REMOTE_V6, TCP) };
        let routed = |ip: &Ipv4| Ipv4 { ttl: ip.ttl - 1, ..ip.clone() };
        let (tcp, udp) = (tcp(1000, 80, &data(70)), udp(1000, 53, &data(9)));
        let of_v4 = [
            (v4(TCP), tcp.clone(), 0),
            (v4(UDP), udp, 0),
            (v4(ICMP), echo(&data(1400)), 0),
            // The marks of congestion of the inner header (RFC 6040, 4.1); the rest is of the pod only.
            (Ipv4 { tos: 0xb9, ..v4(TCP) }, tcp.clone(), 1),
            (Ipv4 { tos: 0x02, ..v4(TCP) }, tcp.clone(), 2),
            (Ipv4 { tos: 0x03, ..v4(TCP) }, tcp.clone(), 2),
        ];
        let mut cases: Vec<_> = of_v4
            .into_iter()
            .map(|(ip, payload, tos)| {
                (A.sends_v4(&ip.with(&payload)), A.sends_v4(&routed(&ip).with(&payload)), tos)
            })
            .collect();
        for (class, tos) in [(0, 0), (0xb9, 1), (2, 2), (3, 2)] {
            let ip = v6(class);
            let forwarded = Ipv6 { hop_limit: ip.hop_limit - 1, ..ip.clone() };
            cases.push((A.sends_v6(&ip.with(&tcp)), A.sends_v6(&forwarded.with(&tcp)), tos));
        }
        for (sent, inner, tos) in cases {
            let mut counted = programs.counters()?;
            let ran = programs.run(Program::FromPod, SkBuff::on(A.ifindex), &sent)?;
            ran.expect(TC_ACT_REDIRECT)?;
            let [id, port] = [18, 34].map(|at| {
                ran.packet
                    .get(at..at + 2)
                    .map_or(0, |it| it.iter().fold(0, |all, it| all << 8 | u16::from(*it)))
            });
            ensure!((32768..=60999).contains(&port), "from port {port}");
            let ip = Ipv4 { id, tos, fragment: 0, ..Ipv4::new(NODE_V4, OTHER_V4, UDP) };
            let outer = Outer { ip, source_port: port, ..Outer::around(inner) };
            // The neighbour's MAC replaces that of the frame later.
            let expected = A.sends_v4(outer.bytes().get(14..).context("no packet")?);
            ensure!(
                ran.packet == expected,
                "found:\n{}\nexpected:\n{}",
                packet::hexdump(&ran.packet),
                packet::hexdump(&expected)
            );
            let of_pod = counted.entry(A.ifindex).or_default();
            of_pod.egress.packets += 1;
            of_pod.egress.bytes += sent.len() as u64;
            ensure!(programs.counters()? == counted, "{:?}", programs.counters()?);
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn packets_of_a_flow_have_one_source_port_and_flows_have_several() {
    with_pods(|programs| {
        prepare(programs)?;
        let mut port = |client: u16, data: &[u8]| -> anyhow::Result<Vec<u8>> {
            let packet = A.sends_v4(&Ipv4::new(A.v4, REMOTE_V4, TCP).with(&tcp(client, 80, data)));
            let ran = programs.run(Program::FromPod, SkBuff::on(A.ifindex), &packet)?;
            Ok(ran.packet.get(34..36).context("no port")?.to_vec())
        };
        ensure!(port(1000, b"")? == port(1000, &data(1000))?, "packets of a flow differ");
        let ports: Result<std::collections::BTreeSet<_>, _> = (2000..2020).map(|it| port(it, b"")).collect();
        ensure!(ports?.len() > 10, "flows share their ports");
        Ok(())
    })
    .unwrap();
}

/// A receiver merges packets that may be fragmented only then.
#[test]
fn the_identifications_of_a_flow_follow_each_other() {
    with_pods(|programs| {
        prepare(programs)?;
        let packet = A.sends_v4(&Ipv4::new(A.v4, REMOTE_V4, TCP).with(&tcp(1000, 80, &data(1000))));
        let mut ids = Vec::new();
        for _ in 0..3 {
            let ran = programs.run(Program::FromPod, SkBuff::on(A.ifindex), &packet)?;
            ids.push(u16::from_be_bytes(ran.packet.get(18..20).context("no identification")?.try_into()?));
        }
        let [first, ..] = ids[..] else { anyhow::bail!("none") };
        ensure!(ids == [0, 1, 2].map(|it| first.wrapping_add(it)), "{ids:?}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn the_tunnel_device_makes_what_the_programs_do_not() {
    with_pods(|programs| {
        prepare(programs)?;
        let ip = Ipv4::new(A.v4, REMOTE_V4, TCP);
        let payload = tcp(1000, 80, &data(1400));
        let forwarded = A.sends_v4(&Ipv4 { ttl: ip.ttl - 1, ..ip.clone() }.with(&payload));
        let expect = |programs: &mut Programs, about, skb| {
            let ran = programs.run(Program::FromPod, skb, &A.sends_v4(&ip.with(&payload)))?;
            ran.expect(TC_ACT_REDIRECT).context(about)?;
            ensure!(ran.packet == forwarded, "{about}: {ran:?}");
            anyhow::Ok(())
        };
        let gso = SkBuff { gso_size: 700, ..SkBuff::on(A.ifindex) };
        expect(programs, "segmented later", gso)?;
        let flags = NodeEntry::VXLAN | NodeEntry::FAST;
        for (about, id, address) in [
            ("to a node without a row in UNDERLAY", 9, OTHER_V4),
            ("to a node whose row is from before the node got another address", OTHER, [192, 0, 2, 9]),
        ] {
            let address = EndpointKey::ipv4(address).address;
            let row = NodeEntry { id, flags, address, ifindex: DEVICE, mtu: 1450 };
            programs.add_node(NodeKey::new("10.244.2.0".parse()?, 24), row)?;
            programs.index_nodes()?;
            expect(programs, about, SkBuff::on(A.ifindex))?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_packet_to_a_pod_is_taken_out_of_one_of_the_tunnel() {
    with_pods(|programs| {
        prepare(programs)?;
        let ip6 = Ipv6::new(REMOTE_V6, A.v6, UDP);
        let routed6 = Ipv6 { hop_limit: ip6.hop_limit - 1, ..ip6.clone() };
        let ip = sent();
        let routed = Ipv4 { ttl: ip.ttl - 1, ..ip.clone() };
        let query = udp(5000, 53, &data(30));
        let outer = Outer::around(inner_frame(IPV4, &ip.with(&segment())));
        let congestible = Outer { ip: Ipv4 { tos: 2, ..outer.ip.clone() }, ..outer.clone() };
        let whole =
            Outer { ip: Ipv4 { fragment: Ipv4::DO_NOT_FRAGMENT, ..outer.ip.clone() }, ..outer.clone() };
        for (about, outer, expected) in [
            ("TCP", outer, A.receives(IPV4, &routed.with(&segment()))),
            ("TCP, with congestion notification", congestible, A.receives(IPV4, &routed.with(&segment()))),
            ("TCP, not to be fragmented", whole, A.receives(IPV4, &routed.with(&segment()))),
            (
                "UDP over IPv6",
                Outer::around(inner_frame(IPV6, &ip6.with(&query))),
                A.receives(IPV6, &routed6.with(&query)),
            ),
        ] {
            let (mut links, mut pods) = (programs.links()?, programs.counters()?);
            let ran = receive(programs, SkBuff::on(UPLINK), &outer)?;
            ran.expect(TC_ACT_REDIRECT).context(about)?;
            ensure!(ran.packet == expected, "{about}:\n{}", packet::hexdump(&ran.packet));
            for (link, len) in [(UPLINK, outer.bytes().len()), (DEVICE, outer.inner.len())] {
                let link = links.entry(link).or_default();
                link.packets += 1;
                link.bytes += len as u64;
            }
            let pod = pods.entry(A.ifindex).or_default();
            pod.ingress.packets += 1;
            pod.ingress.bytes += outer.inner.len() as u64;
            ensure!(programs.links()? == links, "{about}: {:?}", programs.links()?);
            ensure!(programs.counters()? == pods, "{about}: {:?}", programs.counters()?);
        }
        Ok(())
    })
    .unwrap();
}

/// The kernel's tunnel device gets these, and `from_tunnel` judges what comes out.
#[test]
fn all_other_packets_of_the_tunnel_are_left_as_they_are() {
    let good = || Outer::around(inner_frame(IPV4, &sent().with(&segment())));
    let ip = |ip: Ipv4| Outer { ip, ..good() };
    let outer = good().ip;
    let of = |inner: Ipv4, payload: &[u8]| Outer::around(inner_frame(IPV4, &inner.with(payload)));
    let (inner, syn) = (sent(), segment());
    let from_translated = tcp(TRANSLATED_PORTS.0 + 5, 8080, b"");
    let ip6 = Ipv6::new(REMOTE_V6, A.v6, ICMP);
    let options = [1; 8].to_vec();
    let bad_sum = Some(0x1234);
    let long = tcp(40000, 8080, &data(usize::from(MTU)));
    let rows = [
        ("to another machine", Outer { destination: OTHER_MAC, ..good() }),
        ("from another node", ip(Ipv4 { source: THIRD_V4, ..outer.clone() })),
        ("from a stranger", ip(Ipv4 { source: [192, 0, 2, 9], ..outer.clone() })),
        ("to another address of this node", ip(Ipv4 { destination: SECOND_V4, ..outer.clone() })),
        ("to another node", ip(Ipv4 { destination: THIRD_V4, ..outer.clone() })),
        // Of other flows: the device gets more of each.
        ("congested", Outer { source_port: 50001, ..ip(Ipv4 { tos: 3, ..outer.clone() }) }),
        ("with ECT(1)", Outer { source_port: 50002, ..ip(Ipv4 { tos: 1, ..outer.clone() }) }),
        ("the first fragment", ip(Ipv4 { fragment: Ipv4::MORE_FRAGMENTS, ..outer.clone() })),
        ("a later fragment", ip(Ipv4 { fragment: 5, ..outer.clone() })),
        ("with options", ip(Ipv4 { options: options.clone(), ..outer.clone() })),
        ("with a wrong checksum", ip(Ipv4 { checksum: bad_sum, ..outer.clone() })),
        ("shorter than the frame", ip(Ipv4 { total_len: Some(100), ..outer.clone() })),
        ("longer than the frame", ip(Ipv4 { total_len: Some(1000), ..outer.clone() })),
        ("TCP", ip(Ipv4 { protocol: TCP, ..outer.clone() })),
        ("with a wrong length of UDP", Outer { longer: 1, ..good() }),
        ("with a checksum of UDP", Outer { udp_checksum: 0x1234, ..good() }),
        ("with a trailer", Outer { trailer: vec![0; 4], ..good() }),
        ("of another network", Outer { vni: TUNNEL_VNI + 1, ..good() }),
        ("without a network", Outer { flags: [0; 4], ..good() }),
        ("with another flag", Outer { flags: [0x88, 0, 0, 0], ..good() }),
        ("cut", Outer { inner: packet::cut(&good().inner, 30), ..good() }),
        ("cut behind the frame", Outer { inner: packet::cut(&good().inner, 14), ..good() }),
        ("without a frame", Outer { inner: Vec::new(), ..good() }),
        ("ARP", Outer::around(inner_frame(ARP, &data(28)))),
        ("a VLAN", Outer { inner: tagged(&good().inner, &[(VLAN, 5)]), ..good() }),
        ("from a pod of another node", of(Ipv4 { source: THIRDS_POD, ..inner.clone() }, &syn)),
        ("from the node itself", of(Ipv4 { source: OTHER_V4, ..inner.clone() }, &syn)),
        ("from a pod of this node", of(Ipv4 { source: B.v4, ..inner.clone() }, &syn)),
        ("to no pod", of(Ipv4 { destination: [10, 244, 0, 200], ..inner.clone() }, &syn)),
        ("to the node", of(Ipv4 { destination: NODE_V4, ..inner.clone() }, &syn)),
        ("to a group", of(Ipv4 { destination: [224, 0, 0, 1], ..inner.clone() }, &syn)),
        ("at the last hop", of(Ipv4 { ttl: 1, ..inner.clone() }, &syn)),
        ("an inner fragment", of(Ipv4 { fragment: Ipv4::MORE_FRAGMENTS, ..inner.clone() }, &syn)),
        ("with inner options", of(Ipv4 { options, ..inner.clone() }, &syn)),
        ("with a wrong inner checksum", of(Ipv4 { checksum: bad_sum, ..inner.clone() }, &syn)),
        ("with a wrong inner length", of(Ipv4 { total_len: Some(1400), ..inner.clone() }, &syn)),
        ("of another version", of(Ipv4 { version: 6, ..inner.clone() }, &syn)),
        ("too long for the pod", of(inner.clone(), &long)),
        ("an echo", of(Ipv4 { protocol: ICMP, ..inner.clone() }, &echo(b""))),
        ("another packet inside", of(Ipv4 { protocol: 4, ..inner.clone() }, &inner.with(&syn))),
        ("a tunnel inside", of(Ipv4 { protocol: UDP, ..inner.clone() }, &udp(1, TUNNEL_PORT, &data(60)))),
        ("from a port of translated flows", of(inner.clone(), &from_translated)),
        ("of a translated flow", of(inner.clone(), &tcp(41000, 8080, b""))),
        ("ICMP over IPv6", Outer::around(inner_frame(IPV6, &ip6.with(&echo(b""))))),
    ];
    with_pods(|programs| {
        prepare(programs)?;
        let [client, server] =
            [(REMOTE_V4, 41000), (A.v4, 8080)].map(|(ip, port)| (EndpointKey::ipv4(ip), port));
        record(programs, &FlowKey::between(TCP, client, server))?;
        for (about, outer) in rows {
            // The row is not left to the device for a reason that concerns its whole flow.
            receive(programs, SkBuff::on(UPLINK), &good())?.expect(TC_ACT_REDIRECT).context(about)?;
            let pods = programs.counters()?;
            let bytes = outer.bytes();
            let ran = receive(programs, SkBuff::on(UPLINK), &outer)?;
            ran.expect(TC_ACT_UNSPEC).context(about)?;
            ensure!(ran.packet == bytes, "{about}: changed\n{}", packet::hexdump(&ran.packet));
            ensure!(programs.counters()? == pods, "{about}: counted at a pod");
        }
        for (about, id, flags) in [
            ("of a node whose packets go through the stack", OTHER, NodeEntry::VXLAN),
            ("of a node on the same network", OTHER, NodeEntry::FAST),
            ("of a node without a row in UNDERLAY", 9, NodeEntry::VXLAN | NodeEntry::FAST),
        ] {
            let address = EndpointKey::ipv4(OTHER_V4).address;
            let row = NodeEntry { id, flags, address, ifindex: DEVICE, mtu: 1450 };
            programs.add_node(NodeKey::new("10.244.2.0".parse()?, 24), row)?;
            programs.index_nodes()?;
            receive(programs, SkBuff::on(UPLINK), &good())?.expect(TC_ACT_UNSPEC).context(about)?;
        }
        prepare(programs)?;
        receive(programs, SkBuff::on(UPLINK), &good())?.expect(TC_ACT_REDIRECT)?;
        let next = [192, 0, 2, 254];
        let way = UnderlayEntry { ifindex: DEVICE, next, source: NODE_V4, remote: OTHER_V4, device: DEVICE };
        programs.add_underlay(OTHER, way)?;
        // The kernel may refuse the packet there (`rp_filter`).
        let ran = receive(programs, SkBuff::on(UPLINK), &good())?;
        ran.expect(TC_ACT_UNSPEC).context("by an interface that packets to the node do not leave by")?;
        Ok(())
    })
    .unwrap();
}

/// The flags of the inner packet count, which is not at the start of the data.
#[test]
fn a_reset_inside_of_the_tunnel_ends_a_translated_flow() {
    const FLAGS: usize = 13;
    const ACK: u8 = 0x10;
    const RST: u8 = 4;
    with_pods(|programs| {
        prepare(programs)?;
        let (client, server) = ((EndpointKey::ipv4(REMOTE_V4), 41000), (EndpointKey::ipv4(A.v4), 8080));
        let key = FlowKey::between(TCP, client, server);
        record(programs, &key)?;
        let mut used = |flags| -> anyhow::Result<u32> {
            let mut segment = tcp(41000, 8080, b"");
            *segment.get_mut(FLAGS).context("no flags")? = flags;
            let outer = Outer::around(inner_frame(IPV4, &sent().with(&segment)));
            receive(programs, SkBuff::on(UPLINK), &outer)?.expect(TC_ACT_UNSPEC)?;
            Ok(programs.stack_flows.get(&key, 0)?.used)
        };
        let (open, reset) = (used(ACK)?, used(RST)?);
        // The end of a flow is in the upper bits of its time.
        ensure!(used(ACK)?.wrapping_sub(reset) < 1 << 20, "{open:x} {reset:x}");
        ensure!(open.wrapping_sub(reset) > 1 << 29, "{open:x} {reset:x}");
        Ok(())
    })
    .unwrap();
}

/// The tunnel device queues what it unpacks: a packet that the programs unpack would overtake.
#[test]
fn a_flow_with_packets_that_the_device_unpacks_is_left_to_the_device_for_a_while() {
    with_pods(|programs| {
        prepare(programs)?;
        let outer = Outer::around(inner_frame(IPV4, &sent().with(&segment())));
        let other = Outer { source_port: 50001, ..outer.clone() };
        let congested = Outer { ip: Ipv4 { tos: 3, ..other.ip.clone() }, ..other.clone() };
        let on = SkBuff::on(UPLINK);
        receive(programs, on, &outer)?.expect(TC_ACT_REDIRECT)?;
        receive(programs, SkBuff { gso_size: 40, ..on }, &outer)?.expect(TC_ACT_UNSPEC)?;
        receive(programs, on, &outer)?.expect(TC_ACT_UNSPEC).context("overtakes")?;
        receive(programs, on, &other)?.expect(TC_ACT_REDIRECT).context("another flow")?;
        receive(programs, on, &congested)?.expect(TC_ACT_UNSPEC)?;
        receive(programs, on, &other)?.expect(TC_ACT_UNSPEC).context("overtakes a congested packet")?;
        let third = Outer { source_port: 50003, ..outer.clone() };
        let ip = Ipv4 { source: [192, 0, 2, 9], tos: 3, ..third.ip.clone() };
        receive(programs, on, &Outer { ip, ..third.clone() })?.expect(TC_ACT_UNSPEC)?;
        receive(programs, on, &third)?.expect(TC_ACT_REDIRECT).context("a stranger slows a flow down")?;
        sys::wait_until("the device has delivered all", std::time::Duration::from_secs(5), || {
            Ok(receive(programs, on, &outer)?.verdict == TC_ACT_REDIRECT)
        })
    })
    .unwrap();
}

/// A pod that policies judge, and that no policy lets receive anything.
#[test]
fn policies_judge_what_is_taken_out_of_the_tunnel() {
    with_pods(|programs| {
        prepare(programs)?;
        let key = VifKey { ifindex: A.ifindex };
        let vif = programs.vifs.get(&key, 0)?;
        programs.vifs.insert(&key, &agent_common::VifEntry { subject: Default::default(), ..vif }, 0)?;
        let outer = Outer::around(inner_frame(IPV4, &sent().with(&segment())));
        let ran = receive(programs, SkBuff::on(UPLINK), &outer)?;
        ran.expect(ferrule_tests::program::TC_ACT_SHOT)?;
        let dropped = programs.counters()?.get(&A.ifindex).map(|it| it.ingress.drops.policy_unknown);
        ensure!(dropped == Some(1), "{dropped:?}");
        Ok(())
    })
    .unwrap();
}
