//! A node in a cluster: pods, late VIF decisions, and an API server outage.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow, ensure};
use ferrule_tests::{
    cluster::{KUBECONFIG, NODE},
    node::{Node, POD_V4, POD_V6},
    pod::Pod,
    runtime::Runtime,
    sys::wait_until,
};

use crate::{api::Api, report::Report};

/// Connects the agent to the API server. The maximum backoff is 1 s instead of 30 s, to keep the demo short.
const FLAGS: [&str; 6] = ["--kubeconfig", KUBECONFIG, "--node-name", NODE, "--watch-max-backoff", "1"];
/// Every pod waits for a controller's annotation.
const BY_ANNOTATION: [&str; 2] = ["--vif-source", "annotation"];
const TWO: &str = r#"{"interfaces": [
     {"addresses": ["10.244.0.200", "fd00:10:244::200"], "mtu": 1400, "routes": [{"dst": "198.18.0.0/15"}]},
     {"name": "eth1", "addresses": ["10.244.0.201"]}]}"#;
const ONE: &str = r#"{"interfaces": [{"addresses": ["10.244.0.210"]}]}"#;
const PODS_METRIC: &str = r#"ferrule_watch_objects{source="pods"}"#;
const RESUMES_METRIC: &str = r#"ferrule_watch_resumes_total{source="pods"}"#;
const TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) fn run(node: &mut Node, report: &mut Report) -> anyhow::Result<()> {
    super::introduce(report);
    let runtime = node.runtime()?;
    let api = begin(node, &runtime, report)?;
    let empty = node.kernel_state()?;

    report.chapter("Attach three pods of the API server, as a container runtime does");
    let (mut web, mut vip, mut db) = (node.pod("web-0")?, node.pod("vip-0")?, node.pod("db-0")?);
    for pod in [&mut web, &mut db] {
        api.create(pod, None)?;
        super::add(
            &runtime,
            report,
            pod,
            " succeeds: addresses from the node's pod CIDRs",
            pod.name == "web-0",
        )?;
    }
    api.create(&mut vip, Some(TWO))?;
    report.output("a controller sets the annotation vif.ferrule.dev/v1 on vip-0", TWO);
    super::add(&runtime, report, &mut vip, " succeeds: two interfaces, as the annotation requests", false)?;
    report.fact("vip-0 has the annotation's addresses, MTU and route", || {
        let all = vip.run("ip -o addr")? + &vip.run("ip link show eth0")? + &vip.run("ip route")?;
        for one in ["10.244.0.200/32", "fd00:10:244::200/128", "10.244.0.201/32", "mtu 1400", "198.18.0.0/15"]
        {
            ensure!(all.contains(one), "{one} is missing in {all}");
        }
        Ok(())
    })?;
    let pods = [web, vip, db];
    super::connect(&pods, report)?;
    let [web, vip, db] = pods;
    super::to_world(&web, report)?;

    let (mut late, mut job, mut gone) = (node.pod("late-0")?, node.pod("job-0")?, node.pod("gone-0")?);
    for pod in [&mut late, &mut job, &mut gone] {
        api.create(pod, None)?;
    }
    late_decision(node, &api, &runtime, &mut late, report)?;
    outage(node, api, &runtime, [&vip, &db, &late, &gone], &mut job, report)?;
    late.remove()?;
    let new = recover(node, &runtime, &gone, report)?;
    gone.remove()?;

    report.chapter("Operator tools");
    report.output("ferrulectl status", &node.ctl(&["status"])?);
    let (_, metrics) = node.http("/metrics")?;
    let of_watch: Vec<&str> = metrics.lines().filter(|line| line.starts_with("ferrule_watch_")).collect();
    report.output("curl -s http://127.0.0.1:9469/metrics | grep ^ferrule_watch_", &of_watch.join("\n"));
    super::operator_tools(node, &[&web, &vip, &db], report)?;
    super::anti_spoofing(node, &web, &db, report)?;
    super::end(node, &runtime, [web, vip, db, job, new], &empty, report)
}

fn begin(node: &mut Node, runtime: &Runtime, report: &mut Report) -> anyhow::Result<Api> {
    let api = report.fact("the API server serves, in a separate process", Api::start)?;
    api.create_node()?;
    println!("   # ferrule-agent {}", FLAGS.join(" "));
    report.fact("the agent loads its eBPF programs and serves", || node.start_agent_with(&FLAGS))?;
    let error =
        report.fact("STATUS fails while the Node has no spec.podCIDRs: the agent is not ready", || {
            let mut error = None;
            wait_until("STATUS reports missing pod CIDRs", TIMEOUT, || {
                let found = runtime.status()?.into_error()?;
                let is_expected = found.to_string().contains("set spec.podCIDRs of the Node");
                error = Some(found);
                Ok(is_expected)
            })?;
            error.ok_or_else(|| anyhow!("STATUS returned no error"))
        })?;
    println!("   {error}");
    report.fact("the agent becomes ready after a controller sets spec.podCIDRs", || {
        api.give_ranges(&[POD_V4, POD_V6])?;
        wait_until("the agent is ready", TIMEOUT, || Ok(runtime.status()?.into_result().is_ok()))
    })?;
    report.output("ferrulectl status", &node.ctl(&["status"])?);
    Ok(api)
}

