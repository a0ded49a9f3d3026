//! Tracing and duration metrics, as a collector and a monitoring system see them.

use std::{
    collections::BTreeMap,
    net::TcpListener,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::ensure;
use ferrule_tests::{
    cluster::{NODE, with_cluster},
    collector::{ADDRESS, Collector, FLAGS, hex, texts},
    node::{Node, POD_V4, POD_V6, on_node, with_agent},
    pod::Pod,
    runtime::Answer,
    sys::wait_until,
};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";
/// Upper bound for operations that must not block, on a loaded machine.
const TIMEOUT: Duration = Duration::from_secs(10);

fn traced(flags: &str) -> Vec<(&'static str, String)> {
    vec![("TRACEPARENT", format!("00-{TRACE}-{SPAN}-{flags}")), ("TRACESTATE", "rojo=1".to_owned())]
}

/// Calls a verb with a trace context.
fn call(node: &Node, verb: &str, pod: &Pod, trace: Vec<(&'static str, String)>) -> anyhow::Result<Answer> {
    let runtime = node.runtime()?.after_add(pod);
    let mut environment = runtime.environment(verb, pod);
    environment.extend(trace.into_iter().map(|(name, value)| (name.to_owned(), value)));
    runtime.call_with(&environment, runtime.config().to_string().as_bytes())
}

fn start_standalone(node: &mut Node) -> anyhow::Result<()> {
    let ranges = ["--standalone", "--pod-cidr", POD_V4, "--pod-cidr", POD_V6];
    node.start_agent_with(&[&ranges[..], &FLAGS].concat())
}

/// Number of spans dropped for a reason.
fn dropped(node: &Node, reason: &str) -> anyhow::Result<f64> {
    node.count(&format!(r#"ferrule_trace_spans_dropped_total{{reason="{reason}"}}"#))
}

#[test]
fn add_and_del_export_spans_with_phase_children_in_the_runtimes_trace() {
    with_cluster(&FLAGS, |node, cluster| {
        let collector = Collector::start()?;
        let pod = cluster.pod(node, "web-0", &[])?;
        call(node, "ADD", &pod, traced("01"))?.into_result()?;
        let add = collector.call(TRACE, "ADD")?;
        ensure!(hex(&add.own.parent_span_id) == SPAN && add.own.trace_state == "rojo=1", "{:?}", add.own);
        let expected = ["queue", "wait_for_vif", "queue", "intent", "plug", "dataplane", "plug", "commit"];
        ensure!(add.phases()? == expected, "{:?}", add.phases());
        let attributes = BTreeMap::from(
            [
                ("cni.network", "cluster"),
                ("container.id", pod.container_id.as_str()),
                ("cni.ifname", "eth0"),
                ("k8s.namespace.name", "default"),
                ("k8s.pod.name", "web-0"),
                ("k8s.pod.uid", pod.uid.as_str()),
            ]
            .map(|(key, value)| (key.to_owned(), value.to_owned())),
        );
        ensure!(add.attributes() == attributes, "{:?}", add.attributes());
        ensure!(add.own.status.is_none(), "{:?}", add.own.status);

        call(node, "DEL", &pod, traced("01"))?.into_result()?;
        let del = collector.call(TRACE, "DEL")?;
        ensure!(hex(&del.own.parent_span_id) == SPAN && del.own.span_id != add.own.span_id);
        ensure!(del.phases()? == ["queue", "dataplane", "plug", "commit"], "{:?}", del.phases());
        ensure!(del.attributes() == attributes, "wrong attributes of DEL: {:?}", del.attributes());
        ensure!(del.own.start_time_unix_nano >= add.own.end_time_unix_nano);

        let received = collector.received();
        let resource = texts(&received[0].resource.clone().unwrap_or_default().attributes);
        let of = |key: &str| resource.get(key).map(String::as_str);
        ensure!(
            of("service.name") == Some("ferrule-agent") && of("k8s.node.name") == Some(NODE),
            "{resource:?}"
        );
        ensure!(of("service.version").is_some());
        Ok(())
    })
    .unwrap();
}

#[test]
fn failed_add_span_has_error_code_and_add_without_context_starts_a_trace() {
    on_node(|node| {
        start_standalone(node)?;
        let collector = Collector::start()?;
        let nowhere = Pod { netns: PathBuf::from("/run/netns/nowhere"), ..node.pod("a")? };
        let error = call(node, "ADD", &nowhere, traced("01"))?.into_error()?;
        let failed = collector.call(TRACE, "ADD")?;
        let code = failed.attributes().remove("cni.code");
        ensure!(code == Some(error.code.to_string()), "{error}: {:?}", failed.attributes());
        let status = failed.own.status.clone().unwrap_or_default();
        ensure!(status.code == 2 && error.msg.contains(&status.message), "{status:?}");
        ensure!(failed.phases()?.last() == Some(&"intent"), "{:?}", failed.phases());
        let log = node.log();
        let line = log.lines().find(|line| line.contains("a CNI call failed")).unwrap_or_default();
        for field in [format!("trace=\"{TRACE}\""), format!("key=\"cluster/{}/eth0\"", nowhere.container_id)]
        {
            ensure!(line.contains(&field), "{field} is missing: {line}");
        }

        let pod = node.attach("b")?;
        wait_until("the collector has received the root span", TIMEOUT, || {
            let spans = collector.spans();
            Ok(spans
                .iter()
                .any(|it| it.name == "CNI ADD" && it.parent_span_id.is_empty() && hex(&it.trace_id) != TRACE))
        })?;
        call(node, "CHECK", &pod, traced("01"))?.into_result()?;
        ensure!(collector.call(TRACE, "CHECK")?.phases()? == ["queue", "verify"]);
        Ok(())
    })
    .unwrap();
}

#[test]
fn unsampled_calls_are_not_exported_and_shutdown_flushes_spans() {
    on_node(|node| {
        start_standalone(node)?;
        let collector = Collector::start()?;
        let pod = node.pod("a")?;
        call(node, "ADD", &pod, traced("00"))?.into_result()?;
        call(node, "DEL", &pod, traced("01"))?.into_result()?;
        node.stop_agent()?;
        let spans = collector.spans();
        ensure!(spans.iter().any(|span| span.name == "CNI DEL"), "{spans:?}");
        ensure!(!spans.iter().any(|span| span.name == "CNI ADD"), "{spans:?}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn unreachable_collector_does_not_delay_calls_and_is_logged_once() {
    on_node(|node| {
        start_standalone(node)?;
        let start = Instant::now();
        for number in 0..5 {
            let pod = node.pod(&format!("pod-{number}"))?;
            call(node, "ADD", &pod, traced("01"))?.into_result()?;
        }
        ensure!(start.elapsed() < TIMEOUT, "five ADDs took {:?}", start.elapsed());
        wait_until("undeliverable spans are dropped", Duration::from_secs(30), || {
            Ok(dropped(node, "failed")? >= 5.0)
        })?;
        // Wait for another failed batch.
        let before = dropped(node, "failed")?;
        ensure!(node.runtime()?.status()?.status.success(), "STATUS failed");
        wait_until(
            "the exporter retries",
            Duration::from_secs(30),
            || Ok(dropped(node, "failed")? > before),
        )?;
        let lines = node.log().lines().filter(|line| line.contains("traces")).count();
        ensure!(lines == 1, "{lines} lines:\n{}", node.log());
        let status = node.ctl(&["status"])?;
        ensure!(status.contains("traces") && status.contains("unhealthy"), "{status}");

        let collector = Collector::start()?;
        let pod = node.pod("late")?;
        call(node, "ADD", &pod, traced("01"))?.into_result()?;
        collector.call(TRACE, "ADD")?;
        wait_until("the exporter is healthy again", TIMEOUT, || {
            Ok(!node.ctl(&["status"])?.contains("unhealthy"))
        })?;
        Ok(())
    })
    .unwrap();
}

#[test]
fn unresponsive_collector_blocks_neither_calls_nor_shutdown() {
    on_node(|node| {
        // The kernel accepts connections into the backlog, but nothing reads from them.
        let _listener = TcpListener::bind(ADDRESS)?;
        start_standalone(node)?;
        let pod = node.pod("a")?;
        call(node, "ADD", &pod, traced("01"))?.into_result()?;
        ensure!(node.runtime()?.status()?.status.success());
        node.stop_agent()
    })
    .unwrap();
}

#[test]
fn duration_histogram_covers_each_phase_of_each_verb() {
    with_agent(|node| {
        let (_, before) = node.http("/metrics")?;
        ensure!(!before.contains("ferrule_cni_duration_seconds_bucket"), "series without a call:\n{before}");
        let runtime = node.runtime()?;
        let pod = node.attach("a")?;
        runtime.check(&pod)?;
        let nowhere = Pod { netns: PathBuf::from("/run/netns/nowhere"), ..node.pod("b")? };
        let error = runtime.call("ADD", &nowhere)?.into_error()?;
        ensure!(error.code == 8, "{error}");
        runtime.del(&pod)?;
        ensure!(runtime.status()?.status.success());

        let series = |verb: &str, phase: &str, code: u64| {
            let labels = format!(r#"{{verb="{verb}",phase="{phase}",code="{code}"}}"#);
            node.count(&format!("ferrule_cni_duration_seconds_count{labels}"))
        };
        let expected: [(&str, &[&str]); 4] = [
            ("ADD", &["queue", "wait_for_vif", "intent", "plug", "dataplane", "commit", "total"]),
            ("CHECK", &["queue", "verify", "total"]),
            ("DEL", &["queue", "dataplane", "plug", "commit", "total"]),
            ("STATUS", &["total"]),
        ];
        for (verb, phases) in expected {
            for phase in phases {
                ensure!(series(verb, phase, 0)? == 1.0, "{verb} {phase}:\n{}", node.http("/metrics")?.1);
            }
        }
        ensure!(series("ADD", "verify", 0)? == 0.0 && series("ADD", "undo", 0)? == 0.0);
        for phase in ["intent", "total"] {
            ensure!(series("ADD", phase, 8)? == 1.0, "wrong count of phase {phase} for the failed ADD");
        }
        ensure!(series("ADD", "plug", 8)? == 0.0, "the failed ADD reached the phase plug");
        let total = r#"ferrule_cni_duration_seconds_bucket{le="90.0",verb="ADD",phase="total",code="0"}"#;
        ensure!(node.metric(total)? == 1.0, "{}", node.http("/metrics")?.1);
        Ok(())
    })
    .unwrap();
}
