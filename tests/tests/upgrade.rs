//! The previous release's agent and shim, this build's in their place, and the way back, under traffic.
//!
//! `cargo xtask test --previous REF` builds the previous release and runs these tests; others ignore them.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    apiserver::{Options, Resource, objects},
    chain::Chain,
    cluster::{Cluster, NODE},
    node::{NODE_V4, Node, POD_V4, POD_V6, on_node},
    pod::{NAMESPACE, Pod},
    probe::Probe,
    sys, traffic,
};
use serde_json::{Map, Value, json};

/// The agent and the shim of a release, below `target/dist`.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Build {
    agent: &'static str,
    shim: &'static str,
}

/// A pod, and the chain that has attached it.
struct Attached {
    pod: Pod,
    chain: Chain,
}

/// Both ends of an open TCP connection.
struct Connection {
    what: &'static str,
    client: TcpStream,
    server: TcpStream,
}

/// The pinned maps: their version, and the bytes of a key and a value of each.
#[derive(Debug, PartialEq, Eq)]
struct Maps {
    version: String,
    sizes: BTreeMap<String, (u64, u64)>,
}

/// Pods of all kinds, and connections to them.
struct Scene {
    /// Has a policy that admits `friend` only, and is the backend of the Service.
    isolated: Attached,
    friend: Attached,
    stranger: Attached,
    /// Has a port of the node.
    published: Attached,
    /// Has limits of its traffic. Sends nothing while agents are replaced.
    limited: Attached,
    connections: Vec<Connection>,
}

const PREVIOUS: Build = Build { agent: "previous/ferrule-agent", shim: "previous/ferrule" };
const THIS: Build = Build { agent: "ferrule-agent", shim: "ferrule" };

const PINS: &str = "/sys/fs/bpf/ferrule";
const OUTSIDE: &str = "/run/netns/outside";
const SERVICE: &str = "10.96.0.10:80";
const NODE_PORT: u16 = 8080;
const POD_PORT: u16 = 80;
/// What agents of both releases say of an attachment, and what no upgrade changes.
const RECORDED: [&str; 9] = [
    "container_id",
    "host_ifname",
    "host_ifindex",
    "mac",
    "mtu",
    "addresses",
    "host_ports",
    "ingress_limit",
    "egress_limit",
];
const TIMEOUT: Duration = Duration::from_secs(20);
/// Exit code for settings that an agent does not know.
const INVALID_SETTINGS: i32 = 64;

/// Runs `run` on the node of a cluster whose pods the previous release has attached.
fn with_previous(
    run: impl FnOnce(&mut Node, &Cluster, &mut Scene) -> anyhow::Result<()> + Send,
) -> anyhow::Result<()> {
    on_node(|node| {
        sys::run("ip -n outside addr add 192.0.2.254/24 dev eth0")?;
        let cluster = Cluster::start(Options::default())?;
        cluster.api.create(Resource::Nodes, objects::node(NODE, &[POD_V4, POD_V6]))?;
        node.use_agent(PREVIOUS.agent, &[]);
        cluster.start_agent(node, &[])?;
        let mut scene = Scene::make(node, &cluster)?;
        run(node, &cluster, &mut scene)
    })
}

fn attach(
    node: &Node,
    cluster: &Cluster,
    build: Build,
    name: &str,
    wishes: &[(&str, Value)],
) -> anyhow::Result<Attached> {
    let mut pod = cluster.pod(node, name, &[])?;
    let labels = json!({ "metadata": { "labels": { "name": name } } });
    cluster.api.patch(Resource::Pods, NAMESPACE, name, labels)?;
    let capabilities: Map<String, Value> =
        wishes.iter().map(|(capability, _)| ((*capability).to_owned(), true.into())).collect();
    let plugin = json!({ "type": "ferrule", "capabilities": capabilities });
    let chain = Chain::new("1.0.0", [plugin]);
    let mut chain =
        wishes.iter().fold(chain, |chain, (capability, value)| chain.with(capability, value.clone()));
    chain.use_shim(build.shim);
    pod.attached(&chain.add(&pod)?)?;
    Ok(Attached { pod, chain })
}

fn port_of_the_node(port: u16) -> (&'static str, Value) {
    ("portMappings", json!([{ "hostPort": port, "containerPort": POD_PORT, "protocol": "tcp" }]))
}

