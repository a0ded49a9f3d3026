//! The story in words: first the verdict, then what it rests on.

use ferrule_proto::agent::{
    DroppedPacket, ExplainPodResponse, ExplainPoliciesResponse, JudgedDirection, PodVerdict,
    pod_verdict::Kind,
};

use super::interface;
use crate::{
    paint,
    table::{aligned, plain, pod, short_id},
    time::{clock, duration},
};

/// `now`: seconds since the Unix epoch.
pub(super) fn tell(told: &ExplainPodResponse, now: u64) -> String {
    let mut paragraphs = vec![verdict(told)];
    paragraphs.push(who(told));
    paragraphs.extend(told.interfaces.iter().map(|it| interface::tell(it, now)));
    paragraphs.extend(adds(told, now));
    paragraphs.push(policies(told));
    paragraphs.push(drops(&told.drops));
    paragraphs.extend(troubles(told));
    paragraphs.join("\n\n")
}

/// The top line, then each cause with what to do.
fn verdict(told: &ExplainPodResponse) -> String {
    let verdict = told.verdict.clone().unwrap_or_default();
    let PodVerdict { because, todo, .. } = &verdict;
    let name = pod(&told.namespace, &told.name);
    let kind = verdict.kind();
    let mut causes = because.iter().zip(todo);
    let Some((first, first_todo)) = causes.next() else {
        return format!("{name}: {}", paint::good(kind.name()));
    };
    let painted = match kind {
        Kind::NotCarried => paint::bad(kind.name()),
        Kind::Carried | Kind::NodeNetwork => paint::good(kind.name()),
        Kind::Impaired | Kind::Unspecified => paint::warn(kind.name()),
    };
    let mut text = format!("{name}: {painted}: {}\n  to do: {}", plain(first), plain(first_todo));
    for (cause, todo) in causes {
        text += &format!("\nalso: {}\n  to do: {}", plain(cause), plain(todo));
    }
    text
}

fn who(told: &ExplainPodResponse) -> String {
    let uid = if told.uid.is_empty() { "no UID".to_owned() } else { format!("UID {}", plain(&told.uid)) };
    let node = if told.node.is_empty() { String::new() } else { format!(", node {}", told.node) };
    let listed = match told.listed {
        None => "",
        Some(true) => ", listed by the API server",
        Some(false) => ", not in the API server's list of this node's pods",
    };
    format!("{uid}{node}{listed}")
}

/// ADDs in flight and failed ones.
fn adds(told: &ExplainPodResponse, now: u64) -> Option<String> {
    let ago = |ms: u64| format!("{} ago", duration(now.saturating_sub(ms / 1000)));
    let in_flight = told.adds_in_flight.iter().map(|it| {
        let mut what = format!("in flight, {}", it.phase);
        if !it.missing.is_empty() {
            let since = duration(now.saturating_sub(it.phase_since_ms / 1000));
            what += &format!(" since {since}: {}", plain(&it.missing));
        }
        vec![format!("  {}", short_id(&it.container_id)), it.ifname.clone(), ago(it.began_ms), what]
    });
    let failed = told.failed_adds.iter().map(|it| {
        let times = if it.times > 1 { format!("{} times, ", it.times) } else { String::new() };
        let what = paint::bad(&format!("failed {times}code {}: ", it.code)) + &plain(&it.message);
        vec![format!("  {}", short_id(&it.container_id)), it.ifname.clone(), ago(it.last_ms), what]
    });
    let rows: Vec<_> = in_flight.chain(failed).collect();
    (!rows.is_empty()).then(|| format!("ADDs\n{}", aligned(rows.into_iter())))
}

fn policies(told: &ExplainPodResponse) -> String {
    let state = told.policy_state.clone().unwrap_or_default();
    let why = if state.reason.is_empty() { String::new() } else { format!(" ({})", plain(&state.reason)) };
    let state = format!("policies: {}{why}", state.kind().name());
    let Some(ExplainPoliciesResponse { ingress, egress, audited, .. }) = &told.policies else { return state };
    let audited = if *audited { "; audited: what is denied passes" } else { "" };
    let of = |direction: &Option<JudgedDirection>| direction.as_ref().map(judged).unwrap_or_default();
    format!("{state}{audited}\n  ingress  {}\n  egress   {}", of(ingress), of(egress))
}

fn judged(JudgedDirection { isolates, policies }: &JudgedDirection) -> String {
    let names: Vec<_> = policies
        .iter()
        .map(|it| {
            let rules =
                if it.rules.len() == 1 { "1 rule".to_owned() } else { format!("{} rules", it.rules.len()) };
            format!("{} {} ({rules})", it.kind, pod(&it.namespace, &it.name))
        })
        .collect();
    match (isolates, names.is_empty()) {
        (_, true) => "open: no policy judges".to_owned(),
        (true, false) => format!("isolated: {}", names.join(", ")),
        (false, false) => format!("judged: {}", names.join(", ")),
    }
}

fn drops(drops: &[DroppedPacket]) -> String {
    if drops.is_empty() {
        return "last drops: none recorded".to_owned();
    }
    let rows = drops.iter().map(|it| {
        let audited = if it.audited { "AUDIT, passed: " } else { "" };
        vec![
            format!("  {}", clock(it.time_ms)),
            it.direction.clone(),
            plain(&it.source),
            format!("→ {}", plain(&it.destination)),
            format!("{audited}{}", plain(&it.summary)),
        ]
    });
    format!("last drops\n{}", aligned(rows))
}

fn troubles(told: &ExplainPodResponse) -> Option<String> {
    let rows = told.troubles.iter().map(|it| {
        let affects = match (it.needed_by_pods, it.needed_for_add) {
            (true, _) => "running pods",
            (false, true) => "new pods",
            (false, false) => "no pod",
        };
        vec![
            format!("  {}", it.name),
            it.state().name().to_owned(),
            format!("affects {affects}"),
            plain(&it.reason),
        ]
    });
    (!told.troubles.is_empty()).then(|| format!("the node\n{}", aligned(rows)))
}
