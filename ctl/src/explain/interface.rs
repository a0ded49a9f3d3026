//! One interface: a line for each fact.

use ferrule_proto::agent::{AddTimes, Attachment, Counters, ExplainedInterface, HostEnd, PodEnd, RateLimit};

use crate::{
    attachments, paint,
    table::{aligned, interface, plain, short_id},
    time::{clock, duration},
    wishes,
};

/// `now`: seconds since the Unix epoch.
pub(super) fn tell(it: &ExplainedInterface, now: u64) -> String {
    let attachment = it.attachment.clone().unwrap_or_default();
    let age = duration(now.saturating_sub(attachment.created_at_ms / 1000));
    let title = format!(
        "{} of sandbox {}, {} since {age}",
        attachment.ifname,
        short_id(&attachment.container_id),
        attachment.state().name()
    );
    let mut facts = Vec::new();
    let mut fact = |name: &str, lines: Vec<String>| {
        let names = std::iter::once(name).chain(std::iter::repeat(""));
        facts.extend(names.zip(lines).map(|(name, line)| vec![format!("  {name}"), line]));
    };
    fact("VIF", vec![vif(it, &attachment)]);
    fact("source", vec![or(&it.source, "unknown since the agent's restart")]);
    fact("routes", vec![or(&it.routes.join(", "), "none")]);
    if !attachment.host_ports.is_empty() {
        fact("ports", vec![wishes::ports(&attachment)]);
    }
    fact("limits", limits(&attachment));
    fact("sandbox", vec![netns(it, &attachment)]);
    fact("host end", it.host_end.as_ref().map_or_else(|| vec![paint::bad("none")], host_end));
    let unread = || vec![paint::warn(&format!("not read: {}", plain(&it.no_pod_end_because)))];
    fact("pod end", it.pod_end.as_ref().map_or_else(unread, pod_end));
    fact("map rows", rows(it));
    fact("counters", attachment.counters.as_ref().map_or_else(|| vec!["none".to_owned()], counters));
    fact("ADD", it.add.as_ref().map_or_else(|| vec!["unknown since the agent's restart".to_owned()], times));
    fact("drift", drift(it));
    fact("foreign", it.foreign.iter().map(|it| plain(&it.what)).collect());
    format!("{title}\n{}", aligned(facts.into_iter()))
}

fn vif(it: &ExplainedInterface, attachment: &Attachment) -> String {
    let addresses = attachment.addresses.join(" and ");
    format!(
        "{}, {addresses}, MAC {}, MTU {}, generation {}",
        it.kind, attachment.mac, attachment.mtu, it.generation
    )
}

/// None without a limit.
fn limits(it: &Attachment) -> Vec<String> {
    let of =
        |what: &str, limit: &Option<RateLimit>| Some(format!("{what} {}", wishes::limit(limit.as_ref()?)));
    [of("receives", &it.ingress_limit), of("sends", &it.egress_limit)].into_iter().flatten().collect()
}

fn netns(it: &ExplainedInterface, attachment: &Attachment) -> String {
    let path = or(&plain(&attachment.netns), "unknown path");
    let gone = if it.netns_exists { String::new() } else { paint::bad(", gone") };
    format!("{path} ({}:{}){gone}", attachment.netns_dev, attachment.netns_ino)
}

fn host_end(it: &HostEnd) -> Vec<String> {
    let name = interface(&it.name, it.index);
    let mut lines = vec![format!("{name}, {}, MAC {}, MTU {}", up(it.up), it.mac, it.mtu)];
    lines.push(format!("routes {}", or(&it.routes.join(", "), "none")));
    lines.push(format!("neighbours {}", or(&it.neighbours.join(", "), "none")));
    lines.extend(it.filters.iter().map(|filter| {
        let whose = if filter.own { format!("tag {}", filter.tag) } else { paint::warn("not this agent's") };
        format!("filter {} on {}, program {}, {whose}", plain(&filter.name), filter.direction, filter.program)
    }));
    if it.filters.is_empty() {
        lines.push(paint::bad("no filters"));
    }
    lines
}

fn pod_end(it: &PodEnd) -> Vec<String> {
    vec![
        format!(
            "{}, MAC {}, MTU {}, {}",
            up(it.up),
            it.mac,
            it.mtu,
            or(&it.addresses.join(", "), "no address")
        ),
        format!("routes {}", or(&it.routes.join(", "), "none")),
        format!("neighbours {}", or(&it.neighbours.join(", "), "none")),
    ]
}

fn rows(it: &ExplainedInterface) -> Vec<String> {
    let shown = |value: &str| if value.is_empty() { paint::bad("missing") } else { plain(value) };
    it.rows.iter().map(|row| format!("{} {}: {}", row.map, row.key, shown(&row.value))).collect()
}

fn counters(it: &Counters) -> Vec<String> {
    vec![format!(
        "out {} packets, {} bytes; in {} packets, {} bytes; drops {}",
        it.egress_packets,
        it.egress_bytes,
        it.ingress_packets,
        it.ingress_bytes,
        attachments::drops(it)
    )]
}

fn times(it: &AddTimes) -> Vec<String> {
    let ms = |us: u64| format!("{}.{} ms", us / 1000, us % 1000 / 100);
    let phases: Vec<_> = it.phases.iter().map(|it| format!("{} {}", it.phase, ms(it.took_us))).collect();
    vec![format!("{} at {}: {}", ms(it.total_us), clock(it.began_ms), phases.join(", "))]
}

fn drift(it: &ExplainedInterface) -> Vec<String> {
    if it.in_work {
        return vec!["not compared: a call works on the pod; retry".to_owned()];
    }
    if it.deviations.is_empty() {
        return vec![paint::good("none")];
    }
    it.deviations.iter().map(|it| format!("{}: {}", paint::bad(&it.kind), plain(&it.what))).collect()
}

fn up(is_up: bool) -> String {
    if is_up { "up".to_owned() } else { paint::bad("down") }
}

fn or(text: &str, other: &str) -> String {
    if text.is_empty() { other.to_owned() } else { text.to_owned() }
}