/// Ends the agent by crash or graceful shutdown, and starts another release's in its place.
fn replace(node: &mut Node, build: Build, by_crash: bool) -> anyhow::Result<()> {
    if by_crash {
        node.kill_agent()?
    } else {
        node.stop_agent()?
    }
    node.use_agent(build.agent, &[]);
    node.start_again()?;
    sys::wait_until("the agent is ready", TIMEOUT, || Ok(node.http("/readyz")?.0 == 200))
}

/// What is recorded of all attachments.
fn records(node: &Node) -> anyhow::Result<Vec<Vec<Value>>> {
    let of = |it: &Value| {
        RECORDED.iter().map(|field| it.get(field).cloned().with_context(|| format!("no {field}"))).collect()
    };
    let mut records = node.attachments()?.iter().map(of).collect::<anyhow::Result<Vec<Vec<Value>>>>()?;
    records.sort_by_key(|record| record.first().map(Value::to_string));
    Ok(records)
}

/// Packets that a pod has sent.
fn packets(node: &Node, pod: &Pod) -> anyhow::Result<u64> {
    let attachments = node.attachments()?;
    let of_pod = |it: &&Value| it.get("container_id").and_then(Value::as_str) == Some(&pod.container_id);
    let sent =
        attachments.iter().find(of_pod).and_then(|it| it.pointer("/counters/egress_packets")?.as_u64());
    sent.with_context(|| format!("no counters of {}: {attachments:#?}", pod.name))
}

fn v4(pod: &Pod) -> anyhow::Result<IpAddr> {
    pod.addresses.iter().copied().find(IpAddr::is_ipv4).context("no IPv4 address")
}

// === impl Attached ===

impl Attached {
    fn check(&mut self, by: Build) -> anyhow::Result<()> {
        self.chain.use_shim(by.shim);
        self.chain.check(&self.pod).with_context(|| format!("CHECK of {}", self.pod.name))
    }

    fn reaches(&self, other: &Self) -> anyhow::Result<bool> {
        Ok(self.pod.run(&format!("ping -n -c 1 -W 1 {}", v4(&other.pod)?)).is_ok())
    }
}

// === impl Connection ===

impl Connection {
    fn open(what: &'static str, from: &Path, to: SocketAddr, server: &Pod) -> anyhow::Result<Self> {
        let listener =
            sys::bind_in(server.path(), SocketAddr::new(v4(server)?, POD_PORT), TcpListener::bind)?;
        let client = sys::in_netns(from, || traffic::connect(to)).with_context(|| what.to_owned())?;
        let server = traffic::accept(&listener)?;
        client.set_read_timeout(Some(TIMEOUT))?;
        Ok(Self { what, client, server })
    }

    /// Bytes arrive, in both directions.
    fn goes_on(&self) -> anyhow::Result<()> {
        let mut heard = [0; 100];
        for (mut from, mut to) in [(&self.client, &self.server), (&self.server, &self.client)] {
            let carried = from.write_all(&[7; 100]).and_then(|()| to.read_exact(&mut heard));
            carried.with_context(|| format!("a connection {}", self.what))?;
        }
        Ok(())
    }
}

// === impl Maps ===

impl Maps {
    fn read() -> anyhow::Result<Self> {
        let versions = sys::file_names(PINS)?;
        let of_version = |it: &&String| it.strip_prefix('v').is_some_and(|it| it.parse::<u32>().is_ok());
        let found: Vec<_> = versions.iter().filter(of_version).collect();
        let [version] = *found.as_slice() else { anyhow::bail!("pins of these versions: {versions:?}") };
        let size = |map: String| {
            let shown = sys::run(&format!("bpftool -j map show pinned {PINS}/{version}/{map}"))?;
            let shown: Value = serde_json::from_str(&shown)?;
            let bytes = |of| shown.get(of).and_then(Value::as_u64).with_context(|| format!("{map}: {shown}"));
            Ok((map.clone(), (bytes("bytes_key")?, bytes("bytes_value")?)))
        };
        // Verified programs are pinned beside the maps.
        let is_map = |pin: &String| pin.starts_with(|it: char| it.is_ascii_uppercase());
        let pins = sys::file_names(&format!("{PINS}/{version}"))?;
        let sizes = pins.into_iter().filter(is_map).map(size).collect::<anyhow::Result<_>>()?;
        Ok(Self { version: version.clone(), sizes })
    }

    fn has_same(&self, map: &str, other: &Self) -> bool {
        self.sizes.get(map) == other.sizes.get(map)
    }
}

// === impl Scene ===

