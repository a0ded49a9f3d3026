//! A record as a row of the table.

use ferrule_proto::flow::{Endpoint, Ferrule, Flow, FlowState, TcpFlags, Traffic, Verdict, layer4::Protocol};
use jiff::Timestamp;

use crate::{
    paint,
    table::{plain, pod},
};

pub(super) const HEADER: [&str; 7] = ["TIME", "FROM", "TO", "PROTOCOL", "VERDICT", "IF", "NOTE"];

pub(super) fn row(flow: &Flow) -> [String; HEADER.len()] {
    let ferrule = flow.ferrule.clone().unwrap_or_default();
    let addresses = addresses(flow, &ferrule);
    let ports = ports(flow);
    [
        time(flow),
        end(flow.source.as_ref(), addresses.0, ports.map(|it| it.0)),
        end(flow.destination.as_ref(), addresses.1, ports.map(|it| it.1)),
        protocol(flow, &ferrule),
        verdict(flow, &ferrule),
        interface(flow),
        note(&ferrule),
    ]
}

/// With milliseconds, in UTC.
fn time(flow: &Flow) -> String {
    let time = flow.time.and_then(|it| Timestamp::new(it.seconds, it.nanos).ok());
    time.map_or_else(|| "-".to_owned(), |it| format!("{it:.3}"))
}

/// The addresses of the packet: those of IP or ARP, or else the MACs.
fn addresses<'a>(flow: &'a Flow, ferrule: &'a Ferrule) -> (&'a str, &'a str) {
    if let Some(ip) = &flow.ip {
        (&ip.source, &ip.destination)
    } else if let Some(arp) = &ferrule.arp {
        (&arp.sender_ip, &arp.target_ip)
    } else if let Some(ethernet) = &flow.ethernet {
        (&ethernet.source, &ethernet.destination)
    } else {
        ("", "")
    }
}

fn ports(flow: &Flow) -> Option<(u32, u32)> {
    match flow.l4.as_ref()?.protocol.as_ref()? {
        Protocol::Tcp(tcp) => Some((tcp.source_port, tcp.destination_port)),
        Protocol::Udp(udp) => Some((udp.source_port, udp.destination_port)),
        Protocol::Sctp(sctp) => Some((sctp.source_port, sctp.destination_port)),
        Protocol::IcmPv4(_) | Protocol::IcmPv6(_) => None,
    }
}

/// The pod, with the packet's address if that is not the pod's; or the address.
fn end(endpoint: Option<&Endpoint>, address: &str, port: Option<u32>) -> String {
    let port = port.map(|port| format!(":{port}")).unwrap_or_default();
    match endpoint {
        Some(it) if it.addresses.iter().any(|own| own == address) || address.is_empty() => {
            format!("{}{port}", pod(&it.namespace, &it.pod_name))
        }
        Some(it) => format!("{} ({address}){port}", pod(&it.namespace, &it.pod_name)),
        None if address.is_empty() => "-".to_owned(),
        None if address.contains(':') && !port.is_empty() => format!("[{address}]{port}"),
        None => format!("{address}{port}"),
    }
}

fn protocol(flow: &Flow, ferrule: &Ferrule) -> String {
    let transport = flow.l4.as_ref().and_then(|it| it.protocol.as_ref());
    let protocol = match transport {
        Some(Protocol::Tcp(tcp)) => {
            let names = tcp.flags.as_ref().map(flags).unwrap_or_default();
            format!("TCP {names}").trim_end().to_owned()
        }
        Some(Protocol::Udp(_)) => "UDP".to_owned(),
        Some(Protocol::Sctp(_)) => "SCTP".to_owned(),
        Some(Protocol::IcmPv4(icmp)) => format!("ICMPv4 {}/{}", icmp.r#type, icmp.code),
        Some(Protocol::IcmPv6(icmp)) => format!("ICMPv6 {}/{}", icmp.r#type, icmp.code),
        None => match ferrule {
            Ferrule { arp: Some(arp), .. } => match arp.operation {
                1 => "ARP request".to_owned(),
                2 => "ARP reply".to_owned(),
                operation => format!("ARP {operation}"),
            },
            Ferrule { ip_protocol: Some(number), .. } => format!("IP protocol {number}"),
            Ferrule { ethertype, .. } if *ethertype > 0 => format!("ethertype {ethertype:#06x}"),
            _ => "-".to_owned(),
        },
    };
    let fragment = if ferrule.fragment { " fragment" } else { "" };
    let vlan = ferrule.vlan.map(|it| format!(" VLAN {}", it.id)).unwrap_or_default();
    format!("{protocol}{fragment}{vlan}")
}

fn flags(flags: &TcpFlags) -> String {
    let TcpFlags { fin, syn, rst, psh, ack, urg, ece, cwr, ns } = *flags;
    let all = [
        (syn, "SYN"),
        (ack, "ACK"),
        (psh, "PSH"),
        (fin, "FIN"),
        (rst, "RST"),
        (urg, "URG"),
        (ece, "ECE"),
        (cwr, "CWR"),
        (ns, "NS"),
    ];
    let names: Vec<_> = all.into_iter().filter(|(is_set, _)| *is_set).map(|(_, name)| name).collect();
    names.join(",")
}

fn verdict(flow: &Flow, ferrule: &Ferrule) -> String {
    match flow.verdict() {
        Verdict::Dropped => paint::bad(format!("dropped {}", ferrule.reason).trim_end()),
        Verdict::Audit => paint::warn(format!("AUDIT {}", ferrule.reason).trim_end()),
        Verdict::Forwarded => match ferrule.state() {
            FlowState::New => "forwarded new".to_owned(),
            FlowState::Active => "forwarded active".to_owned(),
            FlowState::Closed => "forwarded closed".to_owned(),
            FlowState::Ended => "forwarded ended".to_owned(),
            FlowState::Unspecified => "forwarded".to_owned(),
        },
        other => other.as_str_name().to_lowercase(),
    }
}

/// The name, or the index of an interface whose pod is not known.
fn interface(flow: &Flow) -> String {
    match &flow.interface {
        Some(interface) if interface.name.is_empty() => interface.index.to_string(),
        Some(interface) => interface.name.clone(),
        None => "-".to_owned(),
    }
}

/// The policy that denies, packets and bytes of a flow in both directions, and records that are missing
/// before this one.
fn note(ferrule: &Ferrule) -> String {
    let Ferrule { forward, reverse, suppressed, lost, denied_by, .. } = ferrule;
    let mut notes = Vec::new();
    if !denied_by.is_empty() {
        notes.push(plain(denied_by));
    }
    if forward.is_some() || reverse.is_some() {
        let Traffic { packets: there, bytes: bytes_there } = forward.unwrap_or_default();
        let Traffic { packets: back, bytes: bytes_back } = reverse.unwrap_or_default();
        notes.push(format!("{there}/{back} packets, {bytes_there}/{bytes_back} bytes"));
    }
    if *suppressed > 0 {
        notes.push(format!("+{suppressed} suppressed"));
    }
    if *lost > 0 {
        notes.push(format!("+{lost} lost"));
    }
    notes.join(", ")
}
