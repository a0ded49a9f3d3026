//! Which policy denied a packet.

use agent_common::{
    DropReason,
    event::{DropRecord, direction},
};
use ferrule_policy::{ClassId, Compiler, Direction, PolicyId, Reason, RulesetId, Verdict, shown};

use super::Enforcer;

/// What policies say about a packet that they have denied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    /// Of the pod that is judged.
    pub direction: Direction,
    /// The policy with the rule that denies, or those that isolate the pod.
    pub policies: Vec<PolicyId>,
    /// One line.
    pub words: String,
}

/// Knows which policies have denied a packet.
pub trait Denials: Send + Sync {
    /// `None` if no policy has. Never waits: while policies are being compiled, none is named. `traffic` is
    /// the packet's protocol and destination port, as far as the record has them.
    fn of(&self, record: &DropRecord, traffic: Option<(u8, u16)>) -> Option<Denial>;
}

const UNKNOWN_PEER: &str =
    "the other address is in a range of pods, and no pod with this address is known yet";
const COMPILING: &str = "a policy, which is not named here because a change of policies is being compiled";

// === impl Denials ===

impl Denials for Enforcer {
    fn of(&self, record: &DropRecord, traffic: Option<(u8, u16)>) -> Option<Denial> {
        let judged @ (_, peer_is_known) = judged(record)?;
        let explained = self.try_read(|compiler| explain(compiler, record, judged, traffic));
        Some(explained.unwrap_or_else(|| {
            let words = if peer_is_known { COMPILING } else { UNKNOWN_PEER };
            Denial { direction: judged.0, policies: Vec::new(), words: words.to_owned() }
        }))
    }
}

/// The direction that is judged, and whether the other end is known; `None` if no policy has judged.
fn judged(record: &DropRecord) -> Option<(Direction, bool)> {
    let is = |reason: DropReason| record.reason == reason as u32;
    match record.direction {
        _ if is(DropReason::PolicyEgress) => Some((Direction::Egress, true)),
        _ if is(DropReason::PolicyIngress) => Some((Direction::Ingress, true)),
        direction::EGRESS if is(DropReason::PeerUnknown) => Some((Direction::Egress, false)),
        _ if is(DropReason::PeerUnknown) => Some((Direction::Ingress, false)),
        _ => None,
    }
}

