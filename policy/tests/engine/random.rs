//! Random clusters, policies and edits.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use fastrand::Rng;
use ferrule_policy::{Change, PolicyId};
use serde_json::{Value, json};

use super::world::{End, ICMP, Labels, Pod, SCTP, TCP, Traffic, UDP, World};

const NAMESPACES: [&str; 4] = ["a", "b", "c", "d"];
/// The interfaces of pods are numbered from 1 to this.
pub const LAST_INTERFACE: u32 = 24;
const PORT_NAMES: [&str; 3] = ["web", "dns", "meta"];
pub const TRAFFIC: [Traffic; 6] = [(TCP, 80), (TCP, 81), (UDP, 80), (SCTP, 81), (TCP, 8080), (ICMP, 0)];

pub fn world(rng: &mut Rng) -> World {
    let mut world = World::default();
    for name in NAMESPACES {
        world.add_namespace(name, &[]);
        let extra = labels(rng);
        world.namespaces.get_mut(name).unwrap().extend(extra);
    }
    for i in 0..12 {
        let uid = uid(i);
        let pod = pod(rng, i);
        if rng.bool() && !pod.host_network {
            world.endpoints.insert(u32::from(i) + 1, uid.clone());
        }
        world.pods.insert(uid, pod);
    }
    for (i, name) in ["n0", "n1"].into_iter().enumerate() {
        let address = Ipv4Addr::new(192, 168, 0, 10 + u8::try_from(i).unwrap()).into();
        world.nodes.insert(name.to_owned(), (labels(rng), vec![address]));
    }
    for i in 0..2 {
        set_service(rng, &mut world, i);
    }
    set_own(rng, &mut world);
    for i in 0..rng.u8(1..=8) {
        set_policy(rng, &mut world, i);
    }
    world
}

/// Everything that may talk, and other addresses near the blocks.
pub fn ends(world: &World) -> Vec<End<'_>> {
    let pods = world.pods.iter().filter(|(_, pod)| !pod.is_terminal && !pod.host_network);
    let pods = pods.flat_map(|(uid, pod)| pod.addresses.iter().map(move |it| End::Pod(uid, *it)));
    let outside =
        ["10.0.0.1", "10.0.1.200", "192.0.2.7", "192.168.0.10", "192.168.0.11", "fd00::1", "2001:db8::1"];
    let outside = outside.into_iter().map(|it| End::Outside(it.parse().unwrap()));
    let node = [End::OwnNode("192.168.0.10".parse().unwrap())];
    pods.chain(outside).chain(node).collect()
}

/// One edit, as the events that report it. Those after the first may be late.
pub fn edit(rng: &mut Rng, world: &mut World) -> Vec<Change> {
    let some_pod = |rng: &mut Rng, world: &World| {
        let n = rng.usize(..world.pods.len());
        world.pods.keys().nth(n).unwrap().clone()
    };
    match rng.u8(..16) {
        0 | 1 => {
            let uid = some_pod(rng, world);
            world.pods.get_mut(&uid).unwrap().labels = labels(rng);
            vec![world.pod(&uid)]
        }
        2 => {
            let name = NAMESPACES[rng.usize(..NAMESPACES.len())];
            let mut new = labels(rng);
            new.insert("kubernetes.io/metadata.name".to_owned(), name.to_owned());
            world.namespaces.insert(name.to_owned(), new);
            vec![world.namespace(name)]
        }
        3 => {
            let uid = some_pod(rng, world);
            world.pods.get_mut(&uid).unwrap().ports = ports(rng);
            vec![world.pod(&uid)]
        }
        4 => {
            let i = rng.u8(..8);
            let (name, cluster_name) = (format!("p{i}"), format!("c{i}"));
            if world.cluster_policies.remove(&cluster_name).is_some() {
                return vec![world.cluster_policy(&cluster_name)];
            }
            let Some(key) = world.policies.keys().find(|(_, it)| *it == name).cloned() else {
                return Vec::new();
            };
            world.policies.remove(&key);
            vec![world.policy(&key)]
        }
        5..=7 => {
            let i = rng.u8(..8);
            set_policy(rng, world, i)
        }
        8 => replace(rng, world),
        9 => {
            let uid = pod_of(world, rng.u8(..12));
            let there = interface(world, &uid);
            let id = there.unwrap_or_else(|| u32::from(number(&world.pods[&uid])) + 1);
            if there.is_some() {
                world.endpoints.remove(&id);
            } else if !world.pods[&uid].host_network {
                world.endpoints.insert(id, uid);
            }
            vec![world.endpoint(id)]
        }
        10 => {
            set_own(rng, world);
            vec![Change::HostAddresses(world.own.clone())]
        }
        11 => {
            let i = rng.u8(..2);
            set_service(rng, world, i);
            vec![world.service(&format!("s{i}"))]
        }
        12..=14 => renew(rng, world),
        _ => {
            let name = ["n0", "n1"][rng.usize(..2)];
            world.nodes.get_mut(name).unwrap().0 = labels(rng);
            vec![world.node(name)]
        }
    }
}

