//! One field of a filter: matches if any of its values does.

use std::net::IpAddr;

use ferrule_proto::flow::{EventTypeFilter, FlowFilter, NetworkInterface, TcpFlags as Flags};
use ipnet::IpNet;

use super::error::{FilterError, MAX_VALUES};
use crate::monitor::{
    packet::{TcpFlags, Transport},
    seen::{Pod, Seen},
    show,
};

/// A field with its values.
#[derive(Debug)]
pub(super) enum Field {
    Address(End, Vec<IpNet>),
    Pod(End, Vec<PodPattern>),
    Port(End, Vec<u16>),
    Protocol(Vec<Protocol>),
    TcpFlags(Vec<TcpFlags>),
    Reply(Vec<bool>),
    Interface(Vec<NetworkInterface>),
    EventType(Vec<EventTypeFilter>),
    /// The numbers of enums, which may be newer than this agent.
    Verdict(Vec<i32>),
    DropReason(Vec<i32>),
    Direction(Vec<i32>),
    IpVersion(Vec<i32>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Source,
    Destination,
}

/// The beginning of a pod's name, and its namespace.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PodPattern {
    /// `None`: any.
    namespace: Option<String>,
    prefix: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Tcp,
    Udp,
    Sctp,
    Icmpv4,
    Icmpv6,
    Icmp,
}

const ADDRESS: &str = "an address, or a network such as 10.0.0.0/24";
const POD: &str = "namespace/name, or the beginning of it";
const PORT: &str = "a number from 0 to 65535";
const PROTOCOL: &str = "tcp, udp, sctp, icmp, icmpv4 or icmpv6";

/// Compiles the fields of a filter that are set.
pub(super) fn compile(filter: &FlowFilter) -> Result<Vec<Field>, FilterError> {
    use End::{Destination, Source};
    let mut fields = Vec::new();
    for (end, name, values) in
        [(Source, "source_ip", &filter.source_ip), (Destination, "destination_ip", &filter.destination_ip)]
    {
        fields.extend(parsed(name, values, ADDRESS, network)?.map(|it| Field::Address(end, it)));
    }
    for (end, name, values) in [
        (Source, "source_pod", &filter.source_pod),
        (Destination, "destination_pod", &filter.destination_pod),
    ] {
        fields.extend(parsed(name, values, POD, PodPattern::new)?.map(|it| Field::Pod(end, it)));
    }
    for (end, name, values) in [
        (Source, "source_port", &filter.source_port),
        (Destination, "destination_port", &filter.destination_port),
    ] {
        fields.extend(parsed(name, values, PORT, |it| it.parse().ok())?.map(|it| Field::Port(end, it)));
    }
    fields.extend(parsed("protocol", &filter.protocol, PROTOCOL, Protocol::new)?.map(Field::Protocol));
    fields.extend(bounded("reply", &filter.reply)?.map(Field::Reply));
    fields.extend(bounded("interface", &filter.interface)?.map(Field::Interface));
    fields.extend(bounded("event_type", &filter.event_type)?.map(Field::EventType));
    fields.extend(bounded("verdict", &filter.verdict)?.map(Field::Verdict));
    fields.extend(bounded("drop_reason_desc", &filter.drop_reason_desc)?.map(Field::DropReason));
    fields.extend(bounded("traffic_direction", &filter.traffic_direction)?.map(Field::Direction));
    fields.extend(bounded("ip_version", &filter.ip_version)?.map(Field::IpVersion));
    if let Some(flags) = bounded("tcp_flags", &filter.tcp_flags)? {
        fields.push(Field::TcpFlags(flags.iter().map(tcp_flags).collect::<Result<_, _>>()?));
    }
    Ok(fields)
}

// === impl Field ===

impl Field {
    pub(super) fn matches(&self, seen: &Seen) -> bool {
        match self {
            Self::Address(end, nets) => {
                end.address(seen).is_some_and(|address| nets.iter().any(|net| net.contains(&address)))
            }
            Self::Pod(end, patterns) => {
                end.pod(seen).is_some_and(|pod| patterns.iter().any(|it| it.matches(pod)))
            }
            Self::Port(end, ports) => end.port(seen).is_some_and(|port| ports.contains(&port)),
            Self::Protocol(protocols) => {
                seen.packet.transport().is_some_and(|it| protocols.iter().any(|protocol| protocol.is(it)))
            }
            Self::TcpFlags(wanted) => match seen.packet.transport() {
                Some(Transport::Tcp(_, Some(flags))) => wanted.iter().any(|it| flags.contains(*it)),
                _ => false,
            },
            Self::Reply(replies) => show::is_reply(seen).is_some_and(|it| replies.contains(&it)),
            Self::Interface(interfaces) => interfaces.iter().any(|it| is_interface(it, seen)),
            Self::EventType(types) => types.iter().any(|it| is_event_type(it, seen)),
            Self::Verdict(verdicts) => verdicts.contains(&show::verdict(seen).into()),
            Self::DropReason(reasons) => reasons.contains(&show::drop_reason(seen).into()),
            Self::Direction(directions) => directions.contains(&show::direction(seen).into()),
            Self::IpVersion(versions) => {
                seen.packet.ip().is_some_and(|ip| versions.contains(&show::version(ip.source).into()))
            }
        }
    }
}

