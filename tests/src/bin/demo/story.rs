//! The story that the demo tells, on a node.

use std::{path::PathBuf, process::Command};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    dist,
    node::{NODE_V4, NODE_V6, Node, PINS, POD_V4, POD_V6, SOCKET},
    pod::Pod,
    runtime::Runtime,
    sys, traffic,
};

use crate::show::Show;

const STREAM: u64 = 512 << 20;
/// Documentation's own (RFC 5737), so nobody's.
const FOREIGN: &str = "198.51.100.66";

pub(crate) fn tell(node: &mut Node, show: &mut Show) -> anyhow::Result<()> {
    show.chapter("A node, and its agent");
    println!(
        "   The node is a network namespace and a mount namespace: it has its own /run and its own BPF file system."
    );
    println!("   # ferrule-agent --standalone --pod-cidr {POD_V4} --pod-cidr {POD_V6}");
    show.fact("the agent loads its programs and serves", || node.start_agent(&[POD_V4, POD_V6]))?;
    let runtime = node.runtime()?;
    let empty = node.kernel_state()?;

    show.chapter("Three pods, plugged as a container runtime does it");
    let pods = add_pods(node, &runtime, show)?;
    connect(&pods, show)?;
    operate(node, &pods, show)?;
    guard(node, &pods, show)?;

    show.chapter("CHECK and DEL");
    for pod in &pods {
        show.fact(&format!("CHECK {}: the kernel has it as it was made", pod.name), || runtime.check(pod))?;
    }
    for pod in &pods {
        show.fact(&format!("DEL {}", pod.name), || runtime.del(pod))?;
    }
    show.fact("no interface, route or map entry of the pods is left", || node.wait_for_kernel_state(&empty))?;
    show.fact("the agent knows of no attachment", || {
        let left = node.attachments()?;
        ensure!(left.is_empty(), "{left:#?}");
        Ok(())
    })?;
    for pod in pods {
        pod.remove()?;
    }
    show.fact("the agent stops when it is told to", || node.stop_agent())
}

fn add_pods(node: &Node, runtime: &Runtime, show: &mut Show) -> anyhow::Result<[Pod; 3]> {
    let mut add = |name: &str| -> anyhow::Result<Pod> {
        let mut pod = node.pod(name)?;
        if name == "web-0" {
            println!(
                "   # CNI_COMMAND=ADD CNI_CONTAINERID={:.12}… CNI_NETNS={} CNI_IFNAME=eth0 \\",
                pod.container_id,
                pod.netns.display()
            );
            println!("     ferrule <<< '{}'", runtime.config());
        }
        let result = show.fact(&format!("ADD {name}"), || runtime.add(&pod))?;
        pod.attached(&result)?;
        if name == "web-0" {
            show.output("its answer", &serde_json::to_string(&result)?);
        }
        Ok(pod)
    };
    Ok([add("web-0")?, add("web-1")?, add("db-0")?])
}

fn connect(pods: &[Pod; 3], show: &mut Show) -> anyhow::Result<()> {
    show.chapter("Their packets");
    for from in pods {
        for to in pods.iter().filter(|to| to.name != from.name) {
            show.fact(&format!("{} pings {} over IPv4 and IPv6", from.name, to.name), || {
                to.addresses.iter().try_for_each(|address| from.ping(&address.to_string()).map(drop))
            })?;
        }
        show.fact(&format!("{} pings the node over IPv4 and IPv6", from.name), || {
            [NODE_V4, NODE_V6].iter().try_for_each(|address| from.ping(address).map(drop))
        })?;
    }
    let [web, _, db] = pods;
    for address in &db.addresses {
        let streamed = show
            .fact(&format!("web-0 streams {} MiB by TCP to db-0, {address}", STREAM >> 20), || {
                traffic::stream(web.path(), db.path(), *address, STREAM)
            })?;
        println!("   {:.1} Gbit/s, every byte checked", streamed.gbit_per_second());
    }
    let home = PathBuf::from("/proc/thread-self/ns/net");
    for address in [NODE_V4, NODE_V6] {
        show.fact(&format!("web-0 streams {} MiB by TCP to the node, {address}", STREAM >> 22), || {
            traffic::stream(web.path(), &home, address.parse()?, STREAM >> 2)
        })?;
    }
    Ok(())
}

fn operate(node: &Node, pods: &[Pod; 3], show: &mut Show) -> anyhow::Result<()> {
    show.chapter("What an operator sees");
    let table = sys::output(Command::new(dist::binary("ferrulectl")?).arg("attachments"))?;
    show.output("ferrulectl attachments", &table);
    show.fact("the counters have counted", || {
        for attachment in node.attachments()? {
            let counters = attachment.get("counters").context("no counters")?;
            let counted =
                |of: &str| counters.get(of).and_then(serde_json::Value::as_u64).unwrap_or_default() > 0;
            ensure!(counted("egress_packets") && counted("ingress_packets"), "{attachment:#}");
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
                    ensure!(
                        dump.contains(&format!("\"default/{}\"", pod.name)),
                        "{} is not in {dump}",
                        pod.name
                    );
                }
                Ok(())
            })?;
        }
    }
    Ok(())
}

fn guard(node: &mut Node, pods: &[Pod; 3], show: &mut Show) -> anyhow::Result<()> {
    let [web, other, db] = pods;
    let to = db.addresses.first().context("db-0 has no address")?.to_string();
    show.chapter("What is stopped, and what is not");
    show.fact("web-0 with an address that is not its own reaches nobody", || {
        web.run(&format!("ip addr add {FOREIGN}/32 dev eth0"))?;
        ensure!(web.run(&format!("ping -n -c 1 -W 1 -I {FOREIGN} {to}")).is_err(), "it reached db-0");
        web.run(&format!("ip addr del {FOREIGN}/32 dev eth0")).map(drop)
    })?;
    show.fact("its drops are counted by their reason, on its own interface", || {
        let attachments = node.attachments()?;
        let dropped = attachments.first().and_then(|first| first.pointer("/counters/drops/spoofed_ipv4"));
        ensure!(dropped.and_then(serde_json::Value::as_u64).unwrap_or_default() > 0, "{attachments:#?}");
        Ok(())
    })?;
    show.fact("with its own address, it does", || web.ping(&to))?;
    show.fact("the agent is killed, and packets flow", || {
        node.kill_agent()?;
        other.ping(&to)
    })?;
    println!("   {SOCKET} is stale now");
    show.fact("it starts again and knows its pods", || {
        node.start_again()?;
        ensure!(node.attachments()?.len() == pods.len());
        other.ping(&to)
    })
    .map(drop)
}
