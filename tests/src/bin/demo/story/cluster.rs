//! A node in a cluster: what the API server tells, and what becomes of the node while it tells nothing.

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

use crate::{api::Api, show::Show};

/// Where the agent finds the API server; and that it looks for one that is away each second, as nobody wants to watch it
/// wait for 30.
const FLAGS: [&str; 6] = ["--kubeconfig", KUBECONFIG, "--node-name", NODE, "--watch-max-backoff", "1"];
/// Waits for a controller's decision, whatever the pod.
const DECIDED: [&str; 2] = ["--vif-source", "annotation"];
const TWO: &str = r#"{"interfaces": [
     {"addresses": ["10.244.0.200", "fd00:10:244::200"], "mtu": 1400, "routes": [{"dst": "198.18.0.0/15"}]},
     {"name": "eth1", "addresses": ["10.244.0.201"]}]}"#;
const ONE: &str = r#"{"interfaces": [{"addresses": ["10.244.0.210"]}]}"#;
const KNOWN: &str = r#"ferrule_watch_objects{source="pods"}"#;
const RESUMES: &str = r#"ferrule_watch_resumes_total{source="pods"}"#;
const SOON: Duration = Duration::from_secs(10);

pub(crate) fn tell(node: &mut Node, show: &mut Show) -> anyhow::Result<()> {
    super::introduce(show);
    let runtime = node.runtime()?;
    let api = begin(node, &runtime, show)?;
    let empty = node.kernel_state()?;

    show.chapter("Three pods of the API server, plugged as a container runtime does it");
    let (mut web, mut vip, mut db) = (node.pod("web-0")?, node.pod("vip-0")?, node.pod("db-0")?);
    for pod in [&mut web, &mut db] {
        api.create(pod, None)?;
        super::add(&runtime, show, pod, ": addresses of the node's pod CIDRs", pod.name == "web-0")?;
    }
    api.create(&mut vip, Some(TWO))?;
    show.output("vip-0 is annotated: vif.ferrule.dev/v1", TWO);
    super::add(&runtime, show, &mut vip, ": two interfaces, as its annotation has them", false)?;
    show.fact("it has these addresses, the MTU and the route", || {
        let all = vip.run("ip -o addr")? + &vip.run("ip link show eth0")? + &vip.run("ip route")?;
        for one in ["10.244.0.200/32", "fd00:10:244::200/128", "10.244.0.201/32", "mtu 1400", "198.18.0.0/15"]
        {
            ensure!(all.contains(one), "no {one} in {all}");
        }
        Ok(())
    })?;
    let pods = [web, vip, db];
    super::connect(&pods, show)?;
    let [web, vip, db] = pods;

    let (mut late, mut job, mut gone) = (node.pod("late-0")?, node.pod("job-0")?, node.pod("gone-0")?);
    for pod in [&mut late, &mut job, &mut gone] {
        api.create(pod, None)?;
    }
    decide_late(node, &api, &runtime, &mut late, show)?;
    lose(node, api, &runtime, [&vip, &db, &late, &gone], &mut job, show)?;
    late.remove()?;
    let new = come_back(node, &runtime, &gone, show)?;
    gone.remove()?;

    show.chapter("What an operator sees");
    show.output("ferrulectl status", &node.ctl(&["status"])?);
    let (_, metrics) = node.http("/metrics")?;
    let of_watch: Vec<&str> = metrics.lines().filter(|line| line.starts_with("ferrule_watch_")).collect();
    show.output("curl -s http://127.0.0.1:9469/metrics | grep ^ferrule_watch_", &of_watch.join("\n"));
    super::operate(node, &[&web, &vip, &db], show)?;
    super::guard(node, &web, &db, show)?;
    super::end(node, &runtime, [web, vip, db, job, new], &empty, show)
}

fn begin(node: &mut Node, runtime: &Runtime, show: &mut Show) -> anyhow::Result<Api> {
    let api = show.fact("an API server listens, in a process of its own", Api::start)?;
    api.create_node()?;
    println!("   # ferrule-agent {}", FLAGS.join(" "));
    show.fact("the agent loads its programs and serves", || node.start_agent_with(&FLAGS))?;
    let error = show.fact("it is not ready, and STATUS says so: nobody gave the node pod CIDRs", || {
        let mut error = None;
        wait_until("the agent waits for them", SOON, || {
            let said = runtime.status()?.into_error()?;
            let is_it = said.to_string().contains("spec.podCIDRs yet");
            error = Some(said);
            Ok(is_it)
        })?;
        error.ok_or_else(|| anyhow!("STATUS was not asked"))
    })?;
    println!("   {error}");
    show.fact("a controller gives the node spec.podCIDRs, and the agent is ready", || {
        api.give_ranges(&[POD_V4, POD_V6])?;
        wait_until("the agent is ready", SOON, || Ok(runtime.status()?.into_result().is_ok()))
    })?;
    show.output("ferrulectl status", &node.ctl(&["status"])?);
    Ok(api)
}