fn late_decision(
    node: &mut Node,
    api: &Api,
    runtime: &Runtime,
    late: &mut Pod,
    report: &mut Report,
) -> anyhow::Result<()> {
    report.chapter("A VIF decision that arrives late");
    let flags = [&FLAGS[..], &BY_ANNOTATION].concat();
    println!("   # ferrule-agent … {}", BY_ANNOTATION.join(" "));
    report.fact("the agent restarts with --vif-source annotation and recovers its attachments", || {
        let before = node.attachments()?.len();
        node.stop_agent()?;
        node.start_agent_with(&flags)?;
        ensure!(node.attachments()?.len() == before);
        Ok(())
    })?;
    report.fact("the watch resumes at its position, without a relist", || {
        wait_until("the watch has resumed", TIMEOUT, || Ok(node.metric(RESUMES_METRIC)? > 0.0))?;
        ensure!(node.count(&lists("pods"))? == 0.0, "the agent listed again");
        Ok(())
    })?;
    let waited = thread::scope(|scope| -> anyhow::Result<Duration> {
        let adding = {
            let late = late.clone();
            scope.spawn(move || runtime.add(&late).map(|result| (result, Instant::now())))
        };
        let mut found = Vec::new();
        report.fact("ADD late-0 waits for a VIF decision and reports this as a pod event", || {
            wait_until("the pod has an event", TIMEOUT, || {
                found = api.events()?;
                Ok(found.iter().any(|(reason, _)| reason == "CNIWaitingForVIF"))
            })?;
            ensure!(!adding.is_finished(), "ADD returned without a decision");
            Ok(())
        })?;
        for (reason, note) in found {
            println!("   {reason}: {note}");
        }
        report.fact("ADD late-0 returns once late-0 is annotated", || {
            api.annotate(late, ONE)?;
            let annotated = Instant::now();
            let (result, answered) = adding.join().map_err(|_| anyhow!("the runtime panicked"))??;
            late.attached(&result)?;
            Ok(answered.saturating_duration_since(annotated))
        })
    })?;
    println!(
        "   {:.1} ms from the API server's response to the annotation until the plugin's exit (no polling)",
        waited.as_secs_f64() * 1e3
    );
    Ok(())
}

fn outage(
    node: &mut Node,
    api: Api,
    runtime: &Runtime,
    [from, to, late, gone]: [&Pod; 4],
    job: &mut Pod,
    report: &mut Report,
) -> anyhow::Result<()> {
    report.chapter("API server outage, with an agent crash");
    report.fact("the API server is killed by SIGKILL", || api.kill(gone))?;
    super::crash(node, from, to, report)?;
    report.fact(
        "the agent restarts without the API server, recovers its attachments and is ready",
        || {
            node.start_agent_with(&FLAGS)?;
            ensure!(node.attachments()?.len() == 5, "{:#?}", node.attachments()?);
            wait_until("the agent is ready", TIMEOUT, || Ok(runtime.status()?.into_result().is_ok()))
        },
    )?;
    super::add(runtime, report, job, " succeeds, using the agent's checkpoint of the API state", false)?;
    report.fact("job-0 reaches db-0 by ping", || {
        let address = to.addresses.first().context("db-0 has no address")?;
        job.ping(&address.to_string()).map(drop)
    })?;
    report.fact("DEL late-0 succeeds during the outage", || runtime.del(late))?;
    report.output("ferrulectl status", &node.ctl(&["status"])?);
    Ok(())
}

fn recover(node: &mut Node, runtime: &Runtime, gone: &Pod, report: &mut Report) -> anyhow::Result<Pod> {
    report.chapter("The API server returns with a compacted history; gone-0 was deleted meanwhile");
    let api = report.fact("a new API server process serves", Api::start)?;
    report.fact("the agent's position is expired (410): it relists and finds gone-0 deleted", || {
        wait_until("the agent has relisted", Duration::from_secs(20), || {
            Ok(node.metric(&lists("pods"))? > 0.0
                && node.metric(&lists("nodes"))? > 0.0
                && node.metric(PODS_METRIC)? == 5.0)
        })
    })?;
    let log = node.log();
    let lines = log.lines().filter(|line| line.contains("watch=\"pods\""));
    let lines: Vec<&str> = lines.skip_while(|line| !line.contains("expired")).collect();
    report.output("the agent's log of the relist", &lines.join("\n"));
    let refused =
        report.fact("ADD gone-0 fails: the pod is deleted", || runtime.call("ADD", gone)?.into_error())?;
    println!("   {refused}");
    let mut new = node.pod("web-1")?;
    api.create(&mut new, None)?;
    super::add(runtime, report, &mut new, " succeeds: the watch has resumed", false)?;
    Ok(new)
}

/// The metric that counts a source's lists.
fn lists(source: &str) -> String {
    format!(r#"ferrule_watch_lists_total{{source="{source}"}}"#)
}
