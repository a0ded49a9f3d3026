//! `ferrulectl check`: CHECK without a runtime, from all that is known of a pod. Pure.
//!
//! The pod's answers to the node were asked for before.

use ferrule_proto::agent::{
    CheckPodResponse, ExplainPodResponse, ExplainedInterface, PodCheck, RateLimit, attachment::State,
    pod_check::Outcome,
};

use super::{
    inside::{self, Gateways},
    probe::Answer,
};
use crate::dataplane::SUBJECT;

/// A check that is passed unless a deviation of these kinds is found.
struct OfKinds {
    name: &'static str,
    kinds: &'static [&'static str],
    /// What is well.
    well: fn(&ExplainedInterface) -> String,
}

const OF_KINDS: [OfKinds; 7] = [
    OfKinds {
        name: "host interface",
        kinds: &[
            "link-gone",
            "link-stamp",
            "link-group",
            "link-master",
            "link-name",
            "link-mac",
            "link-mtu",
            "link-down",
            "link-forwarding",
            "link-redirects",
            "link-localnet",
        ],
        well: |it| {
            let host = it.host_end.clone().unwrap_or_default();
            format!("{} ({}) is up, MTU {}", host.name, host.index, host.mtu)
        },
    },
    OfKinds {
        name: "filters",
        kinds: &["qdisc", "filter"],
        well: |it| {
            let filters = it.host_end.iter().flat_map(|it| &it.filters).filter(|it| it.own);
            filters.map(|it| format!("{} {}", it.name, it.program)).collect::<Vec<_>>().join(", ")
        },
    },
    OfKinds {
        name: "limits",
        kinds: &["link-rate"],
        well: |it| {
            let attachment = it.attachment.clone().unwrap_or_default();
            let of =
                |what, limit: Option<RateLimit>| Some(format!("{what} {} bit/s", limit?.bits_per_second));
            let limits = [of("receives", attachment.ingress_limit), of("sends", attachment.egress_limit)];
            let limits: Vec<_> = limits.into_iter().flatten().collect();
            if limits.is_empty() { "none".to_owned() } else { limits.join(", ") }
        },
    },
    OfKinds {
        name: "host routes",
        kinds: &["route", "neighbour"],
        well: |it| it.host_end.iter().flat_map(|it| it.routes.clone()).collect::<Vec<_>>().join(", "),
    },
    OfKinds {
        name: "map rows",
        kinds: &["map-entry"],
        well: |it| it.rows.iter().map(|it| format!("{} {}", it.map, it.key)).collect::<Vec<_>>().join(", "),
    },
    OfKinds {
        name: "pod interface",
        kinds: &["pod-link", "pod-mac", "pod-mtu", "pod-rate"],
        well: |it| {
            let pod = it.pod_end.clone().unwrap_or_default();
            format!("up, MAC {}, MTU {}", pod.mac, pod.mtu)
        },
    },
    OfKinds {
        name: "pod addresses",
        kinds: &["pod-address", "address-shared"],
        well: |it| it.attachment.iter().flat_map(|it| it.addresses.clone()).collect::<Vec<_>>().join(", "),
    },
];

/// The interfaces of the newest sandbox.
pub(super) fn current(told: &ExplainPodResponse) -> impl Iterator<Item = &ExplainedInterface> {
    let container = |it: &ExplainedInterface| it.attachment.as_ref().map(|it| it.container_id.clone());
    let newest = told.interfaces.first().and_then(container);
    told.interfaces.iter().filter(move |it| container(it) == newest)
}

/// Checks the newest sandbox, whose addresses gave these answers.
pub(super) fn check(told: &ExplainPodResponse, answers: &[Answer]) -> CheckPodResponse {
    let mut checks: Vec<_> = current(told).flat_map(|it| of_interface(it, answers, told.self_heal)).collect();
    if checks.is_empty() {
        let verdict = told.verdict.clone().unwrap_or_default();
        checks.push(failed("attachment", verdict.because.join("; "), verdict.todo.join("; ")));
    }
    checks.push(firewall(told));
    checks.push(policy(told));
    CheckPodResponse { namespace: told.namespace.clone(), name: told.name.clone(), checks }
}

fn of_interface(it: &ExplainedInterface, answers: &[Answer], self_heal: bool) -> Vec<PodCheck> {
    let Some(attachment) = &it.attachment else { return Vec::new() };
    let name = "attachment";
    let is_whole = attachment.state() == State::Attached && it.netns_exists;
    let mut checks = vec![if is_whole {
        passed(name, format!("attached in {}", attachment.netns))
    } else if !it.netns_exists {
        let todo = "wait for the DEL of the runtime; if none comes: ferrulectl gc --dry-run";
        failed(name, format!("the network namespace {} is gone", attachment.netns), todo.to_owned())
    } else {
        let what = format!("the state is {}, not attached", attachment.state().name());
        failed(name, what, "repeat this command in a moment".to_owned())
    }];
    if is_whole {
        checks.extend(OF_KINDS.iter().map(|check| of_kinds(check, it, self_heal)));
        checks.push(subject(it));
        checks.push(routes(it));
        checks.push(neighbours(it));
        checks.extend(probe(answers.iter().filter(|answer| answer.ifname == attachment.ifname)));
    }
    checks.into_iter().map(|check| PodCheck { ifname: attachment.ifname.clone(), ..check }).collect()
}

