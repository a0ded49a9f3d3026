//! The time from an event until packets are judged by it.

use std::{
    cell::Cell,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use ferrule_tests::{
    apiserver::{Resource, objects},
    node::Node,
    pod::{NAMESPACE, Pod},
    sys,
};
use serde_json::json;

use super::{
    Options,
    bed::{Bed, TIMEOUT, v4},
    host_rules::HostRules,
    rows, rules,
    stream::{Stream, Turn},
    traffic,
};
use crate::{
    stats::Series,
    table::{Goal, Table},
};

const PORT: u16 = 5204;
const FRIEND: &str = "friend";
const OTHER: &str = "other";
/// For benchmarks (RFC 2544): the pods of other nodes.
const FOREIGN: &str = "198.18.0.0/15";
const WRITES: &str = "ferrule_policy_write_seconds_count";
const EVENT: Goal = Goal::at_most(5.0, 5.0);
const LARGE: Goal = Goal::at_most(100.0, 100.0);

/// Measures all kinds of changes, in a cluster of a few pods.
pub(super) fn measure(bed: &Bed<'_>, options: &Options, table: &mut Table) -> anyhow::Result<()> {
    let (events, rules) = (options.events, options.rules);
    labels_and_policies(bed, events, "", table)?;
    foreign_pods(bed, events, "", table)?;
    if options.large > 0 {
        let [took, since_event, worked] = large_policies(bed, options.large, rules, table)?;
        add(table, &format!("new policy with {rules} rules, p50 of {}", options.large), &took, None);
        add(table, "  from when the API server has stored it, p50", &since_event, LARGE);
        table.add("  of which the agent compiles and writes, p50", worked.p50(), "ms", None);
    }
    Ok(())
}

/// Measures how long the peers take for as many rules.
pub(super) fn of_peers(node: &Node, options: &Options, table: &mut Table) -> anyhow::Result<()> {
    let peers = HostRules::new(node)?;
    for (name, form) in traffic::MANY_OF_HOST {
        let mut took = Series::default();
        for _ in 0..options.large {
            took.push(peers.set(form, options.rules)?);
        }
        add(table, &format!("{name}: {}, p50 of {}", options.rules, options.large), &took, None);
    }
    peers.clear()
}

/// Measures edits of labels, and new policies.
pub(super) fn labels_and_policies(
    bed: &Bed<'_>,
    count: usize,
    when: &str,
    table: &mut Table,
) -> anyhow::Result<()> {
    let [mut allowed, mut denied] = labels(bed, count)?;
    add(table, &format!("label that allows{when}, p50 of {count}"), &allowed, EVENT);
    add(table, &format!("label that no longer allows{when}, p50 of {count}"), &denied, EVENT);
    [denied, allowed] = policies(bed, count)?;
    add(table, &format!("new policy that isolates{when}, p50 of {count}"), &denied, EVENT);
    add(table, &format!("new policy that allows{when}, p50 of {count}"), &allowed, EVENT);
    Ok(())
}

fn add(table: &mut Table, what: &str, took: &Series, goal: impl Into<Option<Goal>>) {
    table.add(what, took.p50(), "ms", None);
    table.add("  p99", took.percentile(99), "ms", goal);
}

/// Allowed and denied by the label of the peer, in turn.
fn labels(bed: &Bed<'_>, count: usize) -> anyhow::Result<[Series; 2]> {
    let [front, server] = [bed.attach("label-front", OTHER)?, bed.attach("label-server", "labels")?];
    let from = json!([{ "podSelector": { "matchLabels": { "role": FRIEND } } }]);
    let spec =
        json!({ "podSelector": { "matchLabels": { "role": "labels" } }, "ingress": [{ "from": from }] });
    bed.create_policy("labels", spec)?;
    bed.wait_until_reached(&front, &server, false)?;
    let stream = between(&front, &server)?;
    let mut took = [Series::default(), Series::default()];
    for _ in 0..count {
        let [allowed, denied] = &mut took;
        allowed.push(stream.measure(Turn::Pass, || bed.relabel(&front, FRIEND))?);
        denied.push(stream.measure(Turn::Cease, || bed.relabel(&front, OTHER))?);
    }
    bed.delete_policy("labels")?;
    Ok(took)
}

/// A policy that isolates, and one that allows again.
fn policies(bed: &Bed<'_>, count: usize) -> anyhow::Result<[Series; 2]> {
    let [front, server] = [bed.attach("policy-front", "policies")?, bed.attach("policy-server", "isolated")?];
    let subject = json!({ "matchLabels": { "role": "isolated" } });
    let from = json!([{ "podSelector": { "matchLabels": { "role": "policies" } } }]);
    let deny = json!({ "podSelector": subject });
    let allow = json!({ "podSelector": subject, "ingress": [{ "from": from }] });
    let stream = between(&front, &server)?;
    let mut took = [Series::default(), Series::default()];
    for _ in 0..count {
        let [denied, allowed] = &mut took;
        denied.push(stream.measure(Turn::Cease, || bed.create_policy("deny", deny.clone()))?);
        allowed.push(stream.measure(Turn::Pass, || bed.create_policy("allow", allow.clone()))?);
        bed.delete_policy("allow")?;
        bed.delete_policy("deny")?;
        bed.wait_until_reached(&front, &server, true)?;
    }
    Ok(took)
}

/// Measures the first packet to a pod of another node, which the watch tells of, from a pod whose egress is
/// isolated.
pub(super) fn foreign_pods(bed: &Bed<'_>, count: usize, when: &str, table: &mut Table) -> anyhow::Result<()> {
    let outside = std::path::Path::new("/run/netns/outside");
    sys::run("ip -n outside link set lo up")?;
    sys::run("ip -n outside address replace 192.0.2.254/24 dev eth0")?;
    sys::run(&format!("ip -n outside route replace local {FOREIGN} dev lo"))?;
    let caller = bed.attach("caller", "caller")?;
    let to = json!([{ "podSelector": { "matchLabels": { "role": FRIEND } } }]);
    let spec = json!({ "podSelector": { "matchLabels": { "role": "caller" } }, "policyTypes": ["Egress"],
        "egress": [{ "to": to }] });
    bed.create_policy("caller", spec)?;
    let near = bed.attach("near", OTHER)?;
    bed.wait_until_reached(&caller, &near, false)?;
    let mut took = Series::default();
    for number in 0..count {
        let ip = Ipv4Addr::from_bits(Ipv4Addr::new(198, 18, 0, 1).to_bits() + u32::try_from(number)?);
        let name = format!("foreign-{number}");
        let pod = objects::merged(
            objects::pod(NAMESPACE, &name, "node-2"),
            &json!({ "metadata": { "labels": { "role": FRIEND } },
                "status": { "podIP": ip, "podIPs": [{ "ip": ip }] } }),
        );
        let stream = Stream::new(caller.path(), SocketAddr::new(IpAddr::V4(ip), PORT), outside)?;
        took.push(stream.measure(Turn::Pass, || Ok(bed.cluster.api.create(Resource::Pods, pod).map(drop)?))?);
        bed.cluster.api.delete(Resource::Pods, NAMESPACE, &name)?;
    }
    bed.delete_policy("caller")?;
    add(table, &format!("new pod of another node, until allowed{when}, p50 of {count}"), &took, EVENT);
    Ok(())
}

/// A policy whose last rule allows what a policy without rules isolates: the whole times, those from when the
/// API server has stored the object, which are the server's serialization and what follows, and those of the
/// agent's work, as it counts them. The first one's rows are added to the table.
fn large_policies(
    bed: &Bed<'_>,
    count: usize,
    rules: usize,
    table: &mut Table,
) -> anyhow::Result<[Series; 3]> {
    let [front, server] = [bed.attach("large-front", "large-peer")?, bed.attach("large-server", "large")?];
    bed.create_policy("large-deny", json!({ "podSelector": { "matchLabels": { "role": "large" } } }))?;
    bed.wait_until_reached(&front, &server, false)?;
    let stream = between(&front, &server)?;
    let [mut took, mut since_event, mut worked] = [Series::default(), Series::default(), Series::default()];
    for number in 0..count {
        let spec = rules::large(rules, "large", "large-peer");
        let (writes, before) = (bed.node.metric(WRITES)?, work(bed)?);
        let stored = Cell::new(Duration::ZERO);
        let whole = stream.measure(Turn::Pass, || {
            let start = Instant::now();
            bed.create_policy("large", spec)?;
            stored.set(start.elapsed());
            Ok(())
        })?;
        took.push(whole);
        since_event.push(whole.saturating_sub(stored.get()));
        // Counted after the last row, which lets packets pass.
        sys::wait_until("the agent has counted", TIMEOUT, || Ok(bed.node.metric(WRITES)? > writes))?;
        worked.push(Duration::from_secs_f64(work(bed)? - before));
        if number == 0 {
            rows::measure(bed.node, &format!("a policy with {rules} rules"), table)?;
        }
        bed.delete_policy("large")?;
        bed.wait_until_reached(&front, &server, false)?;
    }
    bed.delete_policy("large-deny")?;
    Ok([took, since_event, worked])
}

/// The seconds for which the agent has compiled and written.
fn work(bed: &Bed<'_>) -> anyhow::Result<f64> {
    Ok(bed.node.metric("ferrule_policy_compile_seconds_sum")?
        + bed.node.metric("ferrule_policy_write_seconds_sum")?)
}

fn between(from: &Pod, to: &Pod) -> anyhow::Result<Stream> {
    Stream::new(from.path(), SocketAddr::new(v4(to)?, PORT), to.path())
}
