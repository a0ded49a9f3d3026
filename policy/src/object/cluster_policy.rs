//! The decoder of policy.networking.k8s.io/v1alpha2 ClusterNetworkPolicy.
//!
//! In this API, no list may be empty, and peers, ports and subjects have exactly one field.

use std::collections::BTreeMap;

use ferrule_proto::quoted::Quoted;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    DecodeError, Effect, MAX_SPEC, PolicyObject, Problem,
    fields::{Cidr, Wrong, decode, one_of},
    selector::LabelSelector,
};
use crate::{
    Action, Block, Namespaces, Peer, Peers, PodSet, Policy, PolicyId, Port, Ports, Protocol, Rule, Selector,
    Tier,
};

/// The fields of `spec`, each decoded on its own: what one means does not depend on the others.
type Fields = BTreeMap<String, Box<RawValue>>;

#[derive(Deserialize)]
enum TierName {
    Admin,
    Baseline,
}

#[derive(Clone, Copy, Deserialize)]
enum ActionName {
    Accept,
    Deny,
    Pass,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct IngressRule {
    name: Option<String>,
    action: ActionName,
    from: Vec<IngressPeer>,
    protocols: Option<Vec<RuleProtocol>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EgressRule {
    name: Option<String>,
    action: ActionName,
    to: Vec<EgressPeer>,
    protocols: Option<Vec<RuleProtocol>>,
}

#[derive(Deserialize)]
struct RuleOutline {
    name: Option<String>,
    action: ActionName,
}

/// Pods, in the subject and as peers.
#[derive(Deserialize)]
#[serde(try_from = "RawPods")]
struct Pods(PodSet);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPods {
    namespaces: Option<LabelSelector>,
    pods: Option<NamespacedPod>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NamespacedPod {
    namespace_selector: Option<LabelSelector>,
    pod_selector: LabelSelector,
}

type IngressPeer = Pods;

/// One peer each network.
#[derive(Deserialize)]
#[serde(try_from = "RawEgressPeer")]
struct EgressPeer(Vec<Peer>);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawEgressPeer {
    namespaces: Option<LabelSelector>,
    pods: Option<NamespacedPod>,
    nodes: Option<LabelSelector>,
    networks: Option<Vec<Cidr>>,
    domain_names: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(try_from = "RawProtocol")]
struct RuleProtocol(Port);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawProtocol {
    tcp: Option<WithPort>,
    udp: Option<WithPort>,
    sctp: Option<WithPort>,
    destination_named_port: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WithPort {
    destination_port: PortNumbers,
}

#[derive(Deserialize)]
#[serde(try_from = "RawNumbers")]
struct PortNumbers(u16, u16);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawNumbers {
    number: Option<u16>,
    range: Option<Range>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Range {
    start: u16,
    end: u16,
}

/// Decodes a ClusterNetworkPolicy. What is not understood never accepts.
///
/// # Errors
/// If `spec` is missing, too long, or no object: the schema in the API server lets none of these pass.
pub fn cluster_network_policy(object: &PolicyObject) -> Result<Policy, DecodeError> {
    let id = PolicyId::cluster(&object.metadata.name);
    let error = |wrong: Wrong| DecodeError { policy: id.clone(), field: wrong.field, reason: wrong.reason };
    let spec = object.spec.as_deref();
    let spec = spec.ok_or_else(|| error(Wrong::new("spec", "missing, expected an object")))?;
    if spec.get().len() > MAX_SPEC {
        let reason = format!("found {} bytes, expected at most {MAX_SPEC}", spec.get().len());
        return Err(error(Wrong::new("spec", reason)));
    }
    let mut fields: Fields = decode("spec", spec).map_err(error)?;
    let mut problems = Vec::new();
    let subject = understood(&mut problems, required(&mut fields, "subject")).map(|Pods(set)| set);
    let tier = understood(&mut problems, required(&mut fields, "tier"));
    let priority = understood(&mut problems, required(&mut fields, "priority").and_then(priority));
    let rules = [fields.remove("ingress"), fields.remove("egress")];
    for field in fields.keys() {
        let reason = format!("found the unknown field {}, expected the fields of v1alpha2", Quoted(field));
        problems.push(Wrong::new("spec", reason).with(Effect::DeniesOnly));
    }
    let denies_only = !problems.is_empty();
    let [ingress, egress] = rules;
    let mut policy = Policy {
        id,
        uid: object.metadata.uid.clone(),
        tier: match tier {
            Some(TierName::Baseline) => Tier::Baseline(priority.unwrap_or_default()),
            Some(TierName::Admin) => Tier::Admin(priority.unwrap_or_default()),
            None => Tier::Admin(0),
        },
        subject: subject.unwrap_or_else(|| pod_set(Selector::all(), Selector::all())),
        ingress: rules_of("spec.ingress", ingress.as_deref(), ingress_rule, &mut problems),
        egress: rules_of("spec.egress", egress.as_deref(), egress_rule, &mut problems),
        problems,
    };
    if denies_only {
        let rules = policy.ingress.iter_mut().chain(&mut policy.egress).flatten();
        rules.for_each(|rule| match rule.action {
            Action::Accept => rule.peers = Peers::Of(Vec::new()),
            Action::Deny | Action::Pass => rule.action = Action::Deny,
        });
    }
    Ok(policy)
}

fn understood<T>(problems: &mut Vec<Problem>, decoded: Result<T, Wrong>) -> Option<T> {
    decoded.map_err(|wrong| problems.push(wrong.with(Effect::DeniesOnly))).ok()
}

fn required<T: serde::de::DeserializeOwned>(fields: &mut Fields, name: &str) -> Result<T, Wrong> {
    let field = format!("spec.{name}");
    let json = fields.remove(name).ok_or_else(|| Wrong::new(&field, "missing"))?;
    decode(&field, &json)
}

fn priority(priority: i64) -> Result<u16, Wrong> {
    match u16::try_from(priority) {
        Ok(priority) if priority <= 1000 => Ok(priority),
        _ => Err(Wrong::new("spec.priority", format!("found {priority}, expected 0 to 1000"))),
    }
}

/// Rules that are not understood keep their place.
fn rules_of(
    field: &str,
    json: Option<&RawValue>,
    rule: fn(&str, &RawValue) -> Result<Rule, Wrong>,
    problems: &mut Vec<Problem>,
) -> Option<Vec<Rule>> {
    let rules = match decode::<Option<Vec<Box<RawValue>>>>(field, json?) {
        Ok(rules) => rules?,
        Err(wrong) => {
            problems.push(wrong.with(Effect::DeniesAll));
            return Some(vec![closed(None, Action::Deny)]);
        }
    };
    let rules = rules.iter().enumerate().map(|(i, json)| {
        let field = format!("{field}[{i}]");
        rule(&field, json).unwrap_or_else(|wrong| {
            let outline = decode::<RuleOutline>(&field, json).ok();
            let action = outline.as_ref().map_or(Action::Deny, |it| it.action.into());
            let rule = closed(outline.and_then(|it| it.name), action);
            problems.push(wrong.with(match rule.action {
                Action::Accept => Effect::MatchesNothing,
                Action::Deny | Action::Pass => Effect::DeniesAll,
            }));
            rule
        })
    });
    Some(rules.collect())
}

/// A rule that was not understood.
fn closed(name: Option<String>, action: Action) -> Rule {
    match action {
        Action::Accept => Rule { name, action, peers: Peers::Of(Vec::new()), ports: Ports::Any },
        Action::Deny | Action::Pass => {
            Rule { name, action: Action::Deny, peers: Peers::Any, ports: Ports::Any }
        }
    }
}

fn ingress_rule(field: &str, json: &RawValue) -> Result<Rule, Wrong> {
    let IngressRule { name, action, from, protocols } = decode(field, json)?;
    let peers: Vec<_> = from.into_iter().map(|Pods(set)| Peer::Pods(set)).collect();
    let peers = not_empty(peers).map_err(|reason| Wrong::new(format!("{field}.from"), reason))?;
    Ok(Rule { name, action: action.into(), peers: Peers::Of(peers), ports: ports(field, protocols)? })
}

fn egress_rule(field: &str, json: &RawValue) -> Result<Rule, Wrong> {
    let EgressRule { name, action, to, protocols } = decode(field, json)?;
    let peers: Vec<_> = to.into_iter().flat_map(|EgressPeer(peers)| peers).collect();
    let peers = not_empty(peers).map_err(|reason| Wrong::new(format!("{field}.to"), reason))?;
    Ok(Rule { name, action: action.into(), peers: Peers::Of(peers), ports: ports(field, protocols)? })
}

fn ports(field: &str, protocols: Option<Vec<RuleProtocol>>) -> Result<Ports, Wrong> {
    let Some(protocols) = protocols else { return Ok(Ports::Any) };
    let ports = protocols.into_iter().map(|RuleProtocol(port)| port).collect();
    let ports = not_empty(ports).map_err(|reason| Wrong::new(format!("{field}.protocols"), reason))?;
    Ok(Ports::Of(ports))
}

fn not_empty<T>(items: Vec<T>) -> Result<Vec<T>, String> {
    if items.is_empty() {
        Err("found an empty list, expected at least one element".to_owned())
    } else {
        Ok(items)
    }
}

fn pod_set(namespaces: Selector, pods: Selector) -> PodSet {
    PodSet { namespaces: Namespaces::Matching(namespaces), pods }
}

impl From<NamespacedPod> for PodSet {
    fn from(pod: NamespacedPod) -> Self {
        let namespaces = pod.namespace_selector.map_or_else(Selector::all, |LabelSelector(it)| it);
        pod_set(namespaces, pod.pod_selector.0)
    }
}

impl TryFrom<RawPods> for Pods {
    type Error = String;

    fn try_from(raw: RawPods) -> Result<Self, String> {
        one_of(&[("namespaces", raw.namespaces.is_some()), ("pods", raw.pods.is_some())])?;
        let namespaces = raw.namespaces.map(|LabelSelector(it)| pod_set(it, Selector::all()));
        namespaces.or(raw.pods.map(PodSet::from)).map(Self).ok_or_else(String::new)
    }
}

impl TryFrom<RawEgressPeer> for EgressPeer {
    type Error = String;

    fn try_from(raw: RawEgressPeer) -> Result<Self, String> {
        let RawEgressPeer { namespaces, pods, nodes, networks, domain_names } = raw;
        one_of(&[
            ("namespaces", namespaces.is_some()),
            ("pods", pods.is_some()),
            ("nodes", nodes.is_some()),
            ("networks", networks.is_some()),
            ("domainNames", domain_names.is_some()),
        ])?;
        if domain_names.is_some() {
            return Err(
                "found domainNames, which are unsupported; expected networks, nodes, pods or namespaces"
                    .into(),
            );
        }
        if let Some(networks) = networks {
            let block = |Cidr(cidr)| Peer::Block(Block { cidr, except: Vec::new() });
            return not_empty(networks.into_iter().map(block).collect()).map(Self);
        }
        let nodes = nodes.map(|LabelSelector(it)| Peer::Nodes(it));
        let namespaces = namespaces.map(|LabelSelector(it)| Peer::Pods(pod_set(it, Selector::all())));
        let pods = pods.map(|it| Peer::Pods(it.into()));
        Ok(Self(nodes.or(namespaces).or(pods).into_iter().collect()))
    }
}

impl TryFrom<RawProtocol> for RuleProtocol {
    type Error = String;

    fn try_from(raw: RawProtocol) -> Result<Self, String> {
        let RawProtocol { tcp, udp, sctp, destination_named_port } = raw;
        let name = destination_named_port.filter(|name| !name.is_empty());
        one_of(&[
            ("tcp", tcp.is_some()),
            ("udp", udp.is_some()),
            ("sctp", sctp.is_some()),
            ("destinationNamedPort", name.is_some()),
        ])?;
        let range = |protocol| {
            move |it: WithPort| {
                let PortNumbers(first, last) = it.destination_port;
                Port::Range { protocol, first, last }
            }
        };
        let tcp = tcp.map(range(Protocol::Tcp));
        let port = tcp.or(udp.map(range(Protocol::Udp))).or(sctp.map(range(Protocol::Sctp)));
        let named = name.map(|name| Port::Named { protocol: None, name });
        port.or(named).map(Self).ok_or_else(String::new)
    }
}

impl TryFrom<RawNumbers> for PortNumbers {
    type Error = String;

    fn try_from(raw: RawNumbers) -> Result<Self, String> {
        one_of(&[("number", raw.number.is_some()), ("range", raw.range.is_some())])?;
        let (first, last) = match (raw.number, raw.range) {
            (Some(number), _) => (number, number),
            (None, range) => range.map_or((0, 0), |Range { start, end }| (start, end)),
        };
        if first == 0 || last < first {
            return Err(format!(
                "found the ports {first} to {last}, expected 1 to 65535 and the first one first"
            ));
        }
        Ok(Self(first, last))
    }
}

impl From<ActionName> for Action {
    fn from(name: ActionName) -> Self {
        match name {
            ActionName::Accept => Self::Accept,
            ActionName::Deny => Self::Deny,
            ActionName::Pass => Self::Pass,
        }
    }
}
