//! A small cluster, as JSON objects, and the engine that is fed with it.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use ferrule_policy::{
    Change, Compiler, Delta, Direction, Endpoint, EndpointId, Origin, Packet, Party, PolicyId, Rows, Trace,
    TraceError, Verdict, lookup,
    object::{self, PolicyObject},
};
use serde_json::{Value, json};

pub type Labels = BTreeMap<String, String>;

/// The cluster: what the oracle judges.
#[derive(Debug, Clone, Default)]
pub struct World {
    pub namespaces: BTreeMap<String, Labels>,
    /// By UID.
    pub pods: BTreeMap<String, Pod>,
    /// The `spec` of NetworkPolicies, by namespace and name.
    pub policies: BTreeMap<(String, String), Value>,
    /// The `spec` of ClusterNetworkPolicies.
    pub cluster_policies: BTreeMap<String, Value>,
    /// By name: labels and addresses.
    pub nodes: BTreeMap<String, (Labels, Vec<IpAddr>)>,
    /// The addresses of Services, by their first UID.
    pub services: BTreeMap<String, Vec<IpAddr>>,
    /// The addresses of this node.
    pub own: Vec<IpAddr>,
    /// The pods of this node, by the number of their interfaces.
    pub endpoints: BTreeMap<u32, String>,
    /// How often namespaces, policies and Services have been created again, by their first UID.
    pub renewed: BTreeMap<String, u32>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pod {
    pub namespace: String,
    pub name: String,
    pub labels: Labels,
    pub addresses: Vec<IpAddr>,
    /// Name, protocol, number.
    pub ports: Vec<(String, &'static str, u16)>,
    pub is_terminal: bool,
    pub host_network: bool,
    pub created: String,
}

/// An end of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum End<'a> {
    /// A pod by UID, with one of its addresses.
    Pod(&'a str, IpAddr),
    Outside(IpAddr),
    OwnNode(IpAddr),
}

/// Traffic: protocol in the IP header, and port.
pub type Traffic = (u8, u16);

pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const SCTP: u8 = 132;
pub const ICMP: u8 = 1;

pub fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

pub fn network_policy(namespace: &str, name: &str, spec: &Value) -> Change {
    network_policy_of(&format!("{namespace}/{name}"), (namespace, name), spec)
}

fn network_policy_of(uid: &str, (namespace, name): (&str, &str), spec: &Value) -> Change {
    let object = json!({"metadata": {"namespace": namespace, "name": name, "uid": uid}, "spec": spec});
    let object: PolicyObject = serde_json::from_str(&object.to_string()).unwrap();
    Change::Policy(Arc::new(object::network_policy(&object)))
}

pub fn cluster_policy(uid: &str, name: &str, spec: &Value) -> Change {
    let object = json!({"metadata": {"name": name, "uid": uid}, "spec": spec});
    let object: PolicyObject = serde_json::from_str(&object.to_string()).unwrap();
    Change::Policy(Arc::new(object::cluster_network_policy(&object).unwrap()))
}

impl World {
    pub fn namespace(&self, name: &str) -> Change {
        let uid = self.uid(name);
        let object = json!({"metadata": {"name": name, "uid": uid, "labels": self.namespaces[name]}});
        Change::Namespace(serde_json::from_value(object).unwrap())
    }

    pub fn pod(&self, uid: &str) -> Change {
        Change::Pod(self.pods[uid].object(uid).into())
    }

    pub fn node(&self, name: &str) -> Change {
        let (labels, addresses) = &self.nodes[name];
        let addresses: Vec<_> =
            addresses.iter().map(|it| json!({"type": "InternalIP", "address": it})).collect();
        let object = json!({"metadata": {"name": name, "uid": format!("node-{name}"), "labels": labels},
            "status": {"addresses": addresses}});
        Change::Node(serde_json::from_value(object).unwrap())
    }

    pub fn service(&self, first_uid: &str) -> Change {
        let uid = self.uid(first_uid);
        let Some(addresses) = self.services.get(first_uid) else {
            return Change::ServiceGone { uid };
        };
        let object = json!({"metadata": {"name": first_uid, "uid": uid}, "spec": {"externalIPs": addresses}});
        Change::Service(serde_json::from_value(object).unwrap())
    }

    pub fn policy(&self, key: &(String, String)) -> Change {
        let (namespace, name) = (&*key.0, &*key.1);
        let uid = self.uid(&format!("{namespace}/{name}"));
        match self.policies.get(key) {
            Some(spec) => network_policy_of(&uid, (namespace, name), spec),
            None => Change::PolicyGone { id: PolicyId::namespaced(namespace, name), uid },
        }
    }

    pub fn cluster_policy(&self, name: &str) -> Change {
        let uid = self.uid(name);
        match self.cluster_policies.get(name) {
            Some(spec) => cluster_policy(&uid, name, spec),
            None => Change::PolicyGone { id: PolicyId::cluster(name), uid },
        }
    }

    /// The UID of a namespace, a policy or a Service now.
    pub fn uid(&self, first: &str) -> String {
        self.renewed.get(first).map_or_else(|| first.to_owned(), |n| format!("{first}+{n}"))
    }

    /// Gives an object another UID, and returns the one before.
    pub fn renew(&mut self, first: &str) -> String {
        let before = self.uid(first);
        *self.renewed.entry(first.to_owned()).or_default() += 1;
        before
    }

    pub fn endpoint(&self, id: u32) -> Change {
        match self.endpoints.get(&id) {
            Some(uid) => {
                let addresses = self.pods.get(uid).map(|pod| pod.addresses.clone()).unwrap_or_default();
                Change::Endpoint(Endpoint { id: EndpointId(id), uid: uid.clone(), addresses })
            }
            None => Change::EndpointGone { id: EndpointId(id) },
        }
    }

    /// Everything, as events.
    pub fn changes(&self) -> Vec<Change> {
        let namespaces = self.namespaces.keys().map(|it| self.namespace(it));
        let pods = self.pods.keys().map(|it| self.pod(it));
        let nodes = self.nodes.keys().map(|it| self.node(it));
        let policies = self.policies.keys().map(|it| self.policy(it));
        let cluster_policies = self.cluster_policies.keys().map(|it| self.cluster_policy(it));
        let endpoints = self.endpoints.keys().map(|it| self.endpoint(*it));
        let services = self.services.keys().map(|it| self.service(it));
        let own = [Change::HostAddresses(self.own.clone())];
        let nodes = nodes.chain(services).chain(own);
        namespaces.chain(pods).chain(nodes).chain(policies).chain(cluster_policies).chain(endpoints).collect()
    }

    /// An engine with everything.
    pub fn engine(&self) -> Engine {
        let mut engine = Engine::default();
        engine.apply(self.changes());
        engine
    }

    /// Adds a namespace with the label that the API server sets.
    pub fn add_namespace(&mut self, name: &str, extra: &[(&str, &str)]) {
        let mut labels = labels(extra);
        labels.insert("kubernetes.io/metadata.name".to_owned(), name.to_owned());
        self.namespaces.insert(name.to_owned(), labels);
    }

    /// Adds a pod of this node with the UID `namespace/name`.
    pub fn add_pod(&mut self, namespace: &str, name: &str, address: &str, pairs: &[(&str, &str)]) {
        let uid = format!("{namespace}/{name}");
        let pod = Pod {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            labels: labels(pairs),
            addresses: vec![address.parse().unwrap()],
            ..Pod::default()
        };
        self.pods.insert(uid.clone(), pod);
        let id = self.endpoints.keys().max().map_or(1, |id| id + 1);
        self.endpoints.insert(id, uid);
    }

    pub fn end<'a>(&self, uid: &'a str) -> End<'a> {
        End::Pod(uid, self.pods[uid].addresses[0])
    }
}

