//! Scenarios: what the agent does when it crashes, and what the runtime does afterwards.

use std::{
    fs,
    os::unix::fs::{DirBuilderExt as _, symlink},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    node::{PINS, map_delete},
    others::TUNNEL,
    pod::Pod,
    sys,
};
use serde_json::json;

use crate::{
    crash_points::{self, ABI, AGENT, DIRECTORY, Place, VARIABLE},
    fixture::Fixture,
    policies,
};

/// An operation of the agent during which it crashes.
pub struct Scenario {
    pub name: &'static str,
    /// Flags of the agent.
    pub flags: &'static [&'static str],
    pub has_bystanders: bool,
    /// Whether the agent watches an API server (which makes no VIF decisions).
    pub has_cluster: bool,
    /// Whether other nodes may join that cluster.
    pub has_nodes: bool,
    /// Which of the passed steps are crash points of this scenario.
    pub is_crash_point: fn(&str) -> bool,
    /// Set-up, with a running agent.
    pub prepare: fn(&mut Fixture<'_>) -> anyhow::Result<()>,
    /// The operation; the flag says whether the agent will die during it.
    pub act: fn(&mut Fixture<'_>, bool) -> anyhow::Result<()>,
    /// What the runtime does before another agent starts.
    pub meanwhile: Hook,
    /// What the runtime does once another agent runs. Detaches all pods of the scenario in the end.
    pub retry: Hook,
}

/// The number of earlier deaths selects between behaviours of different runtimes.
type Hook = fn(&mut Fixture<'_>, usize) -> anyhow::Result<()>;

/// All scenarios, the longest first.
pub const SCENARIOS: &[Scenario] = &[
    Scenario { name: "start", prepare: inconsistent_state, act: start, retry: retry_all, ..DEFAULT },
    Scenario { name: "start-after-up", prepare: uncommitted_add, act: start, retry: add_again, ..DEFAULT },
    Scenario {
        name: "add",
        prepare: new_pod,
        act: add,
        meanwhile: sometimes_del,
        retry: add_again,
        ..DEFAULT
    },
    Scenario {
        name: "add-repair",
        prepare: damaged_pod,
        act: add,
        meanwhile: sometimes_del,
        retry: add_again,
        ..DEFAULT
    },
    Scenario {
        name: "add-two",
        has_cluster: true,
        prepare: new_pod_of_two,
        act: add,
        meanwhile: sometimes_del,
        retry: add_again,
        ..DEFAULT
    },
    Scenario {
        name: "add-fails",
        prepare: pod_with_default_route,
        act: add,
        meanwhile: remove_conflicting_route,
        retry: add_again,
        ..DEFAULT
    },
    Scenario { name: "upgrade", prepare: other_abi_version, act: start, ..DEFAULT },
    Scenario { name: "capacity", prepare: other_capacities, act: start, ..DEFAULT },
    Scenario { name: "lost-store", prepare: lost_store, act: start, ..DEFAULT },
    Scenario { name: "damaged-store", prepare: damaged_store, act: start, ..DEFAULT },
    Scenario {
        name: "removed-store",
        // The other steps are those of the ADD scenario.
        is_crash_point: |step| step.starts_with("store."),
        prepare: new_pod,
        act: add_without_store,
        meanwhile: sometimes_del,
        retry: add_again,
        ..DEFAULT
    },
    Scenario { name: "lost-maps", prepare: lost_maps, act: start, ..DEFAULT },
    Scenario {
        name: "other-programs",
        // The other steps are those of a start.
        is_crash_point: |step| step.starts_with("kernel.program") || step == "start.filter_replaced",
        prepare: programs_of_another_build,
        act: start,
        ..DEFAULT
    },
    Scenario {
        name: "first-start",
        prepare: unconfigured_node,
        act: start,
        retry: one_pod,
        has_bystanders: false,
        ..DEFAULT
    },
    Scenario {
        name: "del",
        prepare: attached_pod,
        act: del,
        meanwhile: sometimes_del,
        retry: del_again,
        ..DEFAULT
    },
    Scenario { name: "nodes-join", act: join, retry: leave_again, ..WITH_NODES },
    Scenario { name: "nodes-leave", prepare: joined, act: leave, retry: leave_again, ..WITH_NODES },
    Scenario { name: "nodes-start", prepare: damaged_nodes, act: start, retry: leave_again, ..WITH_NODES },
    Scenario {
        name: "add-port",
        is_crash_point: |step| step.starts_with("add."),
        prepare: new_pod_with_port,
        act: add,
        meanwhile: sometimes_del,
        retry: publish_again,
        ..DEFAULT
    },
    Scenario {
        name: "del-port",
        is_crash_point: |step| step.starts_with("del."),
        prepare: attached_pod_with_port,
        act: del,
        meanwhile: sometimes_del,
        retry: publish_again,
        ..DEFAULT
    },
    Scenario {
        name: "policy",
        has_cluster: true,
        is_crash_point: |step| step.starts_with("policy.") || step.starts_with("kernel.map_"),
        prepare: policies::begin,
        act: policies::change,
        meanwhile: |fixture, _| policies::denies(fixture),
        retry: |fixture, _| policies::recover(fixture),
        ..DEFAULT
    },
    Scenario {
        name: "policy-start",
        has_cluster: true,
        // A crash between two switches closes a pod for a moment.
        is_crash_point: |step| step.starts_with("policy."),
        prepare: policies::begin_and_stop,
        act: policies::start,
        meanwhile: |fixture, _| policies::denies(fixture),
        retry: |fixture, _| policies::recover(fixture),
        ..DEFAULT
    },
    Scenario { name: "gc", prepare: two_pods, act: gc, retry: gc_again, ..DEFAULT },
    Scenario { name: "stop", prepare: retired_link, act: stop, ..DEFAULT },
    Scenario {
        name: "orphan",
        flags: &["--reconcile-period", "1"],
        // The rest is covered by the DEL scenario, and each death here takes seconds.
        is_crash_point: |step| step.starts_with("reconcile."),
        prepare: attached_pod,
        act: lose_netns,
        ..DEFAULT
    },
];

/// A default node on which nothing happens.
pub const DEFAULT: Scenario = Scenario {
    name: "",
    flags: &[],
    has_bystanders: true,
    has_cluster: false,
    has_nodes: false,
    is_crash_point: |_| true,
    prepare: |_| Ok(()),
    act: |_, _| Ok(()),
    meanwhile: |_, _| Ok(()),
    retry: |_, _| Ok(()),
};

/// In a cluster of several nodes. The other steps are those of the scenarios without.
const WITH_NODES: Scenario = Scenario {
    has_cluster: true,
    has_nodes: true,
    is_crash_point: |step| step.starts_with("kernel."),
    ..DEFAULT
};

const STATE: &str = "/run/ferrule";
const TRY_AGAIN: u64 = 11;
/// Of the node, and leads to a pod.
const PORT: u16 = 8080;
/// The link group of a tunnel device without an alias.
const MARK: u32 = 0x6665_7274;
const TIMEOUT: Duration = Duration::from_secs(20);

// === ADD ===

fn new_pod(fixture: &mut Fixture<'_>) -> anyhow::Result<()> {
    let pod = fixture.node.pod("new")?;
    fixture.pods.push(pod);
    Ok(())
}

/// A pod whose VIF has two interfaces.
fn new_pod_of_two(fixture: &mut Fixture<'_>) -> anyhow::Result<()> {
    let vif = json!({ "interfaces": [
        { "name": "eth0", "addresses": ["10.244.31.1", "fd00:10:244::ffff:1"] },
        { "name": "eth1", "addresses": ["10.244.31.2"] },
    ]});
    let annotations = json!({ "vif.ferrule.dev/v1": vif.to_string() });
    let call = json!({ "io.kubernetes.cri.pod-annotations": annotations });
    fixture.runtime = fixture.runtime.clone().with("runtimeConfig", call);
    new_pod(fixture)
}

/// A pod whose VIFS entry is missing, so that a repeated ADD recreates the interface.
fn damaged_pod(fixture: &mut Fixture<'_>) -> anyhow::Result<()> {
    let pod = fixture.attach("damaged")?;
    let attachments = fixture.node.attachments()?;
    let is_it = |it: &&serde_json::Value| it.get("container_id") == Some(&pod.container_id.as_str().into());
    let ifindex = attachments.iter().find(is_it).and_then(|it| it.get("host_ifindex")?.as_u64());
    let ifindex = u32::try_from(ifindex.context("no interface")?)?;
    sys::run(&map_delete("VIFS", &ifindex.to_ne_bytes()))?;
    fixture.pods.push(pod);
    Ok(())
}

/// A pod with a conflicting default route: ADD detects the conflict after creating the veth pair, and rolls
/// back.
fn pod_with_default_route(fixture: &mut Fixture<'_>) -> anyhow::Result<()> {
    let pod = fixture.node.pod("stubborn")?;
    pod.run("ip link set lo up")?;
    pod.run("ip route add default dev lo")?;
    fixture.pods.push(pod);
    Ok(())
}

fn remove_conflicting_route(fixture: &mut Fixture<'_>, _: usize) -> anyhow::Result<()> {
    the_pod(fixture)?.run("ip route del default dev lo").map(drop)
}

fn add(fixture: &mut Fixture<'_>, crashes: bool) -> anyhow::Result<()> {
    let pod = the_pod(fixture)?;
    let answer = fixture.runtime.call("ADD", &pod)?;
    fixture.unknown.insert(pod.container_id.clone());
    if !answer.status.success() && crashes {
        let error = answer.into_error()?;
        let expected = pod.name == "stubborn" || error.code == TRY_AGAIN;
        ensure!(expected, "unexpected error of ADD: {error}");
    }
    Ok(())
}

/// The agent writes all records again, and then that of the ADD.
fn add_without_store(fixture: &mut Fixture<'_>, crashes: bool) -> anyhow::Result<()> {
    fs::remove_dir_all(format!("{STATE}/attachments"))?;
    add(fixture, crashes)
}

/// Some runtimes delete a failed sandbox at once.
fn sometimes_del(fixture: &mut Fixture<'_>, number: usize) -> anyhow::Result<()> {
    if number % 3 != 2 {
        return Ok(());
    }
    let pod = the_pod(fixture)?;
    fixture.del(&pod)
}

/// The kubelet retries with another sandbox, other runtimes with the same container.
fn add_again(fixture: &mut Fixture<'_>, number: usize) -> anyhow::Result<()> {
    let mut pod = fixture.pods.pop().context("no pod")?;
    // The route is still there if no crash happened.
    let _ = pod.run("ip route del default dev lo");
    if number % 3 == 1 {
        fixture.del(&pod)?;
        pod = fixture.next_sandbox(pod)?;
    }
    fixture.add(&mut pod)?;
    fixture.check()?;
    fixture.del(&pod)?;
    fixture.pods.push(pod);
    Ok(())
}

// === Ports of the node ===

fn new_pod_with_port(fixture: &mut Fixture<'_>) -> anyhow::Result<()> {
    let call = json!({
        "io.kubernetes.cri.pod-annotations": {},
        "portMappings": [{ "hostPort": PORT, "containerPort": 80, "protocol": "tcp" }],
    });
    fixture.runtime = fixture.runtime.clone().with("runtimeConfig", call);
    new_pod(fixture)
}

fn attached_pod_with_port(fixture: &mut Fixture<'_>) -> anyhow::Result<()> {
    new_pod_with_port(fixture)?;
    let mut pod = the_pod(fixture)?;
    fixture.add(&mut pod)?;
    ensure_published(true)
}

/// The port leads to the pod for as long as the pod is attached, and a new sandbox can have the port.
fn publish_again(fixture: &mut Fixture<'_>, number: usize) -> anyhow::Result<()> {
    let mut pod = fixture.pods.pop().context("no pod")?;
    ensure_published(fixture.attached.contains(&pod.container_id)).context("after the start")?;
    if number % 2 == 1 {
        fixture.del(&pod)?;
        ensure_published(false).context("after a DEL")?;
        pod = fixture.next_sandbox(pod)?;
    }
    fixture.add(&mut pod)?;
    ensure_published(true).context("after an ADD")?;
    fixture.del(&pod)?;
    ensure_published(false).context("after the last DEL")?;
    fixture.pods.push(pod);
    Ok(())
}

/// No pod of the scenario has another port, so that there is no table without this one.
fn ensure_published(is_expected: bool) -> anyhow::Result<()> {
    let rules = sys::run("nft -nn list ruleset")?;
    let port = format!("6 . {PORT} : ");
    ensure!(rules.contains(&port) == is_expected, "port {PORT} published: {}: {rules}", !is_expected);
    ensure!(rules.contains("table inet ferrule-ports") == is_expected, "a table is left: {rules}");
    Ok(())
}

// === DEL and GC ===

fn attached_pod(fixture: &mut Fixture<'_>) -> anyhow::Result<()> {
    let pod = fixture.attach("old")?;
    fixture.pods.push(pod);
    Ok(())
}

/// DEL succeeds whether or not an agent runs.
fn del(fixture: &mut Fixture<'_>, _: bool) -> anyhow::Result<()> {
    let pod = the_pod(fixture)?;
    fixture.del(&pod)
}

fn del_again(fixture: &mut Fixture<'_>, number: usize) -> anyhow::Result<()> {
    let mut pod = fixture.pods.pop().context("no pod")?;
    if number % 2 == 1 {
        fixture.del(&pod)?;
        pod = fixture.next_sandbox(pod)?;
        fixture.add(&mut pod)?;
    }
    fixture.del(&pod)?;
    fixture.pods.push(pod);
    Ok(())
}

fn two_pods(fixture: &mut Fixture<'_>) -> anyhow::Result<()> {
    for name in ["forgotten", "lost"] {
        let pod = fixture.attach(name)?;
        fixture.pods.push(pod);
    }
    Ok(())
}

fn gc(fixture: &mut Fixture<'_>, crashes: bool) -> anyhow::Result<()> {
    let pod = the_pod(fixture)?;
    let runtime = fixture.runtime.clone().with("cni.dev/valid-attachments", fixture.valid());
    let answer = runtime.call("GC", &pod)?;
    fixture.unknown.extend(fixture.pods.iter().map(|it| it.container_id.clone()));
    if crashes { Ok(()) } else { answer.into_result().map(drop) }
}

fn gc_again(fixture: &mut Fixture<'_>, number: usize) -> anyhow::Result<()> {
    if number.is_multiple_of(2) {
        gc(fixture, false)?;
        fixture.resolve_unknown()?;
        ensure!(
            fixture.pods.iter().all(|it| !fixture.attached.contains(&it.container_id)),
            "GC left invalid attachments"
        );
    }
    fixture.pods.clone().iter().try_for_each(|pod| fixture.del(pod))
}

fn lose_netns(fixture: &mut Fixture<'_>, crashes: bool) -> anyhow::Result<()> {
    let pod = fixture.pods.pop().context("no pod")?;
    fixture.unknown.insert(pod.container_id.clone());
    pod.remove()?;
    if crashes {
        return Ok(());
    }
    sys::wait_until("the attachment is garbage-collected", TIMEOUT, || {
        fixture.resolve_unknown()?;
        Ok(fixture.unknown.iter().all(|it| !fixture.attached.contains(it)))
    })
}

// === other nodes ===

fn joined(fixture: &mut Fixture<'_>) -> anyhow::Result<()> {
    fixture.set_joined(true)?;
    fixture.wait_for_others()
}

fn join(fixture: &mut Fixture<'_>, crashes: bool) -> anyhow::Result<()> {
    fixture.set_joined(true)?;
    if crashes { Ok(()) } else { fixture.wait_for_others() }
}

fn leave(fixture: &mut Fixture<'_>, crashes: bool) -> anyhow::Result<()> {
    fixture.set_joined(false)?;
    if crashes { Ok(()) } else { fixture.wait_for_others() }
}

fn leave_again(fixture: &mut Fixture<'_>, _: usize) -> anyhow::Result<()> {
    fixture.set_joined(false)
}

/// Nothing is left of what the node had for others but for the map, and a device that is of no use.
fn damaged_nodes(fixture: &mut Fixture<'_>) -> anyhow::Result<()> {
    joined(fixture)?;
    fixture.node.kill_agent()?;
    for family in ["-4", "-6"] {
        for route in sys::run(&format!("ip {family} route show proto 70"))?.lines() {
            let to = route.split(' ').next().unwrap_or_default();
            if to.contains('/') && !route.contains("unreachable") {
                sys::run(&format!("ip {family} route del {to}"))?;
            }
        }
        while sys::run(&format!("ip {family} rule show"))?.contains("7070") {
            sys::run(&format!("ip {family} rule del table 7070"))?;
        }
    }
    sys::run(&format!("ip link del {TUNNEL}"))?;
    // As a crash between two requests leaves the device.
    sys::run(&format!("ip link add {TUNNEL} group {MARK} type vxlan external vnifilter dstport 4789"))
        .map(drop)
}

// === start and stop ===

/// A pod whose ADD failed before its commit, with everything created in kernel and maps.
fn uncommitted_add(fixture: &mut Fixture<'_>) -> anyhow::Result<()> {
    new_pod(fixture)?;
    crash_points::arm(Some(&"add.up:1".parse::<Place>()?))?;
    ensure!(!fixture.runtime.call("ADD", &the_pod(fixture)?)?.status.success(), "the agent did not die");
    fixture.node.wait_for_crash(TIMEOUT)?;
    crash_points::arm(None)
}

/// One of each kind of inconsistency that a start must repair.
fn inconsistent_state(fixture: &mut Fixture<'_>) -> anyhow::Result<()> {
    for name in ["noted", "cut", "half"] {
        let pod = if name == "half" { fixture.node.pod(name)? } else { fixture.attach(name)? };
        fixture.pods.push(pod);
    }
    let [noted, cut, half] =
        <[Pod; 3]>::try_from(fixture.pods.clone()).map_err(|_| anyhow::anyhow!("expected three pods"))?;
    let cut_link = fixture.node.host_ifname(&cut)?;
    crash_points::arm(Some(&"add.reserved:1".parse::<Place>()?))?;
    ensure!(!fixture.runtime.call("ADD", &half)?.status.success(), "the agent did not die");
    fixture.node.wait_for_crash(TIMEOUT)?;
    crash_points::arm(None)?;
    fixture.del(&noted)?;
    sys::run(&format!("ip link del {cut_link}"))?;
    for (name, group) in [("frstray", 0), ("frunborn", 0x6665_7273), ("frdead", 0x6665_7272)] {
        sys::run(&format!("ip link add {name} group {group} type veth peer name {name}1"))?;
    }
    sys::run("ip link set frstray alias ferrule:cluster:deadbeef:eth0")?;
    let (key, value) = ("0 ".repeat(16), "0 ".repeat(12));
    sys::run(&format!("bpftool map update pinned {PINS}/ENDPOINTS key {key} value {value}"))?;
    fs::write("/run/ferrule/agent.new", "")?;
    Ok(())
}

fn start(fixture: &mut Fixture<'_>, crashes: bool) -> anyhow::Result<()> {
    let started = fixture.node.start_again();
    // The agent may die after it has started to serve.
    if crashes { Ok(()) } else { started }
}

fn retry_all(fixture: &mut Fixture<'_>, number: usize) -> anyhow::Result<()> {
    let mut half = fixture.pods.pop().context("no pod")?;
    if number.is_multiple_of(2) {
        fixture.add(&mut half)?;
    }
    fixture.pods.push(half);
    fixture.pods.clone().iter().try_for_each(|pod| fixture.del(pod))
}

/// The previous agent used maps of another ABI version.
fn other_abi_version(fixture: &mut Fixture<'_>) -> anyhow::Result<()> {
    fixture.node.stop_agent()?;
    fixture.node.use_agent(AGENT, &[(VARIABLE, DIRECTORY), (ABI, "7")]);
    fixture.node.start_again()?;
    fixture.node.stop_agent()?;
    fixture.node.use_agent(AGENT, &[(VARIABLE, DIRECTORY)]);
    Ok(())
}

/// The previous agent had other map capacities.
fn other_capacities(fixture: &mut Fixture<'_>) -> anyhow::Result<()> {
    fixture.node.stop_agent()?;
    fixture.node.use_agent(AGENT, &[(VARIABLE, DIRECTORY), ("FERRULE_MAX_VIFS", "100")]);
    fixture.node.start_again()?;
    fixture.node.stop_agent()?;
    fixture.node.use_agent(AGENT, &[(VARIABLE, DIRECTORY)]);
    Ok(())
}

/// The filters still hold the old maps; the new maps are empty.
fn lost_maps(fixture: &mut Fixture<'_>) -> anyhow::Result<()> {
    fixture.node.stop_agent()?;
    Ok(fs::remove_dir_all("/sys/fs/bpf/ferrule")?)
}

/// The pinned programs, which the filters use, are not those of the agent.
fn programs_of_another_build(fixture: &mut Fixture<'_>) -> anyhow::Result<()> {
    fixture.node.stop_agent()?;
    let link = format!("{PINS}/programs");
    fs::remove_file(&link)?;
    Ok(symlink("another", link)?)
}

/// As after the last run of a build with a database.
fn lost_store(fixture: &mut Fixture<'_>) -> anyhow::Result<()> {
    fixture.node.kill_agent()?;
    fs::remove_dir_all(format!("{STATE}/attachments"))?;
    Ok(fs::write(format!("{STATE}/registry.redb"), "database")?)
}

/// Corrupt and unfinished files, beside as many quarantined ones as are kept.
fn damaged_store(fixture: &mut Fixture<'_>) -> anyhow::Result<()> {
    fixture.node.stop_agent()?;
    for entry in fs::read_dir(format!("{STATE}/attachments"))? {
        fs::write(entry?.path(), "no record")?;
    }
    for number in 1..=16 {
        fs::write(format!("{STATE}/attachments/corrupt-{number}"), "")?;
    }
    Ok(fs::write(format!("{STATE}/attachments/new-7"), "")?)
}

/// As on a node that never ran an agent.
fn unconfigured_node(fixture: &mut Fixture<'_>) -> anyhow::Result<()> {
    fixture.node.stop_agent()?;
    fs::remove_dir_all("/sys/fs/bpf/ferrule")?;
    fs::remove_dir_all("/run/ferrule")?;
    fs::DirBuilder::new().mode(0o755).create("/run/ferrule")?;
    for (setting, value) in
        [("ipv4/ip_forward", "0"), ("ipv6/conf/all/forwarding", "0"), ("ipv6/conf/uplink/accept_ra", "1")]
    {
        fs::write(format!("/proc/sys/net/{setting}"), value)
            .with_context(|| format!("cannot set {setting}"))?;
    }
    Ok(())
}

fn one_pod(fixture: &mut Fixture<'_>, _: usize) -> anyhow::Result<()> {
    let pod = fixture.attach("first")?;
    fixture.del(&pod)?;
    pod.remove()
}

fn retired_link(fixture: &mut Fixture<'_>) -> anyhow::Result<()> {
    attached_pod(fixture)?;
    let pod = the_pod(fixture)?;
    fixture.del(&pod)
}

fn stop(fixture: &mut Fixture<'_>, crashes: bool) -> anyhow::Result<()> {
    let stopped = fixture.node.stop_agent();
    if crashes { Ok(()) } else { stopped }
}

fn the_pod(fixture: &Fixture<'_>) -> anyhow::Result<Pod> {
    fixture.pods.last().cloned().context("no pod")
}