fn explain(
    compiler: &Compiler,
    record: &DropRecord,
    (direction, peer_is_known): (Direction, bool),
    traffic: Option<(u8, u16)>,
) -> Denial {
    let ruleset = RulesetId(record.ruleset);
    let bit = record.bit.checked_sub(1).and_then(|bit| u16::try_from(bit).ok());
    let of_bit = |bit| Verdict {
        is_allowed: false,
        reason: Reason::Bit { ruleset, bit, class: ClassId(record.class) },
    };
    let denial = |policies: Vec<PolicyId>, words: String| Denial { direction, policies, words };
    match bit {
        _ if !peer_is_known => denial(Vec::new(), UNKNOWN_PEER.to_owned()),
        Some(bit) => {
            let verdict = of_bit(bit);
            let decided = compiler.rule_of(&verdict, traffic);
            let policies = decided.map(|it| it.rule.policy).into_iter().collect();
            denial(policies, shown::because(compiler, &verdict, direction, traffic))
        }
        None => {
            let isolating = compiler.isolating(ruleset).unwrap_or_default().to_vec();
            denial(isolating, shown::not_allowed(compiler, ruleset))
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use agent_common::event::{CAPTURE, kind};
    use ferrule_policy::{Change, Endpoint, EndpointId, Origin, Packet, lookup, object};
    use serde_json::json;

    use super::*;

    pub fn record(reason: DropReason) -> DropRecord {
        DropRecord {
            kind: kind::DROP,
            direction: direction::INGRESS,
            time: 0,
            ifindex: 7,
            generation: 0,
            reason: reason as u32,
            len: 0,
            suppressed: 0,
            lost: 0,
            captured: 0,
            vlan: 0,
            ruleset: 0,
            class: 0,
            bit: 0,
            audit: 0,
            head: [0; CAPTURE],
        }
    }

    fn compiler() -> Compiler {
        let policy = |json: serde_json::Value| serde_json::from_str(&json.to_string()).unwrap();
        let front = policy(json!({"metadata": {"namespace": "web", "name": "front"},
            "spec": {"podSelector": {}, "ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}]}}));
        let deny = policy(json!({"metadata": {"name": "deny"}, "spec": {"tier": "Admin", "priority": 1,
            "subject": {"namespaces": {}},
            "egress": [{"name": "world", "action": "Deny", "to": [{"networks": ["192.0.2.0/24"]}]}]}}));
        let named = json!({"metadata": {"namespace": "web", "name": "front-0", "uid": "1"}});
        let mut compiler = Compiler::default();
        compiler
            .apply([
                Change::Namespace(serde_json::from_value(json!({"metadata": {"name": "web"}})).unwrap()),
                Change::Policy(Arc::new(object::network_policy(&front))),
                Change::Policy(Arc::new(object::cluster_network_policy(&deny).unwrap())),
                Change::Pod(Arc::new(serde_json::from_value(named).unwrap())),
                Change::Endpoint(Endpoint { id: EndpointId(7), uid: "1".to_owned(), addresses: Vec::new() }),
            ])
            .unwrap();
        compiler
    }

    /// The denial of a packet as the programs record the verdict of the rows.
    fn denial(compiler: &Compiler, direction: Direction, peer: &str) -> Denial {
        let packet = Packet {
            endpoint: EndpointId(7),
            direction,
            own: "10.244.0.2".parse().unwrap(),
            peer: peer.parse().unwrap(),
            protocol: 6,
            port: 80,
            origin: Origin::Other,
            in_pod_range: false,
        };
        let verdict = lookup(compiler.rows(), &packet);
        assert!(!verdict.is_allowed);
        let row = compiler.rows().endpoint(EndpointId(7)).unwrap();
        let (reason, ruleset) = match direction {
            Direction::Ingress => (DropReason::PolicyIngress, row.ingress),
            Direction::Egress => (DropReason::PolicyEgress, row.egress),
        };
        let (bit, class) = match verdict.reason {
            Reason::Bit { bit, class, .. } => (u32::from(bit) + 1, class.0),
            _ => (0, 0),
        };
        let record = DropRecord { ruleset: ruleset.0, bit, class, ..record(reason) };
        explain(compiler, &record, judged(&record).unwrap(), Some((6, 80)))
    }

    #[test]
    fn a_packet_that_a_rule_denies_names_the_rule() {
        let denial = denial(&compiler(), Direction::Egress, "192.0.2.1");
        assert_eq!(denial.policies, [PolicyId::cluster("deny")]);
        assert_eq!(denial.words, "ClusterNetworkPolicy deny (Admin, priority 1) egress[0] \"world\" denies");
    }

    #[test]
    fn a_packet_that_no_policy_allows_names_those_that_isolate() {
        let denial = denial(&compiler(), Direction::Ingress, "192.0.2.1");
        assert_eq!(
            (denial.direction, denial.policies),
            (Direction::Ingress, vec![PolicyId::namespaced("web", "front")])
        );
        assert_eq!(denial.words, "no policy allows; NetworkPolicy web/front isolates the pod");
    }

    #[test]
    fn a_ruleset_that_is_gone_is_said_to_be() {
        let record = DropRecord { ruleset: 4711, ..record(DropReason::PolicyIngress) };
        let explain = |record| explain(&compiler(), record, (Direction::Ingress, true), None);
        let gone = explain(&record);
        assert_eq!((gone.policies.len(), gone.words.contains("have changed since")), (0, true), "{gone:?}");
        let gone = explain(&DropRecord { bit: 3, ..record });
        assert_eq!(
            (gone.policies.len(), gone.words.contains("no policy has any more")),
            (0, true),
            "{gone:?}"
        );
    }

    #[test]
    fn the_direction_is_that_of_the_reason_and_other_reasons_have_no_policy() {
        let at = |direction, reason| judged(&DropRecord { direction, ..record(reason) });
        let (ingress, egress) = (direction::INGRESS, direction::EGRESS);
        assert_eq!(at(ingress, DropReason::PolicyEgress), Some((Direction::Egress, true)));
        assert_eq!(at(egress, DropReason::PolicyIngress), Some((Direction::Ingress, true)));
        assert_eq!(at(egress, DropReason::PeerUnknown), Some((Direction::Egress, false)));
        assert_eq!(at(direction::LINK, DropReason::PeerUnknown), Some((Direction::Ingress, false)));
        assert_eq!(at(egress, DropReason::SpoofedMac), None);
        assert_eq!(at(egress, DropReason::PolicyUnknown), None);
    }
}