/// A pod is replaced: its address goes to a new pod. Its deletion is seen before or after; and so is the end
/// of its interface, but before that of the new pod on this node.
fn replace(rng: &mut Rng, world: &mut World) -> Vec<Change> {
    let i = rng.u8(..12);
    let old = pod_of(world, i);
    let created = world.pods[&old].created.clone();
    let mut new = pod(rng, i);
    new.created = format!("{}1", created.trim_end_matches('Z'));
    let (uid, is_policed) = (format!("{old}x"), !new.host_network);
    let of_old = interface(world, &old);
    world.pods.remove(&old);
    world.pods.insert(uid.clone(), new);
    let mut changes = vec![world.pod(&uid), Change::PodGone { uid: old }];
    let Some(before) = of_old else {
        rng.shuffle(&mut changes);
        return changes;
    };
    world.endpoints.remove(&before);
    changes.push(world.endpoint(before));
    if !is_policed {
        rng.shuffle(&mut changes);
        return changes;
    }
    // The number of an interface is seldom the next one's, too.
    let id = if rng.u8(..4) == 0 { before } else { (before + 11) % LAST_INTERFACE + 1 };
    world.endpoints.insert(id, uid);
    changes.push(world.endpoint(id));
    rng.shuffle(&mut changes);
    let is_end = |it: &Change| matches!(it, Change::EndpointGone { .. });
    let is_begin = |it: &Change| matches!(it, Change::Endpoint(_));
    let [end, begin] =
        [changes.iter().position(is_end), changes.iter().position(is_begin)].map(Option::unwrap);
    if begin < end {
        changes.swap(begin, end);
    }
    changes
}

/// A policy, a namespace or a Service is created again, with other contents. The deletion of the old one is
/// seen before or after.
fn renew(rng: &mut Rng, world: &mut World) -> Vec<Change> {
    let mut changes = match rng.u8(..4) {
        0 => {
            let name = NAMESPACES[rng.usize(..NAMESPACES.len())].to_owned();
            let uid = world.renew(&name);
            let mut new = labels(rng);
            new.insert("kubernetes.io/metadata.name".to_owned(), name.clone());
            world.namespaces.insert(name.clone(), new);
            vec![world.namespace(&name), Change::NamespaceGone { name, uid }]
        }
        1 => {
            let name = format!("s{}", rng.u8(..2));
            if !world.services.contains_key(&name) {
                return Vec::new();
            }
            let uid = world.renew(&name);
            let addresses = marked(rng);
            world.services.insert(name.clone(), addresses);
            vec![world.service(&name), Change::ServiceGone { uid }]
        }
        _ => {
            let i = rng.u8(..8);
            let (key, cluster) = (policy_key(i), format!("c{i}"));
            let (id, first) = match i {
                ..5 if world.policies.contains_key(&key) => {
                    (PolicyId::namespaced(&*key.0, &*key.1), format!("{}/{}", key.0, key.1))
                }
                5.. if world.cluster_policies.contains_key(&cluster) => {
                    (PolicyId::cluster(&*cluster), cluster)
                }
                _ => return Vec::new(),
            };
            let uid = world.renew(&first);
            let mut changes = set_policy(rng, world, i);
            changes.push(Change::PolicyGone { id, uid });
            changes
        }
    };
    rng.shuffle(&mut changes);
    changes
}

/// The UID of the pod with a number now.
fn pod_of(world: &World, i: u8) -> String {
    world.pods.iter().find(|(_, pod)| number(pod) == i).map(|(uid, _)| uid.clone()).unwrap()
}

fn number(pod: &Pod) -> u8 {
    pod.name.trim_start_matches("pod").parse().unwrap()
}

/// The number of a pod's interface, if the pod is of this node.
fn interface(world: &World, uid: &str) -> Option<u32> {
    world.endpoints.iter().find(|(_, it)| *it == uid).map(|(id, _)| *id)
}

fn policy_key(i: u8) -> (String, String) {
    (NAMESPACES[usize::from(i) % NAMESPACES.len()].to_owned(), format!("p{i}"))
}

fn uid(i: u8) -> String {
    format!("00000000-0000-0000-0000-0000000000{i:02x}")
}

