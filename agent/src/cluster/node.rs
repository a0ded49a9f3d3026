//! A Node object, reduced to what routes and policies need. Each agent keeps those of the whole cluster, so
//! that every byte counts a thousand times.

use std::{net::IpAddr, sync::Arc};

use ipnet::IpNet;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{labels::Labels, objects::null};
use crate::{
    ipam::{PodCidrs, RangeError, parse_cidr},
    watch::{Object, ObjectKey},
};

/// What the API says about a node. Not judged: see the room `nodes`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(from = "Wire", into = "Wire")]
pub struct Node {
    pub key: ObjectKey,
    pub uid: Arc<str>,
    /// Seconds since the Unix epoch; the end of time if the object does not say.
    pub created: i64,
    /// The label `topology.kubernetes.io/zone`.
    pub zone: Option<Box<str>>,
    /// All labels: policies ask for any.
    pub labels: Labels,
    /// The first nine of `spec.podCIDRs`, in their order; or `spec.podCIDR`, which is older than the list.
    pub ranges: Box<[Stated<IpNet>]>,
    /// The first nine addresses of the type `InternalIP`, in their order.
    pub addresses: Box<[Stated<IpAddr>]>,
    /// The first eight addresses of other types. Only policies ask for them.
    pub others: Box<[IpAddr]>,
    /// The condition `NetworkUnavailable`, if it is True or False.
    pub is_network_unavailable: Option<bool>,
    /// Whether the node has the taint [`STARTUP_TAINT`].
    pub has_startup_taint: bool,
    /// Whether the control plane does not hear from the node. No kubelet can change that of its own Node.
    pub is_unreachable: bool,
    /// Taken out by the watch.
    version: Box<str>,
}

/// A part of an object, or its text if that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stated<T> {
    Read(T),
    /// At most [`MAX_TEXT`] characters.
    Unreadable(Box<str>),
}

/// Keeps pods off a node until its agent can serve them. Operators may register nodes with it.
pub const STARTUP_TAINT: &str = "ferrule.dev/agent-not-ready";
/// The taint by which the control plane says that it does not hear from a node.
const UNREACHABLE_TAINT: &str = "node.kubernetes.io/unreachable";
/// The condition of a Node by which a cloud keeps pods off until the node has routes.
pub const NETWORK_UNAVAILABLE: &str = "NetworkUnavailable";
/// Ranges and addresses that count, of each node. The API allows two ranges; a node with as many addresses
/// has interfaces to spare.
pub const MAX_STATED: usize = 8;
const MAX_TEXT: usize = 64;
/// The type of the addresses by which nodes reach each other.
const INTERNAL: &str = "InternalIP";

/// The fields of the API, and of a checkpoint.
#[derive(Default, Deserialize, Serialize)]
struct Wire {
    metadata: Metadata,
    #[serde(default, deserialize_with = "null")]
    spec: Spec,
    #[serde(default, deserialize_with = "null")]
    status: Status,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: String,
    #[serde(default, deserialize_with = "null")]
    uid: String,
    #[serde(default, deserialize_with = "null", skip_serializing)]
    resource_version: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    creation_timestamp: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    labels: Option<Box<RawValue>>,
}

#[derive(Default, Deserialize)]
struct Zone {
    #[serde(default, rename = "topology.kubernetes.io/zone")]
    zone: Option<String>,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    #[serde(default, deserialize_with = "null", rename = "podCIDRs")]
    pod_cidrs: Vec<String>,
    #[serde(default, deserialize_with = "null", rename = "podCIDR", skip_serializing)]
    pod_cidr: String,
    #[serde(default, deserialize_with = "null")]
    taints: Vec<Taint>,
}

#[derive(Deserialize, Serialize)]
struct Taint {
    #[serde(default, deserialize_with = "null")]
    key: String,
}

#[derive(Default, Deserialize, Serialize)]
struct Status {
    #[serde(default, deserialize_with = "null")]
    addresses: Vec<Address>,
    #[serde(default, deserialize_with = "null")]
    conditions: Vec<Condition>,
}

