//! A node without Kubernetes: the agent's own IPAM allocates addresses.

use anyhow::ensure;
use ferrule_tests::{
    node::{Node, POD_V4, POD_V6},
    pod::Pod,
};

use crate::show::Show;

pub(crate) fn tell(node: &mut Node, show: &mut Show) -> anyhow::Result<()> {
    super::introduce(show);
    println!("   # ferrule-agent --standalone --pod-cidr {POD_V4} --pod-cidr {POD_V6}");
    show.fact("the agent loads its eBPF programs and serves", || node.start_agent(&[POD_V4, POD_V6]))?;
    let runtime = node.runtime()?;
    let empty = node.kernel_state()?;

    show.chapter("Attach three pods, as a container runtime does");
    let mut add = |name: &str| -> anyhow::Result<Pod> {
        let mut pod = node.pod(name)?;
        super::add(&runtime, show, &mut pod, " succeeds", name == "web-0")?;
        Ok(pod)
    };
    let pods = [add("web-0")?, add("web-1")?, add("db-0")?];
    let [web, other, db] = &pods;
    super::connect(&pods, show)?;
    show.chapter("Operator tools");
    super::operate(node, &[web, other, db], show)?;
    super::guard(node, web, db, show)?;
    super::crash(node, other, db, show)?;
    show.fact("the agent restarts and recovers its attachments", || {
        node.start_again()?;
        ensure!(node.attachments()?.len() == pods.len());
        Ok(())
    })?;
    super::end(node, &runtime, pods, &empty, show)
}
