//! Plugin chains, executed as libcni does: Ferrule first, then reference plugins.

use std::{fs, net::SocketAddr, path::Path};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    chain::Chain,
    node::{NODE_V4, NODE_V6, Node, with_agent},
    pod::Pod,
    runtime::CniError,
    sys, traffic,
};
use serde_json::{Map, Value, json};

const OUTSIDE: &str = "/run/netns/outside";
const HOST_PORT: u16 = 8080;
const POD_PORT: u16 = 80;
/// Bits per second. The CNI configuration takes bits; `tc` prints "8Mbit".
const RATE: u64 = 8_000_000;

/// Runs `run` on a node whose uplink neighbour can communicate with it in both families.
fn with_outside(run: impl FnOnce(&mut Node) -> anyhow::Result<()> + Send) -> anyhow::Result<()> {
    with_agent(|node| {
        sys::run("ip -n outside addr add 192.0.2.254/24 dev eth0")?;
        sys::run("ip -n outside addr add 2001:db8::254/64 dev eth0 nodad")?;
        sys::run("ip route add default via 2001:db8::254 dev uplink")?;
        run(node)
    })
}

fn ferrule() -> Value {
    json!({ "type": "ferrule" })
}

fn portmap() -> Value {
    json!({ "type": "portmap", "capabilities": { "portMappings": true } })
}

fn bandwidth() -> Value {
    json!({ "type": "bandwidth", "capabilities": { "bandwidth": true } })
}

fn tuning(settings: &Value) -> Value {
    let mut plugin = Map::from_iter([("type".to_owned(), "tuning".into())]);
    plugin.extend(settings.as_object().cloned().unwrap_or_default());
    plugin.into()
}

fn ports() -> Value {
    json!([{ "hostPort": HOST_PORT, "containerPort": POD_PORT, "protocol": "tcp" }])
}

fn at(address: &str, port: u16) -> anyhow::Result<SocketAddr> {
    Ok(SocketAddr::new(address.parse()?, port))
}

/// Connects to the pod through the host port: from another network namespace, or from the node.
fn through_the_port(pod: &Pod, from: Option<&Path>, host: &str) -> anyhow::Result<()> {
    let to = at(host, HOST_PORT)?;
    let of_family = pod.addresses.iter().find(|it| it.is_ipv4() == to.is_ipv4()).context("no address")?;
    traffic::echo(pod.path(), SocketAddr::new(*of_family, POD_PORT), || match from {
        Some(netns) => sys::in_netns(netns, || traffic::connect(to)),
        None => traffic::connect(to),
    })
    .with_context(|| format!("from {from:?} to {to}"))
}

fn cni_error(error: &anyhow::Error) -> anyhow::Result<&CniError> {
    error.downcast_ref().with_context(|| format!("not a CNI error: {error:#}"))
}

/// The error of an operation that must fail.
fn failed<T>(outcome: anyhow::Result<T>) -> anyhow::Result<anyhow::Error> {
    outcome.err().context("the operation succeeded")
}

/// Host state created by the other plugins.
fn of_others() -> anyhow::Result<String> {
    let rules = ["iptables", "ip6tables"].map(|program| sys::run(&format!("{program} -t nat -S")));
    let rules = rules.into_iter().collect::<anyhow::Result<Vec<_>>>()?.concat();
    let of_pods: Vec<&str> = rules.lines().filter(|line| line.contains("CNI-DN-")).collect();
    Ok(format!("{}\n{}", of_pods.join("\n"), sys::run("tc qdisc show")?))
}

