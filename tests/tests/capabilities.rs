//! Agents that have only the capabilities of the systemd unit, and only those of the chart.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, chown},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    chain::Chain,
    dist,
    fabric::{Member, on_fabric},
    node::{NODE_V4, NODE_V6, Node, POD_V4, POD_V6, on_node},
    pod::Pod,
    sys,
};
use serde_json::json;

const UNIT: &str = include_str!("../../deploy/systemd/ferrule-agent.service");
const CHART: &str = include_str!("../../deploy/kustomize/base/ferrule.yaml");
const UNINSTALL: &str = include_str!("../../deploy/kustomize/uninstall/agent.yaml");

/// What starts the agent instead of the binary itself.
const RESTRICTED: &str = "/run/restricted-agent";
const INSTALL: [&str; 4] = ["--cni-bin-dir", "/run/cni/bin", "--cni-conf-dir", "/run/cni/net.d"];
/// A user who owns the directory of plugins.
const PACKER: u32 = 1001;
const TIMEOUT: Duration = Duration::from_secs(20);

/// The capabilities that the unit leaves to the agent, without their prefix.
fn of_unit() -> Vec<&'static str> {
    let sets = UNIT.lines().filter_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    sets.flat_map(str::split_whitespace).filter_map(|it| it.strip_prefix("CAP_")).collect()
}

