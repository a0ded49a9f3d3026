//! The meaning of policies, read from their JSON as slowly and plainly as possible. Shares nothing with the
//! compiler: neither code nor constants nor the order of its questions.

use std::net::IpAddr;

use serde_json::Value;

use super::world::{End, Labels, Traffic, World};

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    In,
    Out,
}

pub fn allowed(world: &World, from: End<'_>, to: End<'_>, traffic: Traffic) -> bool {
    one_way(world, Way::Out, from, to, traffic) && one_way(world, Way::In, to, from, traffic)
}

/// Whether the policies of `me` let a packet through.
pub fn one_way(world: &World, way: Way, me: End<'_>, other: End<'_>, traffic: Traffic) -> bool {
    let End::Pod(me, _) = me else { return true };
    let pod = &world.pods[me];
    if pod.is_terminal || pod.host_network {
        return true;
    }
    if matches!(other, End::Pod(uid, _) if uid == me) {
        return true;
    }
    let from_own_node = matches!(other, End::OwnNode(_));
    if way == Way::In && from_own_node {
        return true;
    }
    let destination = if way == Way::In { Some(me) } else { pod_of(other) };
    match tier(world, "Admin", way, me, other, destination, traffic) {
        Some("Accept") => return true,
        Some("Deny") => return false,
        _ => {}
    }
    let mine = world.policies.iter().filter(|((namespace, _), spec)| {
        *namespace == pod.namespace && speaks_of(spec, way) && namespaced_subject(spec, &pod.labels)
    });
    let mine: Vec<_> = mine.collect();
    if mine.is_empty() {
        return tier(world, "Baseline", way, me, other, destination, traffic) != Some("Deny");
    }
    from_own_node
        || mine.iter().any(|((namespace, _), spec)| {
            let (list, peers) = if way == Way::In { ("ingress", "from") } else { ("egress", "to") };
            namespaced_is_valid(spec)
                && items(&spec[list]).iter().any(|rule| {
                    let peers = items(&rule[peers]);
                    let is_peer = |peer: &Value| namespaced_peer(world, namespace, peer, other);
                    let ports = items(&rule["ports"]);
                    (peers.is_empty() || peers.iter().any(is_peer))
                        && (ports.is_empty()
                            || ports.iter().any(|port| namespaced_port(world, port, destination, traffic)))
                })
        })
}

/// What a tier of ClusterNetworkPolicies says.
fn tier(
    world: &World,
    name: &str,
    way: Way,
    me: &str,
    other: End<'_>,
    destination: Option<&str>,
    traffic: Traffic,
) -> Option<&'static str> {
    let (list, peers) = if way == Way::In { ("ingress", "from") } else { ("egress", "to") };
    let mut policies: Vec<_> = world.cluster_policies.values().filter(|spec| spec["tier"] == name).collect();
    policies.sort_by_key(|spec| spec["priority"].as_u64().unwrap());
    for spec in policies {
        let subject = &spec["subject"];
        if !cluster_pods(world, subject, me) {
            continue;
        }
        for rule in items(&spec[list]) {
            let action = match rule["action"].as_str() {
                Some("Accept") => "Accept",
                Some("Pass") => "Pass",
                _ => "Deny",
            };
            if !cluster_rule_is_valid(rule, peers) {
                if action == "Accept" {
                    continue;
                }
                return Some("Deny");
            }
            let is_peer = items(&rule[peers]).iter().any(|peer| cluster_peer(world, peer, other));
            let is_port = rule["protocols"].is_null()
                || items(&rule["protocols"])
                    .iter()
                    .any(|port| cluster_port(world, port, destination, traffic));
            if is_peer && is_port {
                return Some(action);
            }
        }
    }
    None
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn pod_of(end: End<'_>) -> Option<&str> {
    if let End::Pod(uid, _) = end { Some(uid) } else { None }
}

/// Whether a NetworkPolicy is about a direction.
fn speaks_of(spec: &Value, way: Way) -> bool {
    let name = if way == Way::In { "Ingress" } else { "Egress" };
    let types = items(&spec["policyTypes"]);
    if types.is_empty() {
        return way == Way::In || !items(&spec["egress"]).is_empty();
    }
    types.iter().any(|it| it == name)
}

fn namespaced_subject(spec: &Value, labels: &Labels) -> bool {
    selects(&spec["podSelector"], labels)
}

/// Only what the generator gets wrong on purpose.
fn namespaced_is_valid(spec: &Value) -> bool {
    let text = spec.to_string();
    !text.contains("\"newer\"") && !text.contains("Matches")
}

fn cluster_rule_is_valid(rule: &Value, peers: &str) -> bool {
    let peers = items(&rule[peers]);
    let known = ["namespaces", "pods", "networks", "nodes"];
    let is_known = |peer: &Value| known.iter().any(|name| !peer[*name].is_null());
    !peers.is_empty() && peers.iter().all(is_known) && rule["protocols"] != Value::Array(Vec::new())
}

