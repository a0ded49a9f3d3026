//! Rules and dashboard name what the agent exports, and every metric is documented.

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use agent_common::{DropReason, Traffic};
use serde_json::Value;

use super::*;
use crate::health::Health;

fn file(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The names of all time series that an agent can have.
fn exported() -> BTreeSet<String> {
    let metrics = Metrics::default();
    let health = Health::default();
    metrics.health.read_from(move || vec![health.clone()]);
    metrics.attachments.read_from(|| vec![("attached", 1)]);
    metrics.pods.read_from(Vec::new);
    metrics.links.read_from(|| {
        let mut traffic = Traffic::default();
        traffic.drops.add(DropReason::TunnelInner, 1);
        vec![LinkCounters { ifindex: 1, interface: "eth0".to_owned(), traffic }]
    });
    metrics.programs.read_from(|| {
        let (name, tag) = ("from_pod", String::new());
        vec![ProgramInfo { name, id: 1, tag, instructions: 1, memory: 1, runs: 1, run_ns: 1 }]
    });
    metrics.cni.observe("ADD", "total", 0, Duration::ZERO, None);
    touch(&metrics);
    let text = metrics.encode().unwrap();
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    types
        .flat_map(|(name, kind)| match kind {
            "counter" => vec![format!("{name}_total")],
            "histogram" => ["bucket", "sum", "count"].map(|it| format!("{name}_{it}")).to_vec(),
            "info" => vec![format!("{name}_info")],
            _ => vec![name.to_owned()],
        })
        .collect()
}

/// Gives each family a series: families without any are not encoded.
fn touch(metrics: &Metrics) {
    let watch = &metrics.watch;
    let source = SourceLabels { source: "pods" };
    let _ = watch.events.get_or_create(&EventLabels { source: "pods", kind: "applied" });
    let _ = watch.failures.get_or_create(&FailureLabels { source: "pods", reason: "idle" });
    for family in [&watch.undecodable, &watch.lists, &watch.resumes, &watch.bytes] {
        let _ = family.get_or_create(&source);
    }
    for family in [&watch.objects, &watch.buffered, &watch.unsaved] {
        let _ = family.get_or_create(&source);
    }
    let _ = watch.current.get_or_create(&source);
    metrics.trace.drop_spans("full", 1);
    metrics.heal.deviation("route");
    metrics.heal.pass("everything");
    metrics.heal.repair("route", "failed");
    metrics.maps.entries("VIFS").set(1);
    metrics.maps.capacity("VIFS").set(1);
    let (family, ranges) = (AddressFamily::Ipv4, "10.0.0.0/24".to_owned());
    metrics.ipam.set(&[Usage { family, ranges, free: 1, used: 1, cooling_down: 1 }]);
    metrics.nodes.set([1, 1, 1], 1);
    let _ = metrics.monitor.records.get_or_create(&KindLabels { kind: "drop" });
}

/// The words of a text that look like metrics.
fn named(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let words = text.split(|c| !is_part(c));
    words.filter(|it| it.starts_with("ferrule_") || it.starts_with("process_")).map(str::to_owned).collect()
}

fn rules() -> Vec<(String, String, String)> {
    let text = file("deploy/monitoring/rules.yaml");
    let all: Value = serde_saphyr::from_str(&text).unwrap();
    let rules = all["groups"][0]["rules"].as_array().unwrap();
    let field = |rule: &Value, path: &str| rule.pointer(path).unwrap().as_str().unwrap().to_owned();
    let of = |rule| (field(rule, "/alert"), field(rule, "/expr"), field(rule, "/annotations/runbook"));
    rules.iter().map(of).collect()
}

#[test]
fn alerts_and_dashboard_name_only_metrics_that_the_agent_exports() {
    let exported = exported();
    let dashboard: Value = serde_json::from_str(&file("deploy/monitoring/dashboard.json")).unwrap();
    let targets = dashboard["panels"].as_array().unwrap().iter().filter_map(|it| it["targets"].as_array());
    let panels: Vec<String> = targets.flatten().map(|it| it["expr"].as_str().unwrap().to_owned()).collect();
    assert!(panels.len() > 30, "{panels:?}");
    let expressions = panels.into_iter().chain(rules().into_iter().map(|(_, expression, _)| expression));
    for expression in expressions {
        let unknown: Vec<_> = named(&expression).into_iter().filter(|it| !exported.contains(it)).collect();
        assert!(unknown.is_empty(), "{unknown:?} in {expression}");
    }
}

#[test]
fn each_alert_has_its_section_of_the_runbooks_and_each_section_its_alert() {
    let page = file("docs/runbooks.md");
    let sections: BTreeSet<String> =
        page.lines().filter_map(|it| it.strip_prefix("## ")).map(str::to_owned).collect();
    let alerts: BTreeSet<String> = rules().iter().map(|(alert, ..)| alert.clone()).collect();
    assert_eq!(sections, alerts);
    for (alert, _, runbook) in rules() {
        assert_eq!(runbook, format!("docs/runbooks.md#{}", alert.to_lowercase()));
    }
}

#[test]
fn every_metric_is_documented() {
    let page = file("docs/monitor.md").replace(
        "_{sent,failed,lost}_total",
        "_sent_total ferrule_pod_events_failed_total ferrule_pod_events_lost_total",
    );
    let documented = named(&page);
    let base = |name: &str| {
        ["_bucket", "_sum", "_count"].iter().find_map(|it| name.strip_suffix(it)).map(str::to_owned)
    };
    let missing: Vec<_> = exported()
        .into_iter()
        .filter(|it| !it.starts_with("process_"))
        .filter(|it| !documented.contains(it) && !base(it).is_some_and(|it| documented.contains(&it)))
        .collect();
    assert!(missing.is_empty(), "not in docs/monitor.md: {missing:?}");
}
