//! Kubernetes network policies, compiled into rows of maps that a BPF program evaluates.
//!
//! The crate is pure: [`object`] decodes what the API serves, a [`Compiler`] takes one [`Change`] after the
//! other and answers each with a [`Delta`] of rows, and [`lookup()`] judges a packet by the rows alone, as
//! the BPF program does.
//!
//! # Classes and rulesets
//!
//! ```text
//! policy in namespace web, podSelector app=front:
//!     ingress: from namespaces team=a, or from 10.0.0.0/8 except 10.9.0.0/16; to port 80
//!     ingress: from anywhere; to port "metrics", which the pod gives to 9100
//! ```
//!
//! * A *predicate* is what a rule asks about an address: `team=a`, and `10.0.0.0/8 except 10.9.0.0/16`. Only
//!   what the policies of this node's pods ask counts.
//! * A *class* is a set of predicates that are true for the same addresses. Here are up to four: none, the
//!   one, the other, both. `PEERS` has the class of each pod's address, blocks included. Other addresses have
//!   that of the longest prefix in `BLOCKS`: 10.0.0.0/8 with one predicate, and 10.9.0.0/16 with none.
//! * A *ruleset* is the rules that pods with the same policies share, for one direction. Each rule is a
//!   *bit*: 0 for port 80, 1 for `metrics`. `RULES` has, for ruleset and class, the bits whose peers contain
//!   the class: {0, 1} for all three classes with predicates; other classes have no row, and the header's
//!   default {1}. The header also has the ports: TCP 80 {0}, TCP 9100 {1}.
//! * The *verdict* is the lowest bit that both have. Bits are in the order of judgement, and name the rule.
//!
//! A new pod in a known class costs one row, and so does a label edit. A policy costs rows for its classes
//! and ports, not for its pods times its peers.
//!
//! ```
//! use std::sync::Arc;
//!
//! use ferrule_policy::{Change, Compiler, Direction, Endpoint, EndpointId, Origin, Packet, lookup, object};
//!
//! let policy = serde_json::from_str(
//!     r#"{"metadata": {"namespace": "web", "name": "front"},
//!         "spec": {"podSelector": {"matchLabels": {"app": "front"}},
//!                  "ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.9.0.0/16"]}}],
//!                               "ports": [{"port": 80}]}]}}"#,
//! )?;
//! let namespace = serde_json::from_str(r#"{"metadata": {"name": "web"}}"#)?;
//! let pod = serde_json::from_str(
//!     r#"{"metadata": {"namespace": "web", "name": "front-0", "uid": "1", "labels": {"app": "front"}}}"#,
//! )?;
//! let own = "10.244.0.2".parse()?;
//! let mut compiler = Compiler::default();
//! let delta = compiler.apply([
//!     Change::Namespace(namespace),
//!     Change::Policy(object::network_policy(&policy).into()),
//!     Change::Pod(Arc::new(pod)),
//!     Change::Endpoint(Endpoint { id: EndpointId(7), uid: "1".to_owned(), addresses: vec![own] }),
//! ])?;
//! assert!(!delta.ops.is_empty());
//! let packet = |peer: &str, port| Packet {
//!     endpoint: EndpointId(7),
//!     direction: Direction::Ingress,
//!     own,
//!     peer: peer.parse().unwrap(),
//!     protocol: 6,
//!     port,
//!     origin: Origin::Other,
//!     in_pod_range: false,
//! };
//! let is_allowed = |peer, port| lookup(compiler.rows(), &packet(peer, port)).is_allowed;
//! assert!(is_allowed("10.1.2.3", 80));
//! assert!(!is_allowed("10.9.2.3", 80) && !is_allowed("10.1.2.3", 81));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod address;
mod change;
mod compile;
mod describe;
#[cfg(feature = "maps")]
mod encode;
mod explain;
mod journal;
mod lookup;
mod mask;
pub mod object;
mod object_key;
mod policy;
#[cfg(feature = "maps")]
mod recorded;
mod rows;
pub mod shown;
mod store;
mod trace;

pub use address::{Addr, Prefix};
pub use change::{Capacities, Change, Endpoint, Refused, Resource};
pub use compile::{Compiler, Decided, RuleId, Usage};
pub use explain::{Counted, Explanation, Judges};
pub use lookup::{Origin, Packet, Reason, Verdict, lookup};
pub use mask::Mask;
pub use object_key::ObjectKey;
pub use policy::{
    Action, Block, Condition, Direction, Namespaces, Peer, Peers, PodSet, Policy, PolicyId, Port, Ports,
    Protocol, Requirement, Rule, Selector, Tier,
};
#[cfg(feature = "maps")]
pub use recorded::{Maps, Recorded, recorded};
pub use rows::{
    ClassId, Delta, EndpointId, EndpointRow, Header, MAX_RANGES, NamedKey, Op, PeerRow, PortKey, PortRange,
    Rows, RuleKey, RulesetId, Table,
};
pub use trace::{Because, Party, Step, Trace, TraceError, TracedEnd};