#[derive(Deserialize, Serialize)]
struct Address {
    #[serde(default, deserialize_with = "null")]
    r#type: String,
    #[serde(default, deserialize_with = "null")]
    address: String,
}

#[derive(Deserialize, Serialize)]
struct Condition {
    #[serde(default, deserialize_with = "null")]
    r#type: String,
    #[serde(default, deserialize_with = "null")]
    status: String,
}

// === impl Node ===

impl Node {
    pub fn name(&self) -> &str {
        self.key.name()
    }

    /// The node's own view of its ranges, if it has any.
    ///
    /// # Errors
    /// If pods cannot have addresses of them: then none counts.
    pub fn pod_cidrs(&self) -> Result<Option<PodCidrs>, RangeError> {
        let ranges = self.ranges.iter().take(MAX_STATED).map(|range| match range {
            Stated::Read(range) => Ok(*range),
            Stated::Unreadable(text) => parse_cidr(text),
        });
        let ranges = ranges.collect::<Result<Vec<_>, _>>().and_then(PodCidrs::new)?;
        Ok(Some(ranges).filter(|ranges| !ranges.nets().is_empty()))
    }
}

impl Object for Node {
    fn key(&self) -> ObjectKey {
        self.key.clone()
    }

    fn uid(&self) -> &str {
        &self.uid
    }

    fn take_version(&mut self) -> String {
        std::mem::take(&mut self.version).into()
    }

    /// A kubelet rewrites its Node's status at least every five minutes.
    fn is_repeated_from(&self, earlier: &Self) -> bool {
        self == earlier
    }
}

// === impl Stated ===

impl<T> Stated<T> {
    /// What could be read.
    pub fn read(&self) -> Option<&T> {
        match self {
            Self::Read(read) => Some(read),
            Self::Unreadable(_) => None,
        }
    }

    fn of<E>(text: &str, read: impl FnOnce(&str) -> Result<T, E>) -> Self {
        if let Ok(read) = read(text) {
            return Self::Read(read);
        }
        let mut kept: String = text.chars().take(MAX_TEXT).collect();
        if kept.len() < text.len() {
            kept.pop();
            kept.push('…');
        }
        Self::Unreadable(kept.into())
    }
}

impl<T: ToString> Stated<T> {
    fn text(&self) -> String {
        match self {
            Self::Read(read) => read.to_string(),
            Self::Unreadable(text) => text.to_string(),
        }
    }
}

// === impl Wire ===