/// The capabilities of the first container of a manifest that drops all others.
fn of_manifest(manifest: &'static str) -> Vec<&'static str> {
    let lines = manifest.lines().map(str::trim).skip_while(|line| *line != r#"drop: ["ALL"]"#).skip(1);
    let listed = lines.skip_while(|line| *line != "add:").skip(1);
    let listed = listed.take_while(|line| line.starts_with('#') || line.starts_with("- "));
    listed.filter_map(|line| line.strip_prefix("- ")).collect()
}

/// Writes [`RESTRICTED`] on the calling thread's node.
fn restrict(capabilities: &[&str], no_new_privileges: bool) -> anyhow::Result<()> {
    ensure!(!capabilities.is_empty(), "cannot find the capabilities");
    let added: Vec<_> = capabilities.iter().map(|it| format!("+{}", it.to_lowercase())).collect();
    let script = format!(
        "#!/bin/sh\nexec setpriv {} --inh-caps -all --bounding-set -all,{} {} \"$@\"\n",
        if no_new_privileges { "--no-new-privs" } else { "" },
        added.join(","),
        dist::binary("ferrule-agent")?.display(),
    );
    fs::write(RESTRICTED, script)?;
    Ok(fs::set_permissions(RESTRICTED, fs::Permissions::from_mode(0o755))?)
}

/// Whether the running agent has these capabilities, and no other could come back.
fn ensure_restricted(node: &Node, capabilities: usize) -> anyhow::Result<()> {
    let status = fs::read_to_string(format!("/proc/{}/status", node.agent_pid().context("no agent")?))?;
    for set in ["CapPrm:", "CapEff:", "CapBnd:"] {
        let value = status.lines().find_map(|line| line.strip_prefix(set)).context("no capabilities")?;
        let has = u64::from_str_radix(value.trim(), 16)?.count_ones() as usize;
        ensure!(has == capabilities, "{set} {has} instead of {capabilities} capabilities");
    }
    Ok(())
}

/// A container with what the agent does for pods only on request: ports of the node, and a limit.
fn chain() -> Chain {
    let plugin = json!({ "type": "ferrule", "capabilities": { "portMappings": true, "bandwidth": true } });
    let mapping = json!([{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }]);
    let limit = json!({ "ingressRate": 1_000_000_000, "egressRate": 1_000_000_000 });
    Chain::new("1.0.0", [plugin]).with("portMappings", mapping).with("bandwidth", limit)
}

/// Waits until no component is unhealthy, and requires that the kernel has refused nothing.
fn ensure_healthy(node: &Node) -> anyhow::Result<()> {
    sys::wait_until("all components are healthy", TIMEOUT, || {
        let status = node.ctl(&["status"])?;
        ensure!(!status.contains("unhealthy"), "{status}");
        Ok(true)
    })?;
    let log = node.log();
    let refused = log.lines().find(|line| {
        ["Operation not permitted", "Permission denied"].iter().any(|refusal| line.contains(refusal))
    });
    ensure!(refused.is_none(), "the kernel refuses something: {refused:?}");
    Ok(())
}

#[test]
fn an_agent_with_the_capabilities_of_the_systemd_unit_serves_containers() {
    on_node(|node| {
        let capabilities = of_unit();
        restrict(&capabilities, UNIT.contains("\nNoNewPrivileges=yes\n"))?;
        node.use_agent(RESTRICTED, &[]);
        node.start_agent(&[POD_V4, POD_V6])?;
        ensure_restricted(node, capabilities.len())?;
        let empty = node.kernel_state()?;
        let other = node.attach("other")?;
        // As `ctr` names a namespace.
        let mut pod = node.pod("pod")?;
        let mut process = sys::die_with_parent(pod.command("sleep")?.arg("1000")).spawn()?;
        let named = Pod { netns: PathBuf::from(format!("/proc/{}/ns/net", process.id())), ..pod.clone() };
        let mut chain = chain();
        pod.attached(&chain.add(&named)?)?;
        for round in ["started", "restarted"] {
            for to in
                other.addresses.iter().map(ToString::to_string).chain([NODE_V4, NODE_V6].map(Into::into))
            {
                pod.ping(&to).with_context(|| format!("{round} agent"))?;
            }
            chain.check(&named)?;
            ensure_healthy(node)?;
            if round == "started" {
                node.kill_agent()?;
                node.start_again()?;
            }
        }
        chain.del(&named)?;
        node.runtime()?.del(&other)?;
        process.kill()?;
        process.wait()?;
        node.wait_for_kernel_state(&empty)?;
        ensure_healthy(node)?;
        node.stop_agent()
    })
    .unwrap();
}

#[test]
fn agents_with_the_capabilities_of_the_chart_connect_nodes_and_clean_them() {
    on_fabric(|fabric| {
        let capabilities = of_manifest(CHART);
        ensure!(of_manifest(UNINSTALL) == capabilities, "those of the agents that clean nodes");
        for node in &fabric.nodes {
            node.register()?;
            node.on(|node| {
                fs::create_dir_all("/run/cni/bin")?;
                chown("/run/cni/bin", Some(PACKER), Some(PACKER))?;
                restrict(&capabilities, false)?;
                node.use_agent(RESTRICTED, &[]);
                Ok(())
            })?;
            node.begin_agent(&INSTALL)?;
        }
        fabric.nodes.iter().try_for_each(Member::wait_until_ready)?;
        let [one, two, three] = &fabric.nodes;
        let (near, far) = (two.attach("near")?, three.attach("far")?);
        let (mut pod, mut chain) = (one.pod("pod", &[])?, chain());
        pod.attached(&one.on(|_| chain.add(&pod))?)?;
        for to in near.addresses.iter().chain(&far.addresses) {
            sys::wait_until("the pod reaches those of other nodes", TIMEOUT, || {
                pod.run(&format!("ping -n -c 1 -W 1 {to}")).map(|_| true)
            })?;
        }
        one.on(|node| {
            ensure_restricted(node, capabilities.len())?;
            chain.check(&pod)?;
            node.kill_agent()?;
            node.start_again()?;
            ensure_healthy(node)
        })?;
        for to in near.addresses.iter().chain(&far.addresses) {
            pod.ping(&to.to_string())?;
        }
        one.on(|node| {
            chain.del(&pod)?;
            let plugin = Path::new("/run/cni/bin/ferrule");
            ensure!(plugin.exists() && Path::new("/run/cni/net.d/05-ferrule.conflist").exists());
            ensure_healthy(node)?;
            node.stop_agent()?;
            sys::output(Command::new(RESTRICTED).args(INSTALL).arg("uninstall"))?;
            ensure!(!plugin.exists() && !Path::new("/sys/fs/bpf/ferrule").exists());
            Ok(())
        })
    })
    .unwrap();
}
