//! The stories that the demo tells, on a node, and the chapters that they share.

pub(crate) mod cluster;
pub(crate) mod standalone;

use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    node::{NODE_V4, NODE_V6, Node, PINS, SOCKET},
    pod::Pod,
    runtime::Runtime,
    sys, traffic,
};
use serde_json::Value;

use crate::show::Show;

const STREAM: u64 = 512 << 20;
/// Documentation's own (RFC 5737), so nobody's.
const FOREIGN: &str = "198.51.100.66";

fn introduce(show: &Show) {
    show.chapter("A node, and its agent");
    println!(
        "   The node is a network namespace and a mount namespace: it has its own /run and its own BPF file system."
    );
}

/// Attaches a pod. `aloud`: the call and its answer are printed.
fn add(runtime: &Runtime, show: &mut Show, pod: &mut Pod, what: &str, aloud: bool) -> anyhow::Result<()> {
    if aloud {
        println!(
            "   # CNI_COMMAND=ADD CNI_CONTAINERID={:.12}… CNI_NETNS={} CNI_IFNAME=eth0 \\",
            pod.container_id,
            pod.netns.display()
        );
        println!("     ferrule <<< '{}'", runtime.config());
    }
    let result = show.fact(&format!("ADD {}{what}", pod.name), || runtime.add(pod))?;
    pod.attached(&result)?;
    if aloud {
        show.output("its answer", &serde_json::to_string(&result)?);
    }
    Ok(())
}

fn connect(pods: &[Pod], show: &mut Show) -> anyhow::Result<()> {
    show.chapter("Their packets");
    for from in pods {
        for to in pods.iter().filter(|to| to.name != from.name) {
            let both = [from, to].iter().all(|pod| pod.addresses.iter().any(|it| it.is_ipv6()));
            let what = if both { "IPv4 and IPv6" } else { "IPv4" };
            show.fact(&format!("{} pings {} over {what}", from.name, to.name), || {
                // The first address of each family is eth0's.
                let v4 = to.addresses.iter().find(|it| it.is_ipv4());
                let v6 = to.addresses.iter().find(|it| it.is_ipv6() && both);
                v4.into_iter().chain(v6).try_for_each(|address| from.ping(&address.to_string()).map(drop))
            })?;
        }
    }
    let (Some(web), Some(db)) = (pods.first(), pods.get(2)) else { anyhow::bail!("there are too few pods") };
    show.fact(&format!("{} pings the node over IPv4 and IPv6", web.name), || {
        [NODE_V4, NODE_V6].iter().try_for_each(|address| web.ping(address).map(drop))
    })?;
    for address in &db.addresses {
        let what = format!("{} streams {} MiB by TCP to {}, {address}", web.name, STREAM >> 20, db.name);
        let streamed = show.fact(&what, || traffic::stream(web.path(), db.path(), *address, STREAM))?;
        println!("   {:.1} Gbit/s, every byte checked", streamed.gbit_per_second());
    }
    let home = PathBuf::from("/proc/thread-self/ns/net");
    for address in [NODE_V4, NODE_V6] {
        let what = format!("{} streams {} MiB by TCP to the node, {address}", web.name, STREAM >> 22);
        show.fact(&what, || traffic::stream(web.path(), &home, address.parse()?, STREAM >> 2))?;
    }
    Ok(())
}

/// What `ferrulectl attachments` and bpftool show.
fn operate(node: &Node, pods: &[&Pod], show: &mut Show) -> anyhow::Result<()> {
    show.output("ferrulectl attachments", &node.ctl(&["attachments"])?);
    show.fact("the counters have counted", || {
        let counted = |attachment: &&Value, of: &str| {
            let counted = attachment.pointer(&format!("/counters/{of}")).and_then(Value::as_u64);
            counted.unwrap_or_default() > 0
        };
        let attachments = node.attachments()?;
        for pod in pods {
            let of_pod = |it: &&Value| it.get("pod_name").and_then(Value::as_str) == Some(&pod.name);
            let all = attachments.iter().filter(of_pod);
            let mut busy = all.filter(|it| counted(it, "egress_packets") && counted(it, "ingress_packets"));
            ensure!(busy.next().is_some(), "{} in {attachments:#?}", pod.name);
        }
        Ok(())
    })?;
    for (map, key) in
        [("VIFS", "an interface"), ("ENDPOINTS", "an address"), ("VIF_COUNTERS", "what happened")]
    {
        let line = format!("bpftool map dump pinned {PINS}/{map}");
        let dump = sys::run(&line)?;
        // One entry shows what there is; all of them would hide it.
        let first: Vec<&str> = dump.lines().take_while(|line| !line.starts_with("    },{")).collect();
        show.output(&format!("{line}    ({key}; the first entry)"), &first.join("\n"));
        if map == "VIFS" {
            show.fact("it names every pod", || {
                for pod in pods {
                    let name = format!("\"default/{}\"", pod.name);
                    ensure!(dump.contains(&name), "{} is not in {dump}", pod.name);
                }
                Ok(())
            })?;
        }
    }
    Ok(())
}

fn guard(node: &Node, from: &Pod, to: &Pod, show: &mut Show) -> anyhow::Result<()> {
    let address = to.addresses.first().context("the pod has no address")?.to_string();
    show.chapter("What is stopped, and what is not");
    show.fact(&format!("{} with an address that is not its own reaches nobody", from.name), || {
        from.run(&format!("ip addr add {FOREIGN}/32 dev eth0"))?;
        ensure!(
            from.run(&format!("ping -n -c 1 -W 1 -I {FOREIGN} {address}")).is_err(),
            "it reached {}",
            to.name
        );
        from.run(&format!("ip addr del {FOREIGN}/32 dev eth0")).map(drop)
    })?;
    show.fact("its drops are counted by their reason, on its own interface", || {
        let attachments = node.attachments()?;
        let own = |it: &&Value| it.get("pod_name").and_then(Value::as_str) == Some(&from.name);
        let dropped = attachments.iter().find(own).and_then(|it| it.pointer("/counters/drops/spoofed_ipv4"));
        ensure!(dropped.and_then(Value::as_u64).unwrap_or_default() > 0, "{attachments:#?}");
        Ok(())
    })?;
    show.fact("with its own address, it does", || from.ping(&address)).map(drop)
}

fn crash(node: &mut Node, from: &Pod, to: &Pod, show: &mut Show) -> anyhow::Result<()> {
    let address = to.addresses.first().context("the pod has no address")?.to_string();
    show.fact("the agent is killed, and packets flow", || {
        node.kill_agent()?;
        from.ping(&address)
    })?;
    println!("   {SOCKET} is stale now");
    Ok(())
}

/// Detaches all, and sees to it that nothing is left.
fn end(
    node: &mut Node,
    runtime: &Runtime,
    pods: impl IntoIterator<Item = Pod>,
    empty: &[String],
    show: &mut Show,
) -> anyhow::Result<()> {
    show.chapter("CHECK and DEL");
    for pod in pods {
        let what = format!("CHECK {}: the kernel has it as it was made; and DEL", pod.name);
        show.fact(&what, || {
            runtime.check(&pod)?;
            runtime.del(&pod)
        })?;
        pod.remove()?;
    }
    show.fact("no interface, route or map entry of the pods is left", || node.wait_for_kernel_state(empty))?;
    show.fact("the agent knows of no attachment", || {
        let left = node.attachments()?;
        ensure!(left.is_empty(), "{left:#?}");
        Ok(())
    })?;
    show.fact("the agent stops when it is told to", || node.stop_agent())
}