impl From<Wire> for Node {
    fn from(Wire { metadata, spec, status }: Wire) -> Self {
        let single = std::slice::from_ref(&spec.pod_cidr);
        let ranges = if spec.pod_cidrs.is_empty() { single } else { spec.pod_cidrs.as_slice() };
        let ranges = ranges.iter().filter(|text| !text.is_empty()).take(MAX_STATED + 1);
        let addresses = status.addresses.iter().filter(|it| it.r#type == INTERNAL).take(MAX_STATED + 1);
        let others = status.addresses.iter().filter(|it| it.r#type != INTERNAL);
        let others = others.filter_map(|it| it.address.parse().ok()).take(MAX_STATED);
        let labels = metadata.labels.as_deref().map(RawValue::get).filter(|it| *it != "{}");
        let zone = labels.and_then(|it| serde_json::from_str::<Zone>(it).ok()).and_then(|it| it.zone);
        let condition = status.conditions.iter().find(|it| it.r#type == NETWORK_UNAVAILABLE);
        let created = metadata.creation_timestamp.and_then(|text| text.parse::<Timestamp>().ok());
        Self {
            key: ObjectKey::new("", &metadata.name),
            uid: metadata.uid.into(),
            created: created.map_or(i64::MAX, Timestamp::as_second),
            zone: zone.map(Into::into),
            labels: labels.map(|it| Labels::new(it, &metadata.name)).unwrap_or_default(),
            ranges: ranges.map(|text| Stated::of(text, parse_cidr)).collect(),
            addresses: addresses.map(|it| Stated::of(&it.address, str::parse)).collect(),
            others: others.collect(),
            is_network_unavailable: condition.and_then(|it| match it.status.as_str() {
                "True" => Some(true),
                "False" => Some(false),
                _ => None,
            }),
            has_startup_taint: spec.taints.iter().any(|it| it.key == STARTUP_TAINT),
            is_unreachable: spec.taints.iter().any(|it| it.key == UNREACHABLE_TAINT),
            version: metadata.resource_version.into(),
        }
    }
}

impl From<Node> for Wire {
    fn from(node: Node) -> Self {
        let created = Timestamp::from_second(node.created).ok().filter(|_| node.created < i64::MAX);
        let metadata = Metadata {
            name: node.name().to_owned(),
            uid: node.uid.as_ref().to_owned(),
            resource_version: String::new(),
            creation_timestamp: created.map(|it| it.to_string()),
            labels: RawValue::from_string(node.labels.json(node.name())).ok(),
        };
        let taints =
            [(node.has_startup_taint, STARTUP_TAINT), (node.is_unreachable, UNREACHABLE_TAINT)].into_iter();
        let taints = taints.filter(|(is_set, _)| *is_set).map(|(_, key)| Taint { key: key.to_owned() });
        let spec = Spec {
            pod_cidrs: node.ranges.iter().map(Stated::text).collect(),
            pod_cidr: String::new(),
            taints: taints.collect(),
        };
        let address = |r#type: &str, address| Address { r#type: r#type.to_owned(), address };
        let internal = node.addresses.iter().map(|it| address(INTERNAL, it.text()));
        // Which other type is of no matter.
        let others = node.others.iter().map(|it| address("ExternalIP", it.to_string()));
        let condition = node.is_network_unavailable.map(|is_true| Condition {
            r#type: NETWORK_UNAVAILABLE.to_owned(),
            status: if is_true { "True" } else { "False" }.to_owned(),
        });
        let status = Status {
            addresses: internal.chain(others).collect(),
            conditions: condition.into_iter().collect(),
        };
        Self { metadata, spec, status }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(json: &str) -> Node {
        serde_json::from_str(json).unwrap()
    }

    const FULL: &str = r#"{"metadata":{"name":"node-1","uid":"u1","resourceVersion":"7",
        "creationTimestamp":"2026-01-02T03:04:05Z","managedFields":[{"x":1}],
        "labels":{"kubernetes.io/hostname":"node-1","topology.kubernetes.io/zone":"z1"}},
        "spec":{"podCIDR":"fd00::/64","podCIDRs":["fd00::/64","10.0.0.0/24","ten"],
            "taints":[{"key":"other","effect":"NoExecute"},
                {"key":"ferrule.dev/agent-not-ready","effect":"NoSchedule"},
                {"key":"node.kubernetes.io/unreachable","effect":"NoExecute"}]},
        "status":{"images":[{"names":["a"],"sizeBytes":1}],
            "addresses":[{"type":"Hostname","address":"node-1"},{"type":"InternalIP","address":"192.0.2.1"},
                {"type":"InternalIP","address":"2001:db8::1"},{"type":"ExternalIP","address":"198.51.100.1"}],
            "conditions":[{"type":"Ready","status":"True"},{"type":"NetworkUnavailable","status":"True"}]}}"#;

    #[test]
    fn a_node_keeps_its_used_fields_only_and_survives_a_checkpoint() {
        let mut node = node(FULL);
        assert_eq!((node.take_version(), node.name()), ("7".to_owned(), "node-1"));
        assert_eq!(node.created, 1_767_323_045);
        assert_eq!(node.zone.as_deref(), Some("z1"));
        let [v6, v4, ten] = &*node.ranges else { panic!("{node:?}") };
        assert_eq!((v6.text(), v4.text()), ("fd00::/64".to_owned(), "10.0.0.0/24".to_owned()));
        assert_eq!(*ten, Stated::Unreadable("ten".into()));
        let addresses: Vec<_> = node.addresses.iter().map(Stated::text).collect();
        assert_eq!(addresses, ["192.0.2.1", "2001:db8::1"]);
        assert_eq!(*node.others, ["198.51.100.1".parse::<IpAddr>().unwrap()]);
        let labels = node.labels.json("node-1");
        assert_eq!(labels, r#"{"kubernetes.io/hostname":"node-1","topology.kubernetes.io/zone":"z1"}"#);
        assert_eq!((node.is_network_unavailable, node.has_startup_taint), (Some(true), true));
        assert!(node.is_unreachable);
        let stored = serde_json::to_string(&node).unwrap();
        assert!(!stored.contains("images") && !stored.contains("managedFields"), "{stored}");
        assert_eq!(serde_json::from_str::<Node>(&stored).unwrap(), node);
    }

    #[test]
    fn an_empty_node_survives_a_checkpoint_and_counts_as_the_youngest() {
        let empty = node(r#"{"metadata":{"name":"a","labels":null},"spec":{"taints":null},"status":null}"#);
        assert_eq!((empty.created, empty.is_network_unavailable), (i64::MAX, None));
        assert!(
            !empty.has_startup_taint
                && !empty.is_unreachable
                && empty.ranges.is_empty()
                && empty.addresses.is_empty()
        );
        assert_eq!(node(&serde_json::to_string(&empty).unwrap()), empty);
    }

    #[test]
    fn a_rewritten_status_without_news_repeats_the_node() {
        let first = node(FULL);
        let mut again = node(&FULL.replace("sizeBytes\":1", "sizeBytes\":2").replace("\"7\"", "\"8\""));
        assert_eq!(again.take_version(), "8");
        let mut taken = first.clone();
        taken.take_version();
        assert!(again.is_repeated_from(&taken));
        assert!(!node(&FULL.replace("192.0.2.1", "192.0.2.2")).is_repeated_from(&taken));
    }

    #[test]
    fn of_a_hundred_addresses_nine_are_kept_and_of_a_long_text_its_beginning() {
        let addresses: Vec<_> =
            (1..=100).map(|it| format!(r#"{{"type":"InternalIP","address":"192.0.2.{it}"}}"#)).collect();
        let many = node(&format!(
            r#"{{"metadata":{{"name":"a"}},"spec":{{"podCIDR":"{}"}},"status":{{"addresses":[{}]}}}}"#,
            "é".repeat(1000),
            addresses.join(",")
        ));
        assert_eq!(many.addresses.len(), MAX_STATED + 1);
        let [Stated::Unreadable(text)] = &*many.ranges else { panic!("{many:?}") };
        assert_eq!((text.chars().count(), text.chars().last()), (MAX_TEXT, Some('…')));
        let stored = node(&serde_json::to_string(&many).unwrap());
        assert_eq!(stored, many);
    }

    #[test]
    fn pod_cidrs_are_read_in_their_order_from_the_list_and_else_from_the_single_field() {
        let of = |spec: &str| -> Result<Option<String>, String> {
            let node = node(&format!(r#"{{"metadata":{{"name":"node","uid":"u1"}},"spec":{spec}}}"#));
            let ranges = node.pod_cidrs().map_err(|error| error.to_string())?;
            Ok(ranges.map(|ranges| ranges.to_string()))
        };
        let both = r#"{"podCIDR":"fd00::/64","podCIDRs":["fd00::/64","10.0.0.0/24"]}"#;
        assert_eq!(of(both), Ok(Some("fd00::/64, 10.0.0.0/24".to_owned())));
        assert_eq!(of(r#"{"podCIDR":"10.0.0.0/24"}"#), Ok(Some("10.0.0.0/24".to_owned())));
        assert_eq!(of("{}"), Ok(None));
        assert!(of(r#"{"podCIDRs":["10.0.0.0/24","ten"]}"#).unwrap_err().contains("ten"));
        assert!(of(r#"{"podCIDRs":["10.0.0.0/31"]}"#).unwrap_err().contains("too small"));
    }
}
