//! Answers about policies, as tables.

use ferrule_proto::agent::{
    ExplainPoliciesResponse, JudgedDirection, JudgingPolicy, ListPoliciesResponse, PolicyEnd, PolicyState,
    PolicySummary, PolicyVerdict, RowsVerdict, TracePoliciesResponse,
};

use super::ends::{PodName, Traffic};
use crate::table::{plain, pod, table};

pub(super) fn list(list: &ListPoliciesResponse) -> String {
    let header = ["KIND", "POLICY", "TIER", "INGRESS", "EGRESS", "PODS", "PROBLEMS"];
    let row = |it: &PolicySummary| {
        [
            it.kind.clone(),
            plain(&pod(&it.namespace, &it.name)),
            tier(&it.tier, it.priority),
            rules(it.ingress_rules),
            rules(it.egress_rules),
            it.pods.to_string(),
            if it.problems.is_empty() { "-".to_owned() } else { it.problems.len().to_string() },
        ]
    };
    let mut text = list.state.as_ref().map(|it| format!("{}\n\n", state(it))).unwrap_or_default();
    if list.policies.is_empty() {
        text.push_str("no policies");
        return text;
    }
    text.push_str(&table(header, list.policies.iter().map(row)));
    for (policy, problem) in list.policies.iter().flat_map(|it| it.problems.iter().map(move |p| (it, p))) {
        let name = pod(&policy.namespace, &policy.name);
        text.push_str(&plain_line(&format!("{} {name}: {problem}", policy.kind)));
    }
    text
}

pub(super) fn explanation(pod: &PodName, explained: &ExplainPoliciesResponse) -> String {
    let directions = [("receives", &explained.ingress), ("sends", &explained.egress)];
    let shown = directions.into_iter().filter_map(|(does, it)| Some(direction(pod, does, it.as_ref()?)));
    let mut text = shown.collect::<Vec<_>>().join("\n\n");
    if let (true, Some(known)) = (text.is_empty(), &explained.state) {
        text.push_str(&state(known));
    }
    if explained.audited {
        text.push_str("\n\nthe namespace is audited: what is denied is recorded, and passes");
    }
    if let Some((first, more)) = explained.notes.split_first() {
        text.push_str(&format!("\n{}", plain_line(first)));
        more.iter().for_each(|note| text.push_str(&plain_line(note)));
    }
    text
}

pub(super) fn trace(traffic: &Traffic, traced: &TracePoliciesResponse) -> String {
    let verdict = if traced.allowed { "allowed" } else { "denied" };
    let ends = [&traced.from, &traced.to].map(|it| end(it.as_ref()));
    let [from, to] = &ends;
    let mut text = format!("{verdict}: {traffic} from {from} to {to}\n\n");
    let sides = sides(traced);
    let rows = sides.iter().map(|(name, it)| {
        let verdict = if it.allowed { "allowed" } else { "denied" };
        [(*name).to_owned(), verdict.to_owned(), agreement(it), plain(&it.because)]
    });
    text.push_str(&table(["POLICIES OF", "VERDICT", "ROWS", "BECAUSE"], rows));
    for (name, it) in &sides {
        if !it.no_rows_because.is_empty() {
            text.push_str(&plain_line(&format!("{name}: no answer from rows: {}", it.no_rows_because)));
        }
    }
    traced.notes.iter().for_each(|note| text.push_str(&plain_line(note)));
    text
}

/// What to do if the rows in the kernel decide otherwise than the policies.
pub(super) fn disagreement(traced: &TracePoliciesResponse) -> Option<String> {
    let does = |allowed| if allowed { "allow" } else { "deny" };
    let sides = sides(traced).into_iter().filter_map(|(name, it)| {
        let rows = it.rows.as_ref().filter(|rows| rows.allowed != it.allowed)?;
        let policies = format!("the policies {} ({})", does(it.allowed), plain(&it.because));
        Some(format!("{name}: {policies}, the rows {} ({})", does(rows.allowed), plain(&rows.because)))
    });
    let sides: Vec<_> = sides.collect();
    traced.disagree.then(|| {
        format!(
            "THE ROWS IN THE KERNEL DISAGREE WITH THE POLICIES: {}; the rows decide what passes. Restart the \
             agent, which writes all rows again, and report this defect",
            sides.join("; ")
        )
    })
}