fn pod(rng: &mut Rng, i: u8) -> Pod {
    let v4 = IpAddr::from(Ipv4Addr::new(10, 0, i / 6, 10 + i));
    let v6 = IpAddr::from(Ipv6Addr::new(0xfd00, 0, 0, u16::from(i / 6), 0, 0, 0, 0x10 + u16::from(i)));
    let addresses = match rng.u8(..4) {
        0 => vec![v6],
        1 => vec![v4, v6],
        _ => vec![v4],
    };
    Pod {
        namespace: NAMESPACES[usize::from(i) % NAMESPACES.len()].to_owned(),
        name: format!("pod{i}"),
        labels: labels(rng),
        addresses,
        ports: ports(rng),
        is_terminal: rng.u8(..12) == 0 && i > 8,
        host_network: rng.u8(..12) == 0 && i > 8,
        created: "2026-01-01T00:00:00Z".to_owned(),
    }
}

fn labels(rng: &mut Rng) -> Labels {
    let pairs = ["k0", "k1", "k2"].into_iter().filter_map(|key| match rng.u8(..3) {
        0 => None,
        n => Some((key.to_owned(), format!("v{n}"))),
    });
    pairs.collect()
}

/// Addresses of pods, of nodes, and outside.
fn marked(rng: &mut Rng) -> Vec<IpAddr> {
    let all = ["10.0.0.1", "10.0.0.10", "10.0.1.17", "192.0.2.7", "192.168.0.10", "fd00::1", "fd00::10"];
    all.into_iter().filter(|_| rng.u8(..4) == 0).map(|it| it.parse().unwrap()).collect()
}

fn set_service(rng: &mut Rng, world: &mut World, i: u8) {
    let (uid, addresses) = (format!("s{i}"), marked(rng));
    if addresses.is_empty() {
        world.services.remove(&uid);
    } else {
        world.services.insert(uid, addresses);
    }
}

fn set_own(rng: &mut Rng, world: &mut World) {
    world.own = marked(rng);
}

/// With names that occur twice.
fn ports(rng: &mut Rng) -> Vec<(String, &'static str, u16)> {
    let port = |rng: &mut Rng| {
        let name = PORT_NAMES[rng.usize(..PORT_NAMES.len())].to_owned();
        let (protocol, number) =
            [("TCP", 80), ("TCP", 81), ("UDP", 80), ("SCTP", 81), ("TCP", 8080)][rng.usize(..5)];
        (name, protocol, number)
    };
    (0..rng.u8(..4)).map(|_| port(rng)).collect()
}

/// The policy of a number is sometimes of a namespace, sometimes of the cluster.
fn set_policy(rng: &mut Rng, world: &mut World, i: u8) -> Vec<Change> {
    if i >= 5 {
        let name = format!("c{i}");
        let spec = cluster_spec(rng, i);
        world.cluster_policies.insert(name.clone(), spec);
        return vec![world.cluster_policy(&name)];
    }
    let key = policy_key(i);
    world.policies.insert(key.clone(), spec(rng));
    vec![world.policy(&key)]
}

/// Absent, empty, or some.
fn list(rng: &mut Rng, object: &mut Value, field: &str, item: fn(&mut Rng) -> Value) {
    let value = match rng.u8(..5) {
        0 => return,
        1 => json!([]),
        n => (1..n).map(|_| item(rng)).collect(),
    };
    object[field] = value;
}

fn spec(rng: &mut Rng) -> Value {
    let mut spec = json!({});
    if rng.u8(..4) > 0 {
        spec["podSelector"] = selector(rng);
    }
    list(rng, &mut spec, "ingress", |rng| rule(rng, "from"));
    list(rng, &mut spec, "egress", |rng| rule(rng, "to"));
    match rng.u8(..6) {
        0 => spec["policyTypes"] = json!(["Ingress", "Ingress"]),
        1 => spec["policyTypes"] = json!(["Egress"]),
        2 => spec["policyTypes"] = json!(["Ingress", "Egress"]),
        3 => spec["policyTypes"] = json!([]),
        _ => {}
    }
    spec
}

fn rule(rng: &mut Rng, peers: &str) -> Value {
    let mut rule = json!({});
    list(rng, &mut rule, peers, peer);
    list(rng, &mut rule, "ports", port);
    rule
}

fn peer(rng: &mut Rng) -> Value {
    match rng.u8(..24) {
        // Not understood: the whole policy isolates.
        0 => json!({"newer": {}}),
        1..=7 => json!({"podSelector": selector(rng)}),
        8..=12 => json!({"namespaceSelector": selector(rng)}),
        13..=16 => json!({"namespaceSelector": selector(rng), "podSelector": selector(rng)}),
        _ => {
            let mut block = json!({"cidr": cidr(rng)});
            if rng.bool() {
                block["except"] = (0..rng.u8(..3)).map(|_| Value::from(cidr(rng))).collect();
            }
            json!({ "ipBlock": block })
        }
    }
}

