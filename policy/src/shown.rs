//! What `ferrulectl policy` shows, of a running agent or of files.

use ferrule_proto::agent;

use crate::{
    Action, Because, Compiler, Counted, Decided, Direction, Judges, Policy, PolicyId, Reason, RuleId,
    RulesetId, Step, Trace, TracedEnd, Verdict,
};

/// All policies, with the number of pods that each selects.
pub fn list(compiler: &Compiler, counted: Counted) -> Vec<agent::PolicySummary> {
    let selected = compiler.selected(counted);
    let count = |rules: Option<&[crate::Rule]>| rules.map(|it| u32::try_from(it.len()).unwrap_or(u32::MAX));
    let show = |policy: &Policy| agent::PolicySummary {
        kind: policy.id.kind().to_owned(),
        namespace: policy.id.namespace.clone().unwrap_or_default(),
        name: policy.id.name.clone(),
        tier: policy.tier.name().to_owned(),
        priority: policy.tier.priority().map(u32::from),
        ingress_rules: count(policy.rules(Direction::Ingress)),
        egress_rules: count(policy.rules(Direction::Egress)),
        pods: selected.get(&policy.id).map_or(0, |it| u32::try_from(*it).unwrap_or(u32::MAX)),
        problems: problems(policy),
    };
    compiler.policies().map(show).collect()
}

/// The policies that judge a pod; `None` if the pod is not known.
pub fn explain(compiler: &Compiler, namespace: &str, name: &str) -> Option<agent::ExplainPoliciesResponse> {
    let explanation = compiler.explain(namespace, name)?;
    Some(agent::ExplainPoliciesResponse {
        ingress: Some(judges(&explanation.ingress, Direction::Ingress)),
        egress: Some(judges(&explanation.egress, Direction::Egress)),
        audited: explanation.is_audited,
        state: None,
        notes: explanation.is_ignored.then(|| unseen(namespace, name)).into_iter().collect(),
    })
}

/// A packet as the policies judge it; without the answer of the rows.
pub fn trace(compiler: &Compiler, trace: &Trace) -> agent::TracePoliciesResponse {
    agent::TracePoliciesResponse {
        allowed: trace.is_allowed,
        from: Some(end(&trace.from)),
        to: Some(end(&trace.to)),
        egress: Some(step(compiler, &trace.egress, Direction::Egress)),
        ingress: Some(step(compiler, &trace.ingress, Direction::Ingress)),
        disagree: false,
        notes: [&trace.from, &trace.to].into_iter().flat_map(notes).collect(),
    }
}

/// A verdict of rows, in words. `traffic` is the protocol in the IP header and the destination port, if they
/// are known.
pub fn because(
    compiler: &Compiler,
    verdict: &Verdict,
    direction: Direction,
    traffic: Option<(u8, u16)>,
) -> String {
    match verdict.reason {
        Reason::OwnAddress => own_address(),
        Reason::OwnNode => own_node(),
        Reason::Hairpin => "NetworkPolicies allow a pod to reach itself through a Service".to_owned(),
        Reason::Bit { ruleset, bit, .. } => match compiler.rule_of(verdict, traffic) {
            Some(Decided { rule: id, of }) => {
                let first = rule(compiler, &id, direction, action(compiler, &id, direction));
                if of == 1 { first } else { format!("one of {of} rules, by the port; the first: {first}") }
            }
            None => format!("bit {bit} of the ruleset {}, which no policy has any more", ruleset.0),
        },
        Reason::NotAllowed => "no policy allows".to_owned(),
        Reason::Default => no_policy(),
        Reason::PeerUnknown => {
            "the other address is in a range of pods, and no pod with this address is known".to_owned()
        }
        Reason::NotReady => "the pod has no rows: nothing passes".to_owned(),
    }
}

/// The NetworkPolicies that isolate the subjects of a ruleset, none of which allows.
pub fn not_allowed(compiler: &Compiler, ruleset: RulesetId) -> String {
    match compiler.isolating(ruleset) {
        Some(isolating) => isolate(isolating),
        None => "no policy allowed; the policies have changed since".to_owned(),
    }
}

/// The deciding rule in words, for instance `NetworkPolicy web/front ingress[0] accepts`.
pub fn rule(compiler: &Compiler, id: &RuleId, direction: Direction, action: Option<Action>) -> String {
    let RuleId { policy, rule } = id;
    let known = compiler.policy(policy);
    let tier =
        known.map(|it| it.tier).and_then(|it| Some(format!(" ({}, priority {})", it.name(), it.priority()?)));
    let name = known.and_then(|it| it.rules(direction)?.get(*rule)?.name.as_ref());
    let name = name.map(|it| format!(" {it:?}")).unwrap_or_default();
    let does = match action {
        Some(Action::Accept) => " accepts",
        Some(Action::Deny) => " denies",
        Some(Action::Pass) => " passes to the next tier",
        None => "",
    };
    format!("{policy}{} {}[{rule}]{name}{does}", tier.unwrap_or_default(), direction.name())
}

