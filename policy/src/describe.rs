//! Policies in words, for people: labels as `kubectl` writes them.

use std::fmt::{self, Display};

use crate::{
    Action, Block, Condition, Direction, Namespaces, Peer, Peers, PodSet, PolicyId, Port, Ports, Protocol,
    Requirement, Selector, Tier,
};

// === impl PolicyId ===

impl PolicyId {
    /// The kind of the object.
    pub fn kind(&self) -> &'static str {
        if self.namespace.is_some() { "NetworkPolicy" } else { "ClusterNetworkPolicy" }
    }
}

// === impl Tier ===

impl Tier {
    /// The name; that of NetworkPolicies' tier is their kind.
    pub fn name(self) -> &'static str {
        match self {
            Self::Admin(_) => "Admin",
            Self::Namespaced => "NetworkPolicy",
            Self::Baseline(_) => "Baseline",
        }
    }

    /// The priority inside of the tier; NetworkPolicies have none.
    pub fn priority(self) -> Option<u16> {
        match self {
            Self::Admin(priority) | Self::Baseline(priority) => Some(priority),
            Self::Namespaced => None,
        }
    }
}

// === impl Action ===

impl Action {
    /// As in the object.
    pub fn name(self) -> &'static str {
        match self {
            Self::Accept => "Accept",
            Self::Deny => "Deny",
            Self::Pass => "Pass",
        }
    }
}

// === impl Direction ===

impl Direction {
    /// The field of the object with the rules.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }
}

// === impl Protocol ===

impl Protocol {
    /// As in the object.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }
}

// === impl Selector ===

impl Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        list(f, &self.0, ",")
    }
}

// === impl Requirement ===

impl Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, is } = self;
        match is {
            Condition::In(values) => match values.as_slice() {
                [value] => write!(f, "{key}={value}"),
                values => write!(f, "{key} in ({})", values.join(",")),
            },
            Condition::NotIn(values) => match values.as_slice() {
                [value] => write!(f, "{key}!={value}"),
                values => write!(f, "{key} notin ({})", values.join(",")),
            },
            Condition::Exists => f.write_str(key),
            Condition::DoesNotExist => write!(f, "!{key}"),
        }
    }
}

// === impl PodSet ===

impl Display for PodSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_all = |selector: &Selector| selector.0.is_empty();
        match &self.pods {
            pods if is_all(pods) => f.write_str("all pods")?,
            pods => write!(f, "pods {pods}")?,
        }
        match &self.namespaces {
            Namespaces::Named(name) => write!(f, " in the namespace {name}"),
            Namespaces::Matching(labels) if is_all(labels) => f.write_str(" in all namespaces"),
            Namespaces::Matching(labels) => write!(f, " in namespaces {labels}"),
        }
    }
}

// === impl Peers ===

impl Display for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any address"),
            Self::Of(peers) if peers.is_empty() => f.write_str("no address"),
            Self::Of(peers) => list(f, peers, "; "),
        }
    }
}

impl Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pods(set) => set.fmt(f),
            Self::Block(block) => block.fmt(f),
            Self::Nodes(labels) if labels.0.is_empty() => f.write_str("all nodes"),
            Self::Nodes(labels) => write!(f, "nodes {labels}"),
        }
    }
}

impl Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cidr.fmt(f)?;
        if self.except.is_empty() {
            return Ok(());
        }
        f.write_str(" except ")?;
        list(f, &self.except, ", ")
    }
}

// === impl Ports ===

impl Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any port"),
            Self::Of(ports) if ports.is_empty() => f.write_str("no port"),
            Self::Of(ports) => list(f, ports, ", "),
        }
    }
}

impl Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Range { protocol, first: 0 | 1, last: u16::MAX } => f.write_str(protocol.name()),
            Self::Range { protocol, first, last } if first == last => {
                write!(f, "{} {first}", protocol.name())
            }
            Self::Range { protocol, first, last } => write!(f, "{} {first}-{last}", protocol.name()),
            Self::Named { protocol: Some(protocol), name } => write!(f, "{} {name}", protocol.name()),
            Self::Named { protocol: None, name } => f.write_str(name),
        }
    }
}

fn list<T: Display>(f: &mut fmt::Formatter<'_>, items: &[T], separator: &str) -> fmt::Result {
    for (n, item) in items.iter().enumerate() {
        if n > 0 {
            f.write_str(separator)?;
        }
        item.fmt(f)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::object;

    #[test]
    fn a_policy_reads_as_its_object_means() {
        let spec = r#"{"metadata": {"namespace": "web", "name": "p"}, "spec": {
            "podSelector": {"matchLabels": {"app": "db"}, "matchExpressions": [
                {"key": "tier", "operator": "In", "values": ["b", "a"]},
                {"key": "old", "operator": "DoesNotExist"}, {"key": "new", "operator": "Exists"},
                {"key": "zone", "operator": "NotIn", "values": ["x"]}]},
            "ingress": [
                {"from": [{"podSelector": {}}, {"namespaceSelector": {}},
                          {"namespaceSelector": {"matchLabels": {"team": "a"}},
                           "podSelector": {"matchLabels": {"app": "web"}}},
                          {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16", "10.2.0.0/16"]}}],
                 "ports": [{"port": 80}, {"protocol": "UDP", "port": 1000, "endPort": 2000},
                           {"port": "http"}, {"protocol": "SCTP"}]},
                {}]}}"#;
        let policy = object::network_policy(&serde_json::from_str(spec).unwrap());
        assert_eq!(
            policy.subject.to_string(),
            "pods app=db,new,!old,tier in (a,b),zone!=x in the namespace web"
        );
        let [first, second] = policy.ingress.as_deref().unwrap() else { panic!("{policy:?}") };
        assert_eq!(
            first.peers.to_string(),
            "all pods in the namespace web; all pods in all namespaces; pods app=web in namespaces team=a; \
             10.0.0.0/8 except 10.1.0.0/16, 10.2.0.0/16"
        );
        assert_eq!(first.ports.to_string(), "TCP 80, UDP 1000-2000, TCP http, SCTP");
        assert_eq!(
            (second.peers.to_string(), second.ports.to_string()),
            ("any address".into(), "any port".into())
        );
    }
}