// === impl End ===

impl End {
    fn pod(self, seen: &Seen) -> Option<&Pod> {
        match self {
            Self::Source => seen.source.as_ref(),
            Self::Destination => seen.destination.as_ref(),
        }
    }

    fn address(self, seen: &Seen) -> Option<IpAddr> {
        let ip = seen.packet.ip()?;
        Some(match self {
            Self::Source => ip.source,
            Self::Destination => ip.destination,
        })
    }

    fn port(self, seen: &Seen) -> Option<u16> {
        let ports = seen.packet.transport()?.ports()?;
        Some(match self {
            Self::Source => ports.source,
            Self::Destination => ports.destination,
        })
    }
}

// === impl PodPattern ===

impl PodPattern {
    /// As in Hubble's API: a name without a namespace is one of the namespace `default`.
    fn new(text: &str) -> Option<Self> {
        let (namespace, prefix) = text.split_once('/').unwrap_or(("default", text));
        let namespace = (!namespace.is_empty()).then(|| namespace.to_owned());
        (!text.is_empty() && !prefix.contains('/')).then(|| Self { namespace, prefix: prefix.to_owned() })
    }

    fn matches(&self, pod: &Pod) -> bool {
        self.namespace.as_ref().is_none_or(|namespace| namespace == pod.namespace())
            && pod.name().starts_with(&self.prefix)
    }
}

// === impl Protocol ===

impl Protocol {
    fn new(text: &str) -> Option<Self> {
        Some(match text.to_ascii_lowercase().as_str() {
            "tcp" => Self::Tcp,
            "udp" => Self::Udp,
            "sctp" => Self::Sctp,
            "icmp" => Self::Icmp,
            "icmpv4" => Self::Icmpv4,
            "icmpv6" => Self::Icmpv6,
            _ => return None,
        })
    }

    fn is(self, transport: Transport) -> bool {
        match transport {
            Transport::Tcp(..) => self == Self::Tcp,
            Transport::Udp(_) => self == Self::Udp,
            Transport::Sctp(_) => self == Self::Sctp,
            Transport::Icmpv4(_) => matches!(self, Self::Icmp | Self::Icmpv4),
            Transport::Icmpv6(_) => matches!(self, Self::Icmp | Self::Icmpv6),
        }
    }
}

/// `None` if the field is not set.
fn parsed<T>(
    field: &'static str,
    values: &[String],
    expected: &'static str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<Vec<T>>, FilterError> {
    let Some(values) = bounded(field, values)? else { return Ok(None) };
    let parse = |value: String| parse(&value).ok_or(FilterError::Value { field, value, expected });
    values.into_iter().map(parse).collect::<Result<_, _>>().map(Some)
}

/// `None` if the field is not set.
fn bounded<T: Clone>(field: &'static str, values: &[T]) -> Result<Option<Vec<T>>, FilterError> {
    match values.len() {
        0 => Ok(None),
        number if number > MAX_VALUES => Err(FilterError::TooManyValues { field, values: number }),
        _ => Ok(Some(values.to_vec())),
    }
}

fn network(text: &str) -> Option<IpNet> {
    text.parse().ok().or_else(|| text.parse().ok().map(|address: IpAddr| address.into()))
}

fn tcp_flags(flags: &Flags) -> Result<TcpFlags, FilterError> {
    let Flags { fin, syn, rst, psh, ack, urg, ece, cwr, ns } = *flags;
    if ns {
        let why = "the programs do not record the flag NS";
        return Err(FilterError::Unsupported { field: "tcp_flags.NS", why });
    }
    let bits = (0..).zip([fin, syn, rst, psh, ack, urg, ece, cwr]);
    Ok(TcpFlags(bits.fold(0, |flags, (bit, is_set)| flags | u8::from(is_set) << bit)))
}

fn is_interface(NetworkInterface { index, name }: &NetworkInterface, seen: &Seen) -> bool {
    (*index == 0 || *index == seen.interface.ifindex)
        && (name.is_empty() || seen.interface_name() == Some(name))
}

fn is_event_type(wanted: &EventTypeFilter, seen: &Seen) -> bool {
    let shown = show::event_type(seen);
    wanted.r#type == shown.r#type && (!wanted.match_sub_type || wanted.sub_type == shown.sub_type)
}
