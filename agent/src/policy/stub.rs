//! What stands in for a policy whose rules do not fit.

use ferrule_policy::{Action, Peers, Policy, Ports, Rule, Tier};

/// A policy of the same subjects and directions that allows nothing. Stubs of all policies together need two
/// bits of a ruleset.
pub(super) fn stub(policy: &Policy) -> Policy {
    let closed = |rules: &Option<Vec<Rule>>| rules.as_ref().map(|rules| close(policy.tier, rules));
    Policy { ingress: closed(&policy.ingress), egress: closed(&policy.egress), ..policy.clone() }
}

fn close(tier: Tier, rules: &[Rule]) -> Vec<Rule> {
    match tier {
        // Isolates without a rule.
        Tier::Namespaced => Vec::new(),
        // Without rules that accept, only less is allowed.
        Tier::Admin(_) | Tier::Baseline(_) if rules.iter().all(|it| it.action == Action::Accept) => {
            Vec::new()
        }
        Tier::Admin(_) | Tier::Baseline(_) => {
            let name = Some("the rules do not fit".to_owned());
            vec![Rule { name, action: Action::Deny, peers: Peers::Any, ports: Ports::Any }]
        }
    }
}

#[cfg(test)]
mod tests {
    use ferrule_policy::{Namespaces, PodSet, PolicyId, Selector};

    use super::*;

    fn policy(tier: Tier, actions: &[Action]) -> Policy {
        let rule = |action: &Action| Rule {
            name: None,
            action: *action,
            peers: Peers::Of(Vec::new()),
            ports: Ports::Any,
        };
        let namespaces = Namespaces::Matching(Selector::all());
        Policy {
            id: PolicyId::cluster("p"),
            uid: "u".to_owned(),
            tier,
            subject: PodSet { namespaces, pods: Selector::all() },
            ingress: Some(actions.iter().map(rule).collect()),
            egress: None,
            problems: Vec::new(),
        }
    }

    #[test]
    fn a_stub_allows_nothing_and_has_the_directions_of_the_policy() {
        let stub_of = |tier, actions: &[Action]| {
            let stub = stub(&policy(tier, actions));
            assert_eq!((stub.uid.as_str(), &stub.egress), ("u", &None));
            stub.ingress.unwrap()
        };
        let denies = |rules: &[Rule]| {
            let [rule] = rules else { return false };
            (rule.action, &rule.peers, &rule.ports) == (Action::Deny, &Peers::Any, &Ports::Any)
        };
        assert!(stub_of(Tier::Namespaced, &[Action::Accept]).is_empty());
        for tier in [Tier::Admin(1), Tier::Baseline(1)] {
            assert!(stub_of(tier, &[Action::Accept, Action::Accept]).is_empty());
            assert!(denies(&stub_of(tier, &[Action::Accept, Action::Deny])));
            assert!(denies(&stub_of(tier, &[Action::Pass])), "what it passes may be accepted otherwise");
        }
    }
}