impl Scene {
    fn make(node: &Node, cluster: &Cluster) -> anyhow::Result<Self> {
        let attach = |name, wishes: &[_]| attach(node, cluster, PREVIOUS, name, wishes);
        let limit = json!({ "ingressRate": 20_000_000, "egressRate": 20_000_000 });
        let mut scene = Self {
            isolated: attach("isolated", &[])?,
            friend: attach("friend", &[])?,
            stranger: attach("stranger", &[])?,
            published: attach("published", &[port_of_the_node(NODE_PORT)])?,
            limited: attach("limited", &[("bandwidth", limit)])?,
            connections: Vec::new(),
        };
        let spec = json!({
            "podSelector": { "matchLabels": { "name": "isolated" } }, "policyTypes": ["Ingress"],
            "ingress": [{ "from": [{ "podSelector": { "matchLabels": { "name": "friend" } } }] }],
        });
        cluster.api.create(Resource::NetworkPolicies, objects::network_policy(NAMESPACE, "p", spec))?;
        sys::wait_until("the policy is enforced", TIMEOUT, || {
            Ok(!scene.stranger.reaches(&scene.isolated)?)
        })?;
        sys::wait_until("the policy admits", TIMEOUT, || scene.friend.reaches(&scene.isolated))?;
        let (service, backend) = (SERVICE.parse::<SocketAddr>()?, v4(&scene.isolated.pod)?);
        let translate = format!("ip daddr {} tcp dport 80 dnat ip to {backend}:{POD_PORT}", service.ip());
        // As kube-proxy's.
        let rules = format!(
            "table ip services {{\nchain prerouting {{\ntype nat hook prerouting priority dstnat;\n{translate}\n}}\n\
             chain forward {{\ntype filter hook forward priority filter;\nct state invalid counter drop\n}}\n}}\n"
        );
        fs::write("/run/services.nft", rules)?;
        sys::run("nft -f /run/services.nft")?;
        let client = scene.friend.pod.path();
        scene.connections = vec![
            Connection::open("through the Service", client, service, &scene.isolated.pod)?,
            Connection::open(
                "to the port of the node",
                Path::new(OUTSIDE),
                at_node(NODE_PORT)?,
                &scene.published.pod,
            )?,
        ];
        Ok(scene)
    }

    fn pods(&mut self) -> [&mut Attached; 5] {
        [&mut self.isolated, &mut self.friend, &mut self.stranger, &mut self.published, &mut self.limited]
    }

    /// Sends between the pod with the policy and the one that it admits, while `happens` executes.
    /// Returns how many packets were lost.
    fn under_traffic(&self, happens: impl FnOnce() -> anyhow::Result<()> + Send) -> anyhow::Result<u64> {
        let (a, b) = (&self.friend.pod, &self.isolated.pod);
        // Replies of what the policy admits; its own packets to others are not judged.
        let ends = [(a, b), (b, a)]
            .into_iter()
            .flat_map(|(from, to)| to.addresses.iter().map(move |it| (from, to, *it)));
        let probes = ends
            .map(|(from, to, it)| Probe::start(from.path(), to.path(), it))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let stop = &AtomicBool::new(false);
        thread::scope(|scope| {
            let stream = |to| scope.spawn(move || traffic::stream_until(stop, a.path(), b.path(), to));
            let streams: Vec<_> = b.addresses.iter().map(|to| stream(*to)).collect();
            let outcome = probes
                .iter()
                .try_for_each(|probe| probe.expect_flow("before"))
                .and_then(|()| happens())
                .and_then(|()| probes.iter().try_for_each(|probe| probe.expect_flow("afterwards")));
            stop.store(true, Ordering::Relaxed);
            for stream in streams {
                stream
                    .join()
                    .map_err(|_| anyhow::anyhow!("a stream panicked"))?
                    .context("a stream was cut")?;
            }
            outcome
        })?;
        let outcomes = probes.into_iter().map(Probe::end).collect::<anyhow::Result<Vec<_>>>()?;
        Ok(outcomes.iter().map(|it| it.lost).sum())
    }

    /// Everything that a pod has, it has with the agent of `build`.
    fn expect_whole(&mut self, node: &Node, build: Build) -> anyhow::Result<()> {
        for attached in self.pods() {
            attached.check(build)?;
        }
        node.ctl(&["verify"])?;
        ensure!(!self.stranger.reaches(&self.isolated)?, "the policy admits all");
        let limited = node.host_ifname(&self.limited.pod)?;
        let qdisc = sys::run(&format!("tc qdisc show dev {limited} root"))?;
        ensure!(qdisc.contains("tbf") && qdisc.contains("rate 20Mbit"), "{qdisc}");
        let published = &self.published.pod;
        Connection::open("new, to the port of the node", Path::new(OUTSIDE), at_node(NODE_PORT)?, published)?
            .goes_on()?;
        let service = SERVICE.parse()?;
        Connection::open("new, through the Service", self.friend.pod.path(), service, &self.isolated.pod)?
            .goes_on()
    }