fn sides(traced: &TracePoliciesResponse) -> Vec<(&'static str, &PolicyVerdict)> {
    let sides = [("the sender", traced.egress.as_ref()), ("the receiver", traced.ingress.as_ref())];
    sides.into_iter().filter_map(|(name, it)| Some((name, it?))).collect()
}

fn agreement(verdict: &PolicyVerdict) -> String {
    match &verdict.rows {
        None => "-".to_owned(),
        Some(RowsVerdict { allowed, .. }) if *allowed != verdict.allowed => "DISAGREE".to_owned(),
        Some(RowsVerdict { audited: true, allowed: false, .. }) => "same, audited".to_owned(),
        Some(_) => "same".to_owned(),
    }
}

fn direction(pod: &PodName, does: &str, judged: &JudgedDirection) -> String {
    let default = match judged.isolates {
        true => "what no NetworkPolicy allows is denied",
        false => "no NetworkPolicy isolates the pod: what no rule denies is allowed",
    };
    let title = format!("what {} {does}: {default}", plain(&pod.to_string()));
    if judged.policies.is_empty() {
        return title;
    }
    let header = ["POLICY", "TIER", "RULE", "ACTION", "PEERS", "PORTS"];
    let mut text = format!("{title}\n\n{}", table(header, judged.policies.iter().flat_map(rows_of)));
    for (policy, problem) in judged.policies.iter().flat_map(|it| it.problems.iter().map(move |p| (it, p))) {
        text.push_str(&plain_line(&format!("{}: {problem}", name(policy))));
    }
    text
}

/// A row for each rule; one for a policy without any.
fn rows_of(policy: &JudgingPolicy) -> Vec<[String; 6]> {
    let (name, tier) = (name(policy), tier(&policy.tier, policy.priority));
    let row = |[rule, action, peers, ports]: [&str; 4]| {
        let plain = |text: &str| plain(text);
        [plain(&name), tier.clone(), plain(rule), action.to_owned(), plain(peers), plain(ports)]
    };
    if policy.rules.is_empty() {
        return vec![row(["none", "-", "-", "-"])];
    }
    let rules = policy.rules.iter().map(|it| {
        let name = if it.name.is_empty() { String::new() } else { format!(" {:?}", it.name) };
        row([&format!("{}{name}", it.field), &it.action, &it.peers, &it.ports])
    });
    rules.collect()
}

fn name(policy: &JudgingPolicy) -> String {
    format!("{} {}", policy.kind, pod(&policy.namespace, &policy.name))
}

fn tier(tier: &str, priority: Option<u32>) -> String {
    match (tier, priority) {
        (tier, Some(priority)) => format!("{tier} {priority}"),
        (_, None) => "-".to_owned(),
    }
}

/// `-` if the policy says nothing about the direction.
fn rules(count: Option<u32>) -> String {
    count.map_or_else(|| "-".to_owned(), |count| count.to_string())
}

fn state(state: &PolicyState) -> String {
    match (state.kind().name(), state.reason.as_str()) {
        (name, "") => name.to_owned(),
        (name, reason) => format!("{name}: {}", plain(reason)),
    }
}

/// The pod with its address, or the address, or the node.
fn end(end: Option<&PolicyEnd>) -> String {
    let Some(PolicyEnd { namespace, name, address, own_node }) = end else { return "?".to_owned() };
    let node = if *own_node { "the node" } else { "" };
    match (name.as_str(), address.as_str()) {
        ("", "") => node.to_owned(),
        ("", address) if *own_node => format!("{node} ({address})"),
        ("", address) => address.to_owned(),
        (_, "") => plain(&pod(namespace, name)),
        (_, address) => format!("{} ({address})", plain(&pod(namespace, name))),
    }
}

fn plain_line(text: &str) -> String {
    format!("\n{}", plain(text))
}
