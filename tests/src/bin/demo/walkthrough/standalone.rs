//! A node without Kubernetes: the agent's own IPAM allocates addresses.

use anyhow::ensure;
use ferrule_tests::{
    node::{Node, POD_V4, POD_V6},
    pod::Pod,
};

use crate::report::Report;

pub(crate) fn run(node: &mut Node, report: &mut Report) -> anyhow::Result<()> {
    super::introduce(report);
    println!("   # ferrule-agent --standalone --pod-cidr {POD_V4} --pod-cidr {POD_V6}");
    report.fact("the agent loads its eBPF programs and serves", || node.start_agent(&[POD_V4, POD_V6]))?;
    let runtime = node.runtime()?;
    let empty = node.kernel_state()?;

    report.chapter("Attach three pods, as a container runtime does");
    let mut add = |name: &str| -> anyhow::Result<Pod> {
        let mut pod = node.pod(name)?;
        super::add(&runtime, report, &mut pod, " succeeds", name == "web-0")?;
        Ok(pod)
    };
    let pods = [add("web-0")?, add("web-1")?, add("db-0")?];
    let [web, other, db] = &pods;
    super::connect(&pods, report)?;
    super::to_world(web, report)?;
    report.chapter("Operator tools");
    super::operator_tools(node, &[web, other, db], report)?;
    super::anti_spoofing(node, web, db, report)?;
    super::crash(node, other, db, report)?;
    report.fact("the agent restarts and recovers its attachments", || {
        node.start_again()?;
        ensure!(node.attachments()?.len() == pods.len());
        Ok(())
    })?;
    super::end(node, &runtime, pods, &empty, report)
}