/// Expected message, expected code, and a modification of the result.
type Change = (&'static str, u64, fn(&mut Value));

#[test]
fn chain_with_reference_plugins_works_in_every_common_cni_version() {
    with_outside(|node| {
        let (empty, nothing) = (node.kernel_state()?, of_others()?);
        for version in ["0.3.0", "0.3.1", "0.4.0", "1.0.0"] {
            let mut pod = node.pod(&format!("v{version}"))?;
            let tuning = tuning(&json!({ "sysctl": { "net.core.somaxconn": "517" }, "mtu": 1400 }));
            let mut chain = Chain::new(version, [ferrule(), portmap(), bandwidth(), tuning])
                .with("portMappings", ports())
                .with("bandwidth", json!({ "ingressRate": RATE, "ingressBurst": RATE / 10 }));
            let result = chain.add(&pod)?;
            pod.attached(&result)?;
            ensure!(result["cniVersion"] == version && pod.addresses.len() == 2, "{result}");
            ensure!(result["interfaces"][1]["sandbox"] == pod.netns.to_string_lossy().as_ref(), "{result}");

            for (from, host) in [
                (Some(Path::new(OUTSIDE)), NODE_V4),
                (Some(Path::new(OUTSIDE)), NODE_V6),
                (None, NODE_V4),
                (None, "127.0.0.1"),
            ] {
                through_the_port(&pod, from, host)?;
            }
            let qdiscs = sys::run(&format!("tc qdisc show dev {}", node.host_ifname(&pod)?))?;
            ensure!(qdiscs.contains("tbf") && qdiscs.contains("rate 8Mbit"), "{qdiscs}");
            ensure!(qdiscs.contains("clsact"), "clsact is missing: {qdiscs}");
            let somaxconn = || Ok(fs::read_to_string("/proc/sys/net/core/somaxconn")?);
            ensure!(sys::in_netns(pod.path(), somaxconn)?.trim() == "517");
            ensure!(
                pod.run("ip link show eth0")?.contains("mtu 1400"),
                "the MTU of a later plugin was reverted"
            );

            if !version.starts_with("0.3") {
                chain.check(&pod).context("CHECK of the whole chain")?;
            }
            chain.del(&pod)?;
            chain.del(&pod).context("second DEL, without a result")?;
            ensure!(node.attachments()?.is_empty());
            node.wait_for_kernel_state(&empty)?;
            let left = of_others()?;
            ensure!(left == nothing, "leftovers: {left}\nbefore: {nothing}");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn chain_with_a_plugin_before_ferrule_is_refused_with_a_remedy() {
    with_agent(|node| {
        let before = node.kernel_state()?;
        for version in ["0.3.1", "0.4.0", "1.0.0"] {
            let pod = node.pod(&format!("v{version}"))?;
            let mut chain = Chain::new(version, [json!({ "type": "loopback" }), ferrule()]);
            let error = failed(chain.add(&pod))?;
            let reported = cni_error(&error)?;
            ensure!(reported.code == 7 && reported.msg.contains("\"prevResult\""), "{reported}");
            ensure!(reported.details.contains("put \"ferrule\" first"), "{reported}");
            chain.del(&pod).context("DEL after the failed ADD")?;
        }
        ensure!(node.kernel_state()? == before && node.attachments()?.is_empty());
        Ok(())
    })
    .unwrap();
}

#[test]
fn requests_that_ferrule_cannot_honour_are_refused_with_a_remedy() {
    with_agent(|node| {
        let before = node.kernel_state()?;
        let pod = node.pod("a")?;
        let declares = json!({ "type": "ferrule", "capabilities": { "aliases": true, "mac": true } });
        let mut chain = Chain::new("1.0.0", [declares]);
        chain.add(&pod).context("ADD without a request")?;
        chain.check(&pod)?;
        chain.del(&pod)?;
        node.wait_for_kernel_state(&before)?;
        let mut chain = chain.with("mac", json!("02:00:00:00:00:77"));
        let error = failed(chain.add(&pod))?;
        let reported = cni_error(&error)?;
        ensure!(reported.code == 2 && reported.msg.contains("\"mac\""), "{reported}");
        ensure!(reported.details.contains("vif.ferrule.dev/v1"), "{reported}");
        chain.del(&pod)?;
        ensure!(node.kernel_state()? == before);
        Ok(())
    })
    .unwrap();
}

#[test]
fn dns_capability_is_returned_in_the_result() {
    with_agent(|node| {
        let pod = node.pod("a")?;
        let plugin = json!({
            "type": "ferrule", "capabilities": { "dns": true },
            "dns": { "nameservers": ["10.96.0.10"], "domain": "cluster.local" },
        });
        // containerd's spelling of the capability.
        let mut chain = Chain::new("1.0.0", [plugin])
            .with("dns", json!({ "Servers": ["192.168.77.10"], "Searches": ["a.b"], "Options": ["ndots:5"] }));
        let expected = json!({
            "nameservers": ["192.168.77.10"], "domain": "cluster.local", "search": ["a.b"], "options": ["ndots:5"],
        });
        let result = chain.add(&pod)?;
        ensure!(result["dns"] == expected, "{result}");
        chain.check(&pod)
    })
    .unwrap();
}

#[test]
fn check_compares_with_the_chains_result() {
    with_agent(|node| {
        let mut pod = node.pod("a")?;
        let mut chain = Chain::new("1.1.0", [ferrule()]);
        let result = chain.add(&pod)?;
        pod.attached(&result)?;
        chain.check(&pod)?;
        let check = |change: fn(&mut Value)| {
            let mut changed = result.clone();
            change(&mut changed);
            let mut chain = chain.clone();
            *chain.result() = Some(changed);
            chain.check(&pod)
        };
        // Later plugins may add or remove these fields.
        check(|it| {
            it["interfaces"]
                .as_array_mut()
                .unwrap()
                .push(json!({ "name": "ifb0", "mac": "02:00:00:00:00:09" }));
            it["ips"].as_array_mut().unwrap().push(json!({ "address": "10.9.9.9/24" }));
            it["ips"][0].as_object_mut().unwrap().remove("interface");
            it["dns"] = json!({ "nameservers": ["10.96.0.10"] });
        })?;
        let changes: [Change; 11] = [
            ("lacks the host interface", 101, |it| it["interfaces"][0]["name"] = "eth9".into()),
            ("no interface eth0 in", 101, |it| it["interfaces"][1]["name"] = "eth9".into()),
            ("no interface eth0 in", 101, |it| it["interfaces"][1]["sandbox"] = "/run/netns/other".into()),
            ("lacks the address", 101, |it| it["ips"][0]["address"] = "10.244.0.99/32".into()),
            ("lacks the address", 101, |it| it["ips"][1]["interface"] = 0.into()),
            ("has changed the MAC", 101, |it| it["interfaces"][1]["mac"] = "02:00:00:00:00:66".into()),
            ("wrong MTU 1450, expected 1300", 101, |it| it["interfaces"][1]["mtu"] = 1300.into()),
            ("wrong CNI version \"0.4.0\"", 7, |it| it["cniVersion"] = "0.4.0".into()),
            ("reading \"prevResult\"", 6, |it| it["interfaces"] = "garbage".into()),
            ("reading \"prevResult\"", 6, |it| *it = "garbage".into()),
            ("reading \"prevResult\" of the network configuration: missing, but CHECK", 7, |it| {
                *it = Value::Null
            }),
        ];
        for (expected, code, change) in changes {
            let error = failed(check(change)).with_context(|| expected.to_owned())?;
            let reported = cni_error(&error)?;
            ensure!(reported.code == code && reported.msg.contains(expected), "{expected}: {reported}");
        }

        // A route that a later plugin replaced is not checked; a route in the result must exist.
        pod.run("ip route del default")?;
        let error = failed(chain.check(&pod))?;
        ensure!(cni_error(&error)?.msg.contains("no default route"), "{error:#}");
        check(|it| {
            it["routes"].as_array_mut().unwrap().retain(|route| route["dst"] != "0.0.0.0/0");
        })?;
        for garbage in [json!("garbage"), json!({ "cniVersion": "0.4.0" }), json!({ "interfaces": 7 })] {
            let mut chain = chain.clone();
            *chain.result() = Some(garbage);
            chain.del(&pod).context("DEL with an invalid prevResult")?;
        }
        ensure!(node.attachments()?.is_empty());
        Ok(())
    })
    .unwrap();
}

#[test]
fn mac_changed_by_a_later_plugin_is_reported_by_check() {
    with_agent(|node| {
        let pod = node.pod("a")?;
        let mut chain = Chain::new("1.0.0", [ferrule(), tuning(&json!({ "mac": "02:00:00:00:00:77" }))]);
        let result = chain.add(&pod)?;
        ensure!(result["interfaces"][1]["mac"] == "02:00:00:00:00:77", "{result}");
        // A ping can fail for many reasons; the counter names this one.
        let _ = pod.ping(NODE_V4);
        let counters = node.attachments()?[0]["counters"].clone();
        ensure!(
            counters["egress_drops"]["spoofed_mac"].as_u64().is_some_and(|drops| drops > 0),
            "{counters}"
        );
        let error = failed(chain.check(&pod))?;
        let reported = cni_error(&error)?;
        ensure!(reported.code == 101 && reported.msg.contains("has changed the MAC of eth0"), "{reported}");
        chain.del(&pod)
    })
    .unwrap();
}

/// `bandwidth` replaces or creates an ingress qdisc and fails, because clsact occupies its place as in any
/// eBPF dataplane.
#[test]
fn egress_bandwidth_limit_fails_the_chain_and_leaks_nothing() {
    with_agent(|node| {
        let (before, nothing) = (node.kernel_state()?, of_others()?);
        let pod = node.pod("a")?;
        let mut chain = Chain::new("1.0.0", [ferrule(), bandwidth()])
            .with("bandwidth", json!({ "egressRate": RATE, "egressBurst": RATE / 10 }));
        let error = failed(chain.add(&pod))?;
        ensure!(cni_error(&error)?.msg.contains("create ingress qdisc"), "{error:#}");
        chain.del(&pod)?;
        ensure!(node.attachments()?.is_empty());
        node.wait_for_kernel_state(&before)?;
        ensure!(of_others()? == nothing);
        Ok(())
    })
    .unwrap();
}

#[test]
fn host_port_is_reachable_from_pods_on_the_same_node() {
    with_outside(|node| {
        let mut pod = node.pod("server")?;
        let mut chain = Chain::new("1.0.0", [ferrule(), portmap()]).with("portMappings", ports());
        pod.attached(&chain.add(&pod)?)?;
        let client = node.attach("client")?;
        for host in [NODE_V4, NODE_V6] {
            through_the_port(&pod, Some(client.path()), host)?;
            through_the_port(&pod, Some(pod.path()), host).context("from the pod itself")?;
        }
        chain.del(&pod)
    })
    .unwrap();
}