fn action(compiler: &Compiler, id: &RuleId, direction: Direction) -> Option<Action> {
    compiler.policy(&id.policy)?.rules(direction)?.get(id.rule).map(|it| it.action)
}

fn judges(judges: &Judges, direction: Direction) -> agent::JudgedDirection {
    let show = |policy: &Policy| agent::JudgingPolicy {
        kind: policy.id.kind().to_owned(),
        namespace: policy.id.namespace.clone().unwrap_or_default(),
        name: policy.id.name.clone(),
        tier: policy.tier.name().to_owned(),
        priority: policy.tier.priority().map(u32::from),
        subject: policy.subject.to_string(),
        rules: rules(policy, direction),
        problems: problems(policy),
    };
    agent::JudgedDirection { isolates: judges.isolates, policies: judges.policies.iter().map(show).collect() }
}

fn rules(policy: &Policy, direction: Direction) -> Vec<agent::PolicyRule> {
    let rules = policy.rules(direction).unwrap_or_default().iter().enumerate();
    let show = |(n, rule): (usize, &crate::Rule)| agent::PolicyRule {
        field: format!("{}[{n}]", direction.name()),
        name: rule.name.clone().unwrap_or_default(),
        action: rule.action.name().to_owned(),
        peers: rule.peers.to_string(),
        ports: rule.ports.to_string(),
    };
    rules.map(show).collect()
}

fn step(compiler: &Compiler, step: &Step, direction: Direction) -> agent::PolicyVerdict {
    let shown = agent::PolicyVerdict { allowed: step.is_allowed, ..agent::PolicyVerdict::default() };
    let because = match &step.because {
        Because::NotPoliced => "no policy applies: not a pod, or a pod in its node's network".to_owned(),
        Because::OwnAddress => own_address(),
        Because::OwnNode => own_node(),
        Because::Default => no_policy(),
        Because::NotAllowed(isolating) => {
            let isolated_by = isolating.iter().map(name).collect();
            return agent::PolicyVerdict { because: isolate(isolating), isolated_by, ..shown };
        }
        Because::Rule(id, action) => {
            let deciding = agent::DecidingRule {
                policy: Some(name(&id.policy)),
                tier: compiler.policy(&id.policy).map(|it| it.tier.name().to_owned()).unwrap_or_default(),
                field: format!("{}[{}]", direction.name(), id.rule),
                action: action.name().to_owned(),
            };
            let because = rule(compiler, id, direction, Some(*action));
            return agent::PolicyVerdict { because, rule: Some(deciding), ..shown };
        }
    };
    agent::PolicyVerdict { because, ..shown }
}

fn end(TracedEnd { pod, address, is_own_node, .. }: &TracedEnd) -> agent::PolicyEnd {
    let (namespace, name) = pod.clone().unwrap_or_default();
    let address = address.map(|it| it.to_string()).unwrap_or_default();
    agent::PolicyEnd { namespace, name, address, own_node: *is_own_node }
}

fn notes(end: &TracedEnd) -> Option<String> {
    let (namespace, name) = end.pod.as_ref()?;
    if end.is_ignored {
        let unseen = unseen(namespace, name);
        return Some(format!("{unseen}; for the pod's node, ask with `node` or with the node's address"));
    }
    end.address.is_none().then(|| format!("{namespace}/{name} has no address: no block of addresses matches"))
}

fn unseen(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name} has ended, or has the network of its node: policies do not see the pod")
}

fn name(id: &PolicyId) -> agent::PolicyName {
    agent::PolicyName {
        kind: id.kind().to_owned(),
        namespace: id.namespace.clone().unwrap_or_default(),
        name: id.name.clone(),
    }
}

fn problems(policy: &Policy) -> Vec<String> {
    policy.problems.iter().map(ToString::to_string).collect()
}

fn isolate(isolating: &[PolicyId]) -> String {
    let names: Vec<_> = isolating.iter().map(ToString::to_string).collect();
    let isolate = if names.len() == 1 { "isolates" } else { "isolate" };
    format!("no policy allows; {} {isolate} the pod", names.join(", "))
}

fn own_address() -> String {
    "both ends are the same pod; ClusterNetworkPolicies judge such a packet only if it came through a Service"
        .to_owned()
}

fn own_node() -> String {
    "NetworkPolicies allow the pod's own node".to_owned()
}

fn no_policy() -> String {
    "no policy decides".to_owned()
}