fn port(rng: &mut Rng) -> Value {
    let mut port = json!({});
    if rng.bool() {
        port["protocol"] = ["TCP", "UDP", "SCTP"][rng.usize(..3)].into();
    }
    match rng.u8(..5) {
        0 => {}
        1 => port["port"] = PORT_NAMES[rng.usize(..PORT_NAMES.len())].into(),
        2 => {
            port["port"] = rng.u16(1..=81).into();
            port["endPort"] = rng.u16(81..=9000).into();
        }
        _ => port["port"] = [80, 81, 8080][rng.usize(..3)].into(),
    }
    port
}

fn selector(rng: &mut Rng) -> Value {
    let mut selector = json!({});
    if rng.bool() {
        let key = format!("k{}", rng.u8(..3));
        let value = format!("v{}", rng.u8(1..3));
        selector["matchLabels"] = json!({ key: value });
    }
    if rng.bool() {
        let key = format!("k{}", rng.u8(..3));
        selector["matchExpressions"] = json!([match rng.u8(..4) {
            0 => json!({"key": key, "operator": "In", "values": ["v1", "other"]}),
            1 => json!({"key": key, "operator": "NotIn", "values": ["v1"]}),
            2 => json!({"key": key, "operator": "Exists"}),
            _ => json!({"key": key, "operator": "DoesNotExist"}),
        }]);
    }
    selector
}

/// Around the pods' addresses, with host bits and leading zeros.
fn cidr(rng: &mut Rng) -> String {
    let i = rng.u8(..12);
    if rng.u8(..3) == 0 {
        let len = [0, 8, 48, 64, 120, 124, 127, 128][rng.usize(..8)];
        return format!("fd00:0:0:{:x}::{:x}/{len}", i / 6, 0x10 + u16::from(i));
    }
    let len = [0, 8, 16, 23, 24, 28, 30, 31, 32][rng.usize(..9)];
    let zero = if rng.bool() { "0" } else { "" };
    format!("{zero}10.0.{}.{}/{len}", i / 6, 10 + i)
}

fn cluster_spec(rng: &mut Rng, i: u8) -> Value {
    let tier = if rng.bool() { "Admin" } else { "Baseline" };
    // Priorities differ, because the order of equal ones is open.
    let priority = u64::from(i) + 10 * rng.u64(..50);
    let mut spec = json!({"tier": tier, "priority": priority, "subject": cluster_pods(rng)});
    for (list, peers, peer) in
        [("ingress", "from", cluster_pods as fn(&mut Rng) -> Value), ("egress", "to", egress_peer)]
    {
        if rng.u8(..4) == 0 {
            continue;
        }
        let rules = (0..rng.u8(..4)).map(|_| {
            let action = ["Accept", "Deny", "Pass"][rng.usize(..3)];
            let all: Vec<_> = (0..rng.u8(1..3)).map(|_| peer(rng)).collect();
            let mut rule = json!({"action": action});
            rule[peers] = all.into();
            if rng.bool() {
                rule["protocols"] = (0..rng.u8(1..3)).map(|_| cluster_port(rng)).collect();
            }
            rule
        });
        spec[list] = rules.collect();
    }
    spec
}

fn cluster_pods(rng: &mut Rng) -> Value {
    if rng.bool() {
        return json!({"namespaces": selector(rng)});
    }
    json!({"pods": {"namespaceSelector": selector(rng), "podSelector": selector(rng)}})
}

fn egress_peer(rng: &mut Rng) -> Value {
    match rng.u8(..10) {
        0 => json!({"domainNames": ["example.com"]}),
        1 => json!({"newer": {}}),
        2 | 3 => json!({"nodes": selector(rng)}),
        4..=6 => json!({"networks": [cidr(rng), cidr(rng)]}),
        _ => cluster_pods(rng),
    }
}

fn cluster_port(rng: &mut Rng) -> Value {
    let protocol = ["tcp", "udp", "sctp"][rng.usize(..3)];
    let (name, number) = (PORT_NAMES[rng.usize(..PORT_NAMES.len())], [80, 81, 8080][rng.usize(..3)]);
    let (start, end) = (rng.u16(1..=80), rng.u16(81..=9000));
    match rng.u8(..3) {
        0 => json!({ "destinationNamedPort": name }),
        1 => json!({ protocol: {"destinationPort": {"range": {"start": start, "end": end}}} }),
        _ => json!({ protocol: {"destinationPort": {"number": number}} }),
    }
}
