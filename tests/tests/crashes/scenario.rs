//! What happens on a node when the agent dies, and what the runtime does about it afterwards.

use std::{fs, os::unix::fs::DirBuilderExt as _, time::Duration};

use anyhow::{Context as _, ensure};
use ferrule_tests::{node::PINS, pod::Pod, sys};
use serde_json::json;

use crate::{
    orders::{self, ABI, AGENT, DIRECTORY, Place, VARIABLE},
    world::World,
};

/// A way of the agent.
pub struct Scenario {
    pub name: &'static str,
    /// Of the agent.
    pub flags: &'static [&'static str],
    pub has_bystanders: bool,
    /// Whether it follows an API server, which decides nothing by itself.
    pub has_cluster: bool,
    /// At which of the steps it is to die that it comes by.
    pub counts: fn(&str) -> bool,
    /// Makes what it takes. An agent runs before.
    pub prepare: fn(&mut World<'_>) -> anyhow::Result<()>,
    /// What the agent does, and whether it is to die of it.
    pub act: fn(&mut World<'_>, bool) -> anyhow::Result<()>,
    /// What the runtime does before another agent runs.
    pub meanwhile: Again,
    /// What it does when one runs. Nothing of it is attached in the end.
    pub retry: Again,
}

/// Runtimes differ; so what they do depends on how many deaths there were before.
type Again = fn(&mut World<'_>, usize) -> anyhow::Result<()>;

/// The scenarios, the longest first.
pub const SCENARIOS: &[Scenario] = &[
    Scenario { name: "start", prepare: half_done_world, act: start, retry: all_three_again, ..PLAIN },
    Scenario { name: "start-after-up", prepare: nearly_added, act: start, retry: add_again, ..PLAIN },
    Scenario { name: "add", prepare: new_pod, act: add, meanwhile: sometimes_del, retry: add_again, ..PLAIN },
    Scenario {
        name: "add-anew",
        prepare: damaged_pod,
        act: add,
        meanwhile: sometimes_del,
        retry: add_again,
        ..PLAIN
    },
    Scenario {
        name: "add-two",
        has_cluster: true,
        prepare: new_pod_of_two,
        act: add,
        meanwhile: sometimes_del,
        retry: add_again,
        ..PLAIN
    },
    Scenario {
        name: "add-fails",
        prepare: stubborn_pod,
        act: add,
        meanwhile: relent,
        retry: add_again,
        ..PLAIN
    },
    Scenario { name: "upgrade", prepare: another_abi, act: start, ..PLAIN },
    Scenario { name: "capacity", prepare: other_capacities, act: start, ..PLAIN },
    Scenario { name: "lost-store", prepare: lost_store, act: start, ..PLAIN },
    Scenario { name: "damaged-store", prepare: damaged_store, act: start, ..PLAIN },
    Scenario { name: "lost-maps", prepare: lost_maps, act: start, ..PLAIN },
    Scenario {
        name: "first-start",
        prepare: bare_node,
        act: start,
        retry: one_pod,
        has_bystanders: false,
        ..PLAIN
    },
    Scenario { name: "del", prepare: old_pod, act: del, meanwhile: sometimes_del, retry: del_again, ..PLAIN },
    Scenario { name: "gc", prepare: two_pods, act: gc, retry: gc_again, ..PLAIN },
    Scenario { name: "stop", prepare: dead_link, act: stop, ..PLAIN },
    Scenario {
        name: "dangling",
        flags: &["--reconcile-period", "1"],
        // What follows is as in a DEL, and each time takes seconds.
        counts: |step| step.starts_with("reconcile."),
        prepare: old_pod,
        act: lose_netns,
        ..PLAIN
    },
];

/// One in which nothing happens, on a node as others have it.
pub const PLAIN: Scenario = Scenario {
    name: "",
    flags: &[],
    has_bystanders: true,
    has_cluster: false,
    counts: |_| true,
    prepare: |_| Ok(()),
    act: |_, _| Ok(()),
    meanwhile: |_, _| Ok(()),
    retry: |_, _| Ok(()),
};

const STATE: &str = "/run/ferrule";
/// CNI's "try again later".
const TRY_AGAIN: u64 = 11;
const SOON: Duration = Duration::from_secs(20);

// === ADD ===

fn new_pod(world: &mut World<'_>) -> anyhow::Result<()> {
    let pod = world.node.pod("new")?;
    world.pods.push(pod);
    Ok(())
}

/// One whose VIF has two interfaces.
fn new_pod_of_two(world: &mut World<'_>) -> anyhow::Result<()> {
    let vif = json!({ "interfaces": [
        { "name": "eth0", "addresses": ["10.244.31.1", "fd00:10:244::ffff:1"] },
        { "name": "eth1", "addresses": ["10.244.31.2"] },
    ]});
    let annotations = json!({ "vif.ferrule.dev/v1": vif.to_string() });
    let call = json!({ "io.kubernetes.cri.pod-annotations": annotations });
    world.runtime = world.runtime.clone().with("runtimeConfig", call);
    new_pod(world)
}

/// One whose entry in a map is gone, so that a repeated ADD makes it anew.
fn damaged_pod(world: &mut World<'_>) -> anyhow::Result<()> {
    let pod = world.attach("damaged")?;
    let attachments = world.node.attachments()?;
    let is_it = |it: &&serde_json::Value| it.get("container_id") == Some(&pod.container_id.as_str().into());
    let ifindex = attachments.iter().find(is_it).and_then(|it| it.get("host_ifindex")?.as_u64());
    let key = u32::try_from(ifindex.context("no interface")?)?.to_ne_bytes().map(|byte| byte.to_string());
    sys::run(&format!("bpftool map delete pinned {PINS}/VIFS key {}", key.join(" ")))?;
    world.pods.push(pod);
    Ok(())
}

/// One that has a default route already: an ADD finds it when the pair is made, and undoes it.
fn stubborn_pod(world: &mut World<'_>) -> anyhow::Result<()> {
    let pod = world.node.pod("stubborn")?;
    pod.run("ip link set lo up")?;
    pod.run("ip route add default dev lo")?;
    world.pods.push(pod);
    Ok(())
}

fn relent(world: &mut World<'_>, _: usize) -> anyhow::Result<()> {
    the_pod(world)?.run("ip route del default dev lo").map(drop)
}

fn add(world: &mut World<'_>, dies: bool) -> anyhow::Result<()> {
    let pod = the_pod(world)?;
    let answer = world.runtime.call("ADD", &pod)?;
    world.unsure.insert(pod.container_id.clone());
    if !answer.status.success() && dies {
        let error = answer.into_error()?;
        let expected = pod.name == "stubborn" || error.code == TRY_AGAIN;
        ensure!(expected, "an ADD whose agent dies is answered by {error}");
    }
    Ok(())
}

/// Some runtimes give a sandbox up at once.
fn sometimes_del(world: &mut World<'_>, number: usize) -> anyhow::Result<()> {
    if number % 3 != 2 {
        return Ok(());
    }
    let pod = the_pod(world)?;
    world.del(&pod)
}

/// The kubelet tries again with another sandbox, others with the same container.
fn add_again(world: &mut World<'_>, number: usize) -> anyhow::Result<()> {
    let mut pod = world.pods.pop().context("no pod")?;
    // If nobody has died, nobody has removed it.
    let _ = pod.run("ip route del default dev lo");
    if number % 3 == 1 {
        world.del(&pod)?;
        pod = world.next_sandbox(pod)?;
    }
    world.add(&mut pod)?;
    world.check()?;
    world.del(&pod)?;
    world.pods.push(pod);
    Ok(())
}

// === DEL and GC ===

fn old_pod(world: &mut World<'_>) -> anyhow::Result<()> {
    let pod = world.attach("old")?;
    world.pods.push(pod);
    Ok(())
}

/// It succeeds whatever happens to the agent.
fn del(world: &mut World<'_>, _: bool) -> anyhow::Result<()> {
    let pod = the_pod(world)?;
    world.del(&pod)
}

fn del_again(world: &mut World<'_>, number: usize) -> anyhow::Result<()> {
    let mut pod = world.pods.pop().context("no pod")?;
    if number % 2 == 1 {
        world.del(&pod)?;
        pod = world.next_sandbox(pod)?;
        world.add(&mut pod)?;
    }
    world.del(&pod)?;
    world.pods.push(pod);
    Ok(())
}

fn two_pods(world: &mut World<'_>) -> anyhow::Result<()> {
    for name in ["forgotten", "lost"] {
        let pod = world.attach(name)?;
        world.pods.push(pod);
    }
    Ok(())
}

fn gc(world: &mut World<'_>, dies: bool) -> anyhow::Result<()> {
    let pod = the_pod(world)?;
    let runtime = world.runtime.clone().with("cni.dev/valid-attachments", world.valid());
    let answer = runtime.call("GC", &pod)?;
    world.unsure.extend(world.pods.iter().map(|it| it.container_id.clone()));
    if dies { Ok(()) } else { answer.into_result().map(drop) }
}

fn gc_again(world: &mut World<'_>, number: usize) -> anyhow::Result<()> {
    if number.is_multiple_of(2) {
        gc(world, false)?;
        world.find_out()?;
        ensure!(world.pods.iter().all(|it| !world.attached.contains(&it.container_id)), "a GC leaves them");
    }
    world.pods.clone().iter().try_for_each(|pod| world.del(pod))
}

fn lose_netns(world: &mut World<'_>, dies: bool) -> anyhow::Result<()> {
    let pod = world.pods.pop().context("no pod")?;
    world.unsure.insert(pod.container_id.clone());
    pod.remove()?;
    if dies {
        return Ok(());
    }
    sys::wait_until("it is collected", SOON, || {
        world.find_out()?;
        Ok(world.unsure.iter().all(|it| !world.attached.contains(it)))
    })
}

// === start and stop ===

/// A pod whose ADD has made everything, and is not durable: the runtime was told that it failed.
fn nearly_added(world: &mut World<'_>) -> anyhow::Result<()> {
    new_pod(world)?;
    orders::give(Some(&"add.up:1".parse::<Place>()?))?;
    ensure!(!world.runtime.call("ADD", &the_pod(world)?)?.status.success(), "the agent should have died");
    world.node.wait_for_crash(SOON)?;
    orders::give(None)
}

/// Of everything that a start has to see to, one.
fn half_done_world(world: &mut World<'_>) -> anyhow::Result<()> {
    for name in ["noted", "cut", "half"] {
        let pod = if name == "half" { world.node.pod(name)? } else { world.attach(name)? };
        world.pods.push(pod);
    }
    let [noted, cut, half] =
        <[Pod; 3]>::try_from(world.pods.clone()).map_err(|_| anyhow::anyhow!("not three"))?;
    let cut_link = world.node.host_ifname(&cut)?;
    orders::give(Some(&"add.reserved:1".parse::<Place>()?))?;
    ensure!(!world.runtime.call("ADD", &half)?.status.success(), "the agent should have died");
    world.node.wait_for_crash(SOON)?;
    orders::give(None)?;
    world.del(&noted)?;
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

fn start(world: &mut World<'_>, dies: bool) -> anyhow::Result<()> {
    let started = world.node.start_again();
    // It may die when it serves already.
    if dies { Ok(()) } else { started }
}

fn all_three_again(world: &mut World<'_>, number: usize) -> anyhow::Result<()> {
    let mut half = world.pods.pop().context("no pod")?;
    if number.is_multiple_of(2) {
        world.add(&mut half)?;
    }
    world.pods.push(half);
    world.pods.clone().iter().try_for_each(|pod| world.del(pod))
}

/// An agent that has maps of another version has run last.
fn another_abi(world: &mut World<'_>) -> anyhow::Result<()> {
    world.node.stop_agent()?;
    world.node.use_agent(AGENT, &[(VARIABLE, DIRECTORY), (ABI, "7")]);
    world.node.start_again()?;
    world.node.stop_agent()?;
    world.node.use_agent(AGENT, &[(VARIABLE, DIRECTORY)]);
    Ok(())
}

/// The last agent had other map capacities.
fn other_capacities(world: &mut World<'_>) -> anyhow::Result<()> {
    world.node.stop_agent()?;
    world.node.use_agent(AGENT, &[(VARIABLE, DIRECTORY), ("FERRULE_MAX_VIFS", "100")]);
    world.node.start_again()?;
    world.node.stop_agent()?;
    world.node.use_agent(AGENT, &[(VARIABLE, DIRECTORY)]);
    Ok(())
}

/// The filters hold the old ones, and the new ones are empty.
fn lost_maps(world: &mut World<'_>) -> anyhow::Result<()> {
    world.node.stop_agent()?;
    Ok(fs::remove_dir_all("/sys/fs/bpf/ferrule")?)
}

fn lost_store(world: &mut World<'_>) -> anyhow::Result<()> {
    world.node.kill_agent()?;
    Ok(fs::remove_file(format!("{STATE}/registry.redb"))?)
}

/// As a power cut can leave it, where the store is on a disk. It is not the first time.
fn damaged_store(world: &mut World<'_>) -> anyhow::Result<()> {
    world.node.stop_agent()?;
    for number in 1..=3 {
        fs::write(format!("{STATE}/registry.redb.corrupt-{number}"), "")?;
    }
    Ok(fs::write(format!("{STATE}/registry.redb"), "no database ".repeat(1000))?)
}

/// As if there never had been an agent.
fn bare_node(world: &mut World<'_>) -> anyhow::Result<()> {
    world.node.stop_agent()?;
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

fn one_pod(world: &mut World<'_>, _: usize) -> anyhow::Result<()> {
    let pod = world.attach("first")?;
    world.del(&pod)?;
    pod.remove()
}

fn dead_link(world: &mut World<'_>) -> anyhow::Result<()> {
    old_pod(world)?;
    let pod = the_pod(world)?;
    world.del(&pod)
}

fn stop(world: &mut World<'_>, dies: bool) -> anyhow::Result<()> {
    let stopped = world.node.stop_agent();
    if dies { Ok(()) } else { stopped }
}

fn the_pod(world: &World<'_>) -> anyhow::Result<Pod> {
    world.pods.last().cloned().context("no pod")
}