fn of_kinds(OfKinds { name, kinds, well }: &OfKinds, it: &ExplainedInterface, self_heal: bool) -> PodCheck {
    let found: Vec<_> = it.deviations.iter().filter(|it| kinds.contains(&it.kind.as_str())).collect();
    let is_of_pod = kinds.iter().any(|kind| kind.starts_with("pod-"));
    match found.first() {
        Some(first) => {
            let what: Vec<_> = found.iter().map(|it| it.what.clone()).collect();
            let todo = if first.repairable && self_heal {
                format!("wait, the agent repairs this; see: {}", first.command)
            } else {
                first.command.clone()
            };
            failed(name, what.join("; "), todo)
        }
        None if it.in_work => unknown(name, "a call works on the pod".to_owned()),
        None if is_of_pod && it.pod_end.is_none() => unknown(name, it.no_pod_end_because.clone()),
        None => passed(name, well(it)),
    }
}

/// What judges the pod's packets.
fn subject(it: &ExplainedInterface) -> PodCheck {
    let name = "judge";
    match it.rows.iter().find(|row| row.map == SUBJECT) {
        Some(row) if !row.value.is_empty() => passed(name, row.value.clone()),
        Some(_) => failed(
            name,
            "the row in VIFS does not say what judges the pod, so that nothing passes".to_owned(),
            "see ferrulectl status, the components policy and policy-feed".to_owned(),
        ),
        None => unknown(name, "the map VIFS cannot be read".to_owned()),
    }
}

fn routes(it: &ExplainedInterface) -> PodCheck {
    let name = "pod routes";
    match inside::lost_routes(it) {
        None => unknown(name, it.no_pod_end_because.clone()),
        Some(lost) if lost.is_empty() => passed(name, it.routes.join(", ")),
        Some(lost) => failed(name, format!("the pod lacks {}", lost.join(", ")), inside::routes_remedy(it)),
    }
}

/// The gateways must have the host end's MAC, or none yet.
fn neighbours(it: &ExplainedInterface) -> PodCheck {
    let name = "pod neighbours";
    match inside::gateways(it) {
        None => unknown(name, it.no_pod_end_because.clone()),
        Some(Gateways::Unresolved) => passed(name, "the pod resolves its gateways itself".to_owned()),
        Some(Gateways::Right(entries)) => passed(name, entries.join(", ")),
        Some(Gateways::Wrong(entry, mac)) => failed(
            name,
            format!("the pod's entry {entry} has another MAC than its gateway, {mac}"),
            inside::gateways_remedy(it),
        ),
    }
}

/// What the host's firewall drops of what it forwards. The probe does not find it: the node's own packets are
/// not forwarded.
fn firewall(told: &ExplainPodResponse) -> PodCheck {
    let name = "firewall";
    let all: Vec<_> = told.firewall.iter().map(|it| it.what.clone()).collect();
    let all = all.join("; ");
    match told.firewall.iter().find(|it| it.total) {
        Some(total) => failed(name, all, firewall_remedy(&total.see)),
        None if all.is_empty() => {
            passed(name, "no chain of nftables drops what the host forwards".to_owned())
        }
        None => unknown(name, all),
    }
}

/// What the pod's addresses answered; `None` if none was asked.
fn probe<'a>(answers: impl Iterator<Item = &'a Answer>) -> Option<PodCheck> {
    let name = "probe";
    let (mut heard, mut unheard) = (Vec::new(), Vec::new());
    for Answer { address, after, .. } in answers {
        match after {
            Ok(after) => heard.push(format!("{address} answers after {:.3} ms", after.as_secs_f64() * 1e3)),
            Err(why) => unheard.push(format!("{address}: {why}")),
        }
    }
    if unheard.is_empty() {
        return (!heard.is_empty()).then(|| passed(name, heard.join(", ")));
    }
    let todo = "see ferrulectl drops for packets that the programs drop; then the rules of the node and of the pod: \
                nft list ruleset, nsenter --net=NETNS nft list ruleset";
    Some(failed(name, format!("no answer to the node: {}", unheard.join(", ")), todo.to_owned()))
}

/// Policies cut nothing off by mistake: what they deny is their purpose, so that this only tells.
fn policy(told: &ExplainPodResponse) -> PodCheck {
    let name = "policies";
    let state = told.policy_state.clone().unwrap_or_default();
    match &told.policies {
        None => passed(name, format!("{}: no policy is known of the pod", state.kind().name())),
        Some(it) => {
            let of = |isolates: Option<bool>| if isolates == Some(true) { "isolated" } else { "open" };
            let ingress = of(it.ingress.as_ref().map(|it| it.isolates));
            let egress = of(it.egress.as_ref().map(|it| it.isolates));
            passed(name, format!("{}: ingress {ingress}, egress {egress}", state.kind().name()))
        }
    }
}

pub(super) fn firewall_remedy(see: &str) -> String {
    format!("accept what pods send and receive there, see: {see}")
}

fn passed(name: &str, what: String) -> PodCheck {
    PodCheck { name: name.to_owned(), outcome: Outcome::Passed.into(), what, ..PodCheck::default() }
}

fn failed(name: &str, what: String, todo: String) -> PodCheck {
    PodCheck { name: name.to_owned(), outcome: Outcome::Failed.into(), what, todo, ..PodCheck::default() }
}

fn unknown(name: &str, what: String) -> PodCheck {
    PodCheck { name: name.to_owned(), outcome: Outcome::Unknown.into(), what, ..PodCheck::default() }
}

#[cfg(test)]
mod tests;
