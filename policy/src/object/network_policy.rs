//! The decoder of networking.k8s.io/v1 NetworkPolicy.
//!
//! In this API, a missing list and an empty one mean the same, except in a peer, where a missing selector and
//! an empty one differ.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    Effect, MAX_SPEC, PolicyObject,
    fields::{Cidr, ProtocolName, Wrong, decode, one_of},
    selector::LabelSelector,
};
use crate::{
    Action, Block, Namespaces, Peer, Peers, PodSet, Policy, PolicyId, Port, Ports, Protocol, Rule, Selector,
    Tier,
};

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Spec {
    pod_selector: Option<LabelSelector>,
    ingress: Option<Vec<IngressRule>>,
    egress: Option<Vec<EgressRule>>,
    policy_types: Option<Vec<PolicyType>>,
}

/// What a policy still says if its rules are not understood.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Outline {
    pod_selector: Option<Box<RawValue>>,
    egress: Option<Box<RawValue>>,
    policy_types: Option<Box<RawValue>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
enum PolicyType {
    Ingress,
    Egress,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct IngressRule {
    from: Option<Vec<RulePeer>>,
    ports: Option<Vec<RulePort>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EgressRule {
    to: Option<Vec<RulePeer>>,
    ports: Option<Vec<RulePort>>,
}

#[derive(Deserialize)]
#[serde(try_from = "RawPeer")]
enum RulePeer {
    /// Pods of the policy's own namespace.
    Own(Selector),
    Other(Peer),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawPeer {
    pod_selector: Option<LabelSelector>,
    namespace_selector: Option<LabelSelector>,
    ip_block: Option<IpBlock>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct IpBlock {
    cidr: Cidr,
    except: Option<Vec<Cidr>>,
}

#[derive(Deserialize)]
#[serde(try_from = "RawPort")]
struct RulePort(Port);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawPort {
    protocol: Option<ProtocolName>,
    port: Option<NumberOrName>,
    end_port: Option<i64>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a port's number or name")]
enum NumberOrName {
    Number(i64),
    Name(String),
}

/// Decodes a NetworkPolicy. One that is not understood isolates its subjects.
pub fn network_policy(object: &PolicyObject) -> Policy {
    let namespace = object.metadata.namespace.clone();
    let id = PolicyId::namespaced(&namespace, &object.metadata.name);
    let decoded = match object.spec.as_deref() {
        None => Ok(Spec::default()),
        Some(json) if json.get().len() > MAX_SPEC => {
            Err(Wrong::new("spec", format!("found {} bytes, expected at most {MAX_SPEC}", json.get().len())))
        }
        Some(json) => decode::<Option<Spec>>("spec", json).map(Option::unwrap_or_default),
    };
    let (pods, ingress, egress, problems) = match decoded {
        Ok(spec) => {
            let types = types(spec.policy_types, spec.egress.as_ref().is_some_and(|rules| !rules.is_empty()));
            let ingress = spec.ingress.unwrap_or_default().into_iter();
            let ingress = ingress.map(|it| rule(&namespace, it.from, it.ports)).collect();
            let egress = spec.egress.unwrap_or_default().into_iter();
            let egress = egress.map(|it| rule(&namespace, it.to, it.ports)).collect();
            let of = |which, rules| types.contains(&which).then_some(rules);
            let pods = spec.pod_selector.map_or_else(Selector::all, |LabelSelector(it)| it);
            (pods, of(PolicyType::Ingress, ingress), of(PolicyType::Egress, egress), Vec::new())
        }
        Err(wrong) => {
            let (pods, types) = object.spec.as_deref().map_or_else(unknown, outline);
            let of = |which| types.contains(&which).then(Vec::new);
            (pods, of(PolicyType::Ingress), of(PolicyType::Egress), vec![wrong.with(Effect::Isolates)])
        }
    };
    Policy {
        id,
        uid: object.metadata.uid.clone(),
        tier: Tier::Namespaced,
        subject: PodSet { namespaces: Namespaces::Named(namespace), pods },
        ingress,
        egress,
        problems,
    }
}

/// The directions of a policy.
fn types(listed: Option<Vec<PolicyType>>, has_egress: bool) -> Vec<PolicyType> {
    match listed {
        Some(types) if !types.is_empty() => types,
        _ if has_egress => vec![PolicyType::Ingress, PolicyType::Egress],
        _ => vec![PolicyType::Ingress],
    }
}

/// The subjects and the directions of a policy with unknown rules: no fewer than it may mean.
fn outline(json: &RawValue) -> (Selector, Vec<PolicyType>) {
    if json.get().len() > MAX_SPEC {
        return unknown();
    }
    let Ok(outline) = decode::<Outline>("spec", json) else { return unknown() };
    let pods = match outline.pod_selector {
        Some(json) => decode("", &json).map_or_else(|_| Selector::all(), |LabelSelector(it)| it),
        None => Selector::all(),
    };
    let listed = match outline.policy_types {
        Some(json) => decode::<Vec<PolicyType>>("", &json).ok(),
        None => Some(Vec::new()),
    };
    let has_egress = outline.egress.is_some_and(|json| json.get().trim() != "[]");
    match listed {
        Some(listed) => (pods, types(Some(listed), has_egress)),
        None => (pods, unknown().1),
    }
}

fn unknown() -> (Selector, Vec<PolicyType>) {
    (Selector::all(), vec![PolicyType::Ingress, PolicyType::Egress])
}

fn rule(namespace: &str, peers: Option<Vec<RulePeer>>, ports: Option<Vec<RulePort>>) -> Rule {
    let peer = |peer| match peer {
        RulePeer::Own(pods) => {
            Peer::Pods(PodSet { namespaces: Namespaces::Named(namespace.to_owned()), pods })
        }
        RulePeer::Other(peer) => peer,
    };
    let peers = match peers {
        Some(peers) if !peers.is_empty() => Peers::Of(peers.into_iter().map(peer).collect()),
        _ => Peers::Any,
    };
    let ports = match ports {
        Some(ports) if !ports.is_empty() => Ports::Of(ports.into_iter().map(|RulePort(it)| it).collect()),
        _ => Ports::Any,
    };
    Rule { name: None, action: Action::Accept, peers, ports }
}

impl TryFrom<RawPeer> for RulePeer {
    type Error = String;

    fn try_from(raw: RawPeer) -> Result<Self, String> {
        let RawPeer { pod_selector, namespace_selector, ip_block } = raw;
        let has_selector = pod_selector.is_some() || namespace_selector.is_some();
        one_of(&[("podSelector or namespaceSelector", has_selector), ("ipBlock", ip_block.is_some())])?;
        let pods = pod_selector.map(|LabelSelector(it)| it);
        Ok(match (ip_block, namespace_selector) {
            (Some(block), _) => {
                let mut except: Vec<_> = block.except.unwrap_or_default().iter().map(|it| it.0).collect();
                except.sort_unstable();
                except.dedup();
                Self::Other(Peer::Block(Block { cidr: block.cidr.0, except }))
            }
            (None, None) => Self::Own(pods.unwrap_or_default()),
            (None, Some(LabelSelector(namespaces))) => Self::Other(Peer::Pods(PodSet {
                namespaces: Namespaces::Matching(namespaces),
                pods: pods.unwrap_or_default(),
            })),
        })
    }
}

impl TryFrom<RawPort> for RulePort {
    type Error = String;

    fn try_from(raw: RawPort) -> Result<Self, String> {
        let protocol = raw.protocol.map_or(Protocol::Tcp, Protocol::from);
        let number = |port: i64| match u16::try_from(port) {
            Ok(port) if port > 0 => Ok(port),
            _ => Err(format!("found the port {port}, expected 1 to 65535")),
        };
        let range = |first, last| Ok(Self(Port::Range { protocol, first, last }));
        match (raw.port, raw.end_port) {
            (None, None) => range(0, u16::MAX),
            (Some(NumberOrName::Number(first)), None) => range(number(first)?, number(first)?),
            (Some(NumberOrName::Number(first)), Some(last)) if last >= first => {
                range(number(first)?, number(last)?)
            }
            (Some(NumberOrName::Name(name)), None) => {
                Ok(Self(Port::Named { protocol: Some(protocol), name }))
            }
            (_, Some(last)) => {
                Err(format!("found the endPort {last}, expected it with a number as port, and not below"))
            }
        }
    }
}