fn selects(selector: &Value, labels: &Labels) -> bool {
    if let Some(wanted) = selector["matchLabels"].as_object() {
        for (key, value) in wanted {
            if labels.get(key).map(String::as_str) != value.as_str() {
                return false;
            }
        }
    }
    for expression in items(&selector["matchExpressions"]) {
        let found = labels.get(expression["key"].as_str().unwrap());
        let listed = found.is_some_and(|it| items(&expression["values"]).iter().any(|value| value == it));
        let holds = match expression["operator"].as_str().unwrap() {
            "Exists" => found.is_some(),
            "DoesNotExist" => found.is_none(),
            "In" => listed,
            "NotIn" => !listed,
            other => panic!("{other}"),
        };
        if !holds {
            return false;
        }
    }
    true
}

fn namespaced_peer(world: &World, own: &str, peer: &Value, other: End<'_>) -> bool {
    if !peer["ipBlock"].is_null() {
        let address = match other {
            End::Pod(_, address) | End::Outside(address) | End::OwnNode(address) => address,
        };
        let block = &peer["ipBlock"];
        return inside(&block["cidr"], address)
            && !items(&block["except"]).iter().any(|it| inside(it, address));
    }
    let Some(pod) = pod_of(other).map(|uid| &world.pods[uid]) else { return false };
    if pod.is_terminal || pod.host_network {
        return false;
    }
    let in_namespace = if peer["namespaceSelector"].is_null() {
        pod.namespace == own
    } else {
        selects(&peer["namespaceSelector"], &world.namespaces[&pod.namespace])
    };
    in_namespace && (peer["podSelector"].is_null() || selects(&peer["podSelector"], &pod.labels))
}

fn cluster_pods(world: &World, set: &Value, uid: &str) -> bool {
    let pod = &world.pods[uid];
    let namespace = &world.namespaces[&pod.namespace];
    if pod.is_terminal || pod.host_network {
        return false;
    }
    if !set["namespaces"].is_null() {
        return selects(&set["namespaces"], namespace);
    }
    selects(&set["pods"]["namespaceSelector"], namespace) && selects(&set["pods"]["podSelector"], &pod.labels)
}

fn cluster_peer(world: &World, peer: &Value, other: End<'_>) -> bool {
    let (End::Pod(_, address) | End::Outside(address) | End::OwnNode(address)) = other;
    if !peer["networks"].is_null() {
        return items(&peer["networks"]).iter().any(|it| inside(it, address));
    }
    if !peer["nodes"].is_null() {
        let mut nodes = world.nodes.values();
        let is_pod = pod_of(other).is_some_and(|uid| {
            let pod = &world.pods[uid];
            !pod.is_terminal && !pod.host_network
        });
        return !is_pod
            && nodes.any(|(labels, all)| all.contains(&address) && selects(&peer["nodes"], labels));
    }
    pod_of(other).is_some_and(|uid| cluster_pods(world, peer, uid))
}

fn protocol_name(traffic: Traffic) -> &'static str {
    match traffic.0 {
        6 => "TCP",
        17 => "UDP",
        132 => "SCTP",
        _ => "other",
    }
}

fn namespaced_port(world: &World, port: &Value, destination: Option<&str>, traffic: Traffic) -> bool {
    let protocol = port["protocol"].as_str().unwrap_or("TCP");
    if protocol != protocol_name(traffic) {
        return false;
    }
    match &port["port"] {
        Value::Null => true,
        Value::String(name) => has_port(world, destination, name, traffic),
        number => {
            let first = number.as_u64().unwrap();
            let last = port["endPort"].as_u64().unwrap_or(first);
            u64::from(traffic.1) >= first && u64::from(traffic.1) <= last
        }
    }
}

fn cluster_port(world: &World, port: &Value, destination: Option<&str>, traffic: Traffic) -> bool {
    if let Some(name) = port["destinationNamedPort"].as_str() {
        return has_port(world, destination, name, traffic);
    }
    let wanted = &port[protocol_name(traffic).to_lowercase()]["destinationPort"];
    let number = u64::from(traffic.1);
    match (&wanted["number"], &wanted["range"]) {
        (Value::Null, Value::Null) => false,
        (Value::Null, range) => {
            range["start"].as_u64().unwrap() <= number && number <= range["end"].as_u64().unwrap()
        }
        (wanted, _) => wanted.as_u64() == Some(number),
    }
}

fn has_port(world: &World, destination: Option<&str>, name: &str, traffic: Traffic) -> bool {
    let Some(pod) = destination.map(|uid| &world.pods[uid]) else { return false };
    let wanted = (name.to_owned(), protocol_name(traffic), traffic.1);
    !pod.is_terminal && !pod.host_network && pod.ports.contains(&wanted)
}

/// Compares bit by bit.
fn inside(cidr: &Value, address: IpAddr) -> bool {
    let (network, len) = cidr.as_str().unwrap().split_once('/').unwrap();
    let network: String = if network.contains('.') {
        let octets: Vec<String> =
            network.split('.').map(|it| it.parse::<u8>().unwrap().to_string()).collect();
        octets.join(".")
    } else {
        network.to_owned()
    };
    let bits = |address: IpAddr| -> Vec<bool> {
        let octets = match address {
            IpAddr::V4(it) => it.octets().to_vec(),
            IpAddr::V6(it) => it.octets().to_vec(),
        };
        octets.iter().flat_map(|octet| (0..8).rev().map(move |bit| octet >> bit & 1 == 1)).collect()
    };
    let (network, address) = (bits(network.parse().unwrap()), bits(address));
    let len: usize = len.parse().unwrap();
    network.len() == address.len() && network[..len] == address[..len]
}