impl Pod {
    pub fn object(&self, uid: &str) -> object::Pod {
        let ports: Vec<_> = self
            .ports
            .iter()
            .map(|(name, protocol, number)| json!({"name": name, "protocol": protocol, "containerPort": number}))
            .collect();
        let ips: Vec<_> = self.addresses.iter().map(|ip| json!({"ip": ip})).collect();
        let phase = if self.is_terminal { "Succeeded" } else { "Running" };
        serde_json::from_value(json!({
            "metadata": {"namespace": self.namespace, "name": self.name, "uid": uid, "labels": self.labels,
                "creationTimestamp": self.created},
            "spec": {"hostNetwork": self.host_network, "containers": [{"ports": ports}]},
            "status": {"phase": phase, "podIPs": ips},
        }))
        .unwrap()
    }
}

/// The compiler, and rows that follow its deltas as maps would.
#[derive(Default)]
pub struct Engine {
    pub compiler: Compiler,
    pub rows: Rows,
}

impl Engine {
    pub fn apply(&mut self, changes: impl IntoIterator<Item = Change>) -> Delta {
        let delta = self.compiler.apply(changes).unwrap();
        delta.ops.iter().for_each(|op| self.rows.apply(op));
        assert!(self.rows.all().eq(self.compiler.rows().all()), "the deltas lead to other rows");
        delta
    }

    /// Whether both ends allow a packet, by the maps; ends of other nodes and outside allow everything.
    pub fn allows(&self, world: &World, from: End<'_>, to: End<'_>, traffic: Traffic) -> bool {
        let ends = [(Direction::Egress, from, to), (Direction::Ingress, to, from)];
        ends.into_iter().all(|(direction, own, peer)| {
            self.verdict(world, direction, own, peer, traffic).is_none_or(|verdict| verdict.is_allowed)
        })
    }

    /// The verdict of one end; `None` if it is no endpoint of this node.
    pub fn verdict(
        &self,
        world: &World,
        direction: Direction,
        own: End<'_>,
        peer: End<'_>,
        traffic: Traffic,
    ) -> Option<Verdict> {
        let packet = packet(world, direction, own, peer, traffic)?;
        Some(lookup(&self.rows, &packet))
    }

    pub fn trace(&self, world: &World, from: End<'_>, to: End<'_>, traffic: Traffic) -> Trace {
        self.try_trace(world, from, to, traffic).unwrap()
    }

    pub fn try_trace(
        &self,
        world: &World,
        from: End<'_>,
        to: End<'_>,
        traffic: Traffic,
    ) -> Result<Trace, TraceError> {
        let party = |end: End<'_>| match end {
            End::Pod(uid, _) => {
                let pod = &world.pods[uid];
                Party::Pod { namespace: pod.namespace.clone(), name: pod.name.clone() }
            }
            End::Outside(address) => Party::Address(address),
            End::OwnNode(_) => Party::OwnNode,
        };
        self.compiler.trace(&party(from), &party(to), traffic.0, traffic.1)
    }
}

pub fn packet(
    world: &World,
    direction: Direction,
    own: End<'_>,
    peer: End<'_>,
    traffic: Traffic,
) -> Option<Packet> {
    let End::Pod(uid, own) = own else { return None };
    let (endpoint, _) = world.endpoints.iter().find(|(_, it)| *it == uid)?;
    let (peer, origin) = match peer {
        End::Pod(_, address) | End::Outside(address) => (address, Origin::Other),
        End::OwnNode(address) => (address, Origin::OwnNode),
    };
    let (protocol, port) = traffic;
    let endpoint = EndpointId(*endpoint);
    Some(Packet { endpoint, direction, own, peer, protocol, port, origin, in_pod_range: false })
}