fn decide_late(
    node: &mut Node,
    api: &Api,
    runtime: &Runtime,
    late: &mut Pod,
    show: &mut Show,
) -> anyhow::Result<()> {
    show.chapter("A decision that comes late");
    let flags = [&FLAGS[..], &DECIDED].concat();
    println!("   # ferrule-agent … {}", DECIDED.join(" "));
    show.fact("the agent starts again, to wait for a controller's decisions; it knows its pods", || {
        let before = node.attachments()?.len();
        node.stop_agent()?;
        node.start_agent_with(&flags)?;
        ensure!(node.attachments()?.len() == before);
        Ok(())
    })?;
    show.fact("its watch goes on where it was: nothing is listed again", || {
        wait_until("it watches", SOON, || Ok(node.metric(RESUMES)? > 0.0))?;
        ensure!(node.metric(&lists("pods"))? == 0.0, "it has listed");
        Ok(())
    })?;
    let waited = thread::scope(|scope| -> anyhow::Result<Duration> {
        let adding = {
            let late = late.clone();
            scope.spawn(move || runtime.add(&late).map(|result| (result, Instant::now())))
        };
        let mut said = Vec::new();
        show.fact(
            "the runtime asks for late-0: ADD waits for a decision, and the pod's events tell",
            || {
                wait_until("the pod's events tell", SOON, || {
                    said = api.events()?;
                    Ok(said.iter().any(|(reason, _)| reason == "CNIWaitingForVIF"))
                })?;
                ensure!(!adding.is_finished(), "it has been answered");
                Ok(())
            },
        )?;
        for (reason, note) in said {
            println!("   {reason}: {note}");
        }
        show.fact("late-0 is annotated, and its ADD answers", || {
            api.annotate(late, ONE)?;
            let annotated = Instant::now();
            let (result, answered) = adding.join().map_err(|_| anyhow!("the runtime panicked"))??;
            late.attached(&result)?;
            Ok(answered.saturating_duration_since(annotated))
        })
    })?;
    println!(
        "   {:.1} ms from the API server's answer to the annotation until the plugin had ended: nothing is polled",
        waited.as_secs_f64() * 1e3
    );
    Ok(())
}

fn lose(
    node: &mut Node,
    api: Api,
    runtime: &Runtime,
    [from, to, late, gone]: [&Pod; 4],
    job: &mut Pod,
    show: &mut Show,
) -> anyhow::Result<()> {
    show.chapter("The API server is killed, and then the agent");
    show.fact("the API server is killed (SIGKILL)", || api.kill(gone))?;
    super::crash(node, from, to, show)?;
    show.fact("it starts again without an API server, knows its pods, and is ready", || {
        node.start_agent_with(&FLAGS)?;
        ensure!(node.attachments()?.len() == 5, "{:#?}", node.attachments()?);
        wait_until("the agent is ready", SOON, || Ok(runtime.status()?.into_result().is_ok()))
    })?;
    super::add(runtime, show, job, ", of which only the agent's own copy tells", false)?;
    show.fact("job-0 pings db-0", || {
        let address = to.addresses.first().context("db-0 has no address")?;
        job.ping(&address.to_string()).map(drop)
    })?;
    show.fact("DEL late-0", || runtime.del(late))?;
    show.output("ferrulectl status", &node.ctl(&["status"])?);
    Ok(())
}

fn come_back(node: &mut Node, runtime: &Runtime, gone: &Pod, show: &mut Show) -> anyhow::Result<Pod> {
    show.chapter("The API server comes back, without its history, and gone-0 was deleted meanwhile");
    let api = show.fact("the API server listens, in another process", Api::start)?;
    show.fact("the agent's position has expired: it lists, and notices that gone-0 is no more", || {
        wait_until("it has listed", Duration::from_secs(20), || {
            Ok(node.metric(&lists("pods"))? > 0.0
                && node.metric(&lists("node"))? > 0.0
                && node.metric(KNOWN)? == 5.0)
        })
    })?;
    let log = node.log();
    let lines = log.lines().filter(|line| line.contains("source=\"pods\""));
    let lines: Vec<&str> = lines.skip_while(|line| !line.contains("expired")).collect();
    show.output("the agent's log of it", &lines.join("\n"));
    let refused = show.fact("ADD gone-0 is refused", || runtime.call("ADD", gone)?.into_error())?;
    println!("   {refused}");
    let mut new = node.pod("web-1")?;
    api.create(&mut new, None)?;
    super::add(runtime, show, &mut new, ": the watch goes on", false)?;
    Ok(new)
}

/// The metric that counts a source's lists.
fn lists(source: &str) -> String {
    format!(r#"ferrule_watch_lists_total{{source="{source}"}}"#)
}