    fn expect_connections(&self, but: Option<&str>) -> anyhow::Result<()> {
        self.connections.iter().filter(|it| Some(it.what) != but).try_for_each(Connection::goes_on)
    }
}

fn at_node(port: u16) -> anyhow::Result<SocketAddr> {
    Ok(SocketAddr::new(NODE_V4.parse()?, port))
}

/// Replaces the agent of one release by that of the other, and compares.
fn expect_carried_over(node: &mut Node, scene: &mut Scene, to: Build, by_crash: bool) -> anyhow::Result<()> {
    // Counted once more: an earlier way back may have lost the counters.
    scene.limited.pod.run(&format!("ping -n -c 50 -i 0.01 {NODE_V4}"))?;
    let (recorded, counted, from) = (records(node)?, packets(node, &scene.limited.pod)?, Maps::read()?);
    let lost = scene.under_traffic(|| replace(node, to, by_crash))?;
    let maps = Maps::read()?;
    ensure!(records(node)? == recorded, "records differ:\n{:#?}\n{recorded:#?}", records(node)?);
    scene.expect_whole(node, to)?;
    // A later agent knows the earlier layouts; an earlier one takes over what has its own layout only.
    let keeps = |map: &str| to == THIS || maps.has_same(map, &from);
    let after = packets(node, &scene.limited.pod)?;
    let has_all = to == THIS || maps.sizes == from.sizes;
    println!(
        "{} maps {} after {}, {lost} packets lost, {counted} then {after} counted",
        to.agent, maps.version, from.version
    );
    ensure!(lost == 0 || !has_all, "{lost} packets lost");
    ensure!(
        counted >= 50 && (after >= counted) == keeps("VIF_COUNTERS"),
        "{counted} packets counted before, {after} after"
    );
    scene.expect_connections((!keeps("STACK_FLOWS")).then_some("through the Service"))
}

#[test]
#[ignore = "needs the previous release: cargo xtask test --previous REF"]
fn pods_keep_packets_connections_and_what_they_asked_for_through_an_upgrade_and_a_rollback() {
    with_previous(|node, cluster, scene| {
        for by_crash in [false, true] {
            expect_carried_over(node, scene, THIS, by_crash)?;
            let mut later = attach(node, cluster, THIS, "later", &[port_of_the_node(NODE_PORT + 1)])?;
            expect_carried_over(node, scene, PREVIOUS, by_crash)?;
            later.check(PREVIOUS)?;
            Connection::open("to a later pod", Path::new(OUTSIDE), at_node(NODE_PORT + 1)?, &later.pod)?
                .goes_on()?;
            later.chain.del(&later.pod)?;
            cluster.delete(&later.pod)?;
            later.pod.remove()?;
        }
        // The new shim deletes a pod while no agent runs, and the new agent learns of it.
        node.stop_agent()?;
        scene.limited.chain.use_shim(THIS.shim);
        scene.limited.chain.del(&scene.limited.pod)?;
        node.use_agent(THIS.agent, &[]);
        node.start_again()?;
        ensure!(node.attachments()?.len() == 4, "{:#?}", node.attachments()?);
        scene.expect_connections(None)
    })
    .unwrap();
}

#[test]
#[ignore = "needs the previous release: cargo xtask test --previous REF"]
fn a_setting_that_the_previous_release_does_not_know_ends_its_agent_and_leaves_the_pods() {
    with_previous(|node, _, scene| {
        replace(node, THIS, false)?;
        let lost = scene.under_traffic(|| {
            node.stop_agent()?;
            fs::write("/run/agent.toml", "later_setting = 1\n")?;
            node.use_agent(PREVIOUS.agent, &[("FERRULE_CONFIG", "/run/agent.toml")]);
            node.begin_start()?;
            let status = node.wait_for_agent_to_end(TIMEOUT)?;
            ensure!(status.code() == Some(INVALID_SETTINGS), "{status}: {}", node.log());
            ensure!(node.log().contains("later_setting"), "{}", node.log());
            node.use_agent(THIS.agent, &[]);
            node.start_again()
        })?;
        ensure!(lost == 0, "{lost} packets lost");
        scene.expect_whole(node, THIS)
    })
    .unwrap();
}
