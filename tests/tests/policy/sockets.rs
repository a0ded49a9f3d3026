//! Random clusters, as the compiler's tests make them: what passes between sockets is what the oracle says,
//! after each of some edits.

use std::{env, net::IpAddr, thread};

use anyhow::{Context as _, anyhow, ensure};
use fastrand::Rng;
use ferrule_tests::{
    apiserver::{ApiServer, Options, Resource, objects},
    cluster::{Cluster, NODE},
    node::{Node, POD_V4, POD_V6, on_node},
    pod::{Pod, VIF},
    sys::wait_until,
};
use serde_json::{Value, json};

use crate::{
    engine::{
        oracle, random,
        world::{End, TCP, UDP, World},
    },
    scene::{By, PORTS, Servers, TIMEOUT, reaches},
};

/// Clusters by default; `FERRULE_POLICY_CLUSTERS` has another number, for hours.
const CLUSTERS: u64 = 2;
const EDITS: usize = 3;
/// Connections and datagrams after each edit.
const SAMPLES: usize = 32;
/// Around the addresses of the random pods.
const FLAGS: [&str; 4] = ["--vif-cidr", "10.0.0.0/23", "--vif-cidr", "fd00::/62"];

/// A question that sockets answer.
struct Sample<'a> {
    from: &'a Pod,
    to: &'a Pod,
    address: IpAddr,
    by: By,
    expected: bool,
}

#[test]
fn random_clusters_pass_between_sockets_what_the_oracle_allows_after_each_edit() {
    let clusters = env::var("FERRULE_POLICY_CLUSTERS").map_or(CLUSTERS, |it| it.parse().unwrap());
    let first = env::var("FERRULE_POLICY_SEED").map_or(0, |it| it.parse().unwrap());
    for seed in first..first + clusters {
        cluster(seed).with_context(|| format!("seed {seed}")).unwrap();
    }
}

fn cluster(seed: u64) -> anyhow::Result<()> {
    on_node(|node| {
        let mut rng = Rng::with_seed(seed);
        let mut world = random::world(&mut rng);
        // Others are no pods with a network of their own.
        world.pods.retain(|_, pod| !pod.is_terminal && !pod.host_network);
        let cluster = Cluster::start(Options { cluster_policies: true, ..Options::default() })?;
        cluster.api.create(Resource::Nodes, objects::node(NODE, &[POD_V4, POD_V6]))?;
        tell(&cluster.api, &World::default(), &world)?;
        cluster.start_agent(node, &FLAGS)?;
        let mut pods = Vec::new();
        for uid in world.pods.keys() {
            pods.push(attach(node, &world, uid)?);
        }
        let (mut allowed, mut denied) = (0, 0);
        for edit in 0..=EDITS {
            if edit > 0 {
                let next = edited(&mut rng, &world);
                tell(&cluster.api, &world, &next)?;
                world = next;
            }
            let samples = samples(&mut rng, &world, &pods);
            compare(&samples).with_context(|| format!("after the edit {edit} of {world:#?}"))?;
            allowed += samples.iter().filter(|it| it.expected).count();
            denied += samples.iter().filter(|it| !it.expected).count();
        }
        println!("seed {seed}: {allowed} allowed, {denied} denied");
        Ok(())
    })
}

/// Attaches a pod of the world with its addresses.
fn attach(node: &Node, world: &World, uid: &str) -> anyhow::Result<(Pod, Servers)> {
    let known = world.pods.get(uid).context("no such pod")?;
    let made = node.pod(&known.name)?;
    let mut pod = Pod { namespace: known.namespace.clone(), uid: uid.to_owned(), ..made };
    let servers = Servers::start(pod.path())?;
    let result = node.runtime()?.add(&pod)?;
    pod.attached(&result)?;
    let mut found = pod.addresses.clone();
    found.sort_unstable();
    ensure!(found == known.addresses, "{} has {found:?}", pod.name);
    Ok((pod, servers))
}

/// Another world, with the same pods: labels, named ports or policies differ.
fn edited(rng: &mut Rng, world: &World) -> World {
    loop {
        let mut next = world.clone();
        random::edit(rng, &mut next);
        let is_same_pod = |(uid, pod): (&String, &crate::engine::world::Pod)| {
            world.pods.get(uid).is_some_and(|it| it.addresses == pod.addresses)
        };
        let is_local = next.pods.len() == world.pods.len() && next.pods.iter().all(is_same_pod);
        let says = |world: &World| {
            let World { namespaces, pods, policies, cluster_policies, .. } = world.clone();
            (namespaces, pods, policies, cluster_policies)
        };
        if is_local && says(&next) != says(world) {
            return next;
        }
    }
}

/// Makes the API server's objects those of a world.
fn tell(api: &ApiServer, before: &World, now: &World) -> anyhow::Result<()> {
    let (old, new) = (all(before), all(now));
    for (resource, namespace, name) in old.iter().map(|(id, _)| id) {
        if !new.iter().any(|((r, ns, n), _)| (r, ns, n) == (resource, namespace, name)) {
            api.delete(*resource, namespace, name)?;
        }
    }
    for (id, object) in &new {
        let (resource, ..) = id;
        match old.iter().find(|(known, _)| known == id) {
            Some((_, known)) if known == object => {}
            Some(_) => drop(api.update(*resource, object.clone())?),
            None => drop(api.create(*resource, object.clone())?),
        }
    }
    Ok(())
}

type Id = (Resource, String, String);

/// All objects of a world that concern its pods, by resource, namespace and name.
fn all(world: &World) -> Vec<(Id, Value)> {
    let mut all = Vec::new();
    for (name, labels) in &world.namespaces {
        let labels = json!({"metadata": {"labels": labels}});
        let object = objects::merged(objects::namespace(name), &labels);
        all.push(((Resource::Namespaces, String::new(), name.clone()), object));
    }
    for (uid, pod) in &world.pods {
        let ports = pod.ports.iter().map(
            |(name, protocol, number)| json!({"name": name, "protocol": protocol, "containerPort": number}),
        );
        let vif = json!({"interfaces": [{"addresses": pod.addresses}]}).to_string();
        let more = json!({
            "metadata": {"uid": uid, "labels": pod.labels, "annotations": {VIF: vif}},
            "spec": {"containers": [{"name": "main", "ports": ports.collect::<Vec<_>>()}]},
        });
        let object = objects::merged(objects::pod(&pod.namespace, &pod.name, NODE), &more);
        all.push(((Resource::Pods, pod.namespace.clone(), pod.name.clone()), object));
    }
    for ((namespace, name), spec) in &world.policies {
        let object = objects::network_policy(namespace, name, spec.clone());
        all.push(((Resource::NetworkPolicies, namespace.clone(), name.clone()), object));
    }
    for (name, spec) in &world.cluster_policies {
        let object = objects::cluster_network_policy(name, spec.clone());
        all.push(((Resource::ClusterNetworkPolicies, String::new(), name.clone()), object));
    }
    all
}

/// Questions about two pods each, with the oracle's answers: half of them are denials, if there are enough.
fn samples<'a>(rng: &mut Rng, world: &World, pods: &'a [(Pod, Servers)]) -> Vec<Sample<'a>> {
    let pods = || pods.iter().map(|(pod, _)| pod);
    let mut all = Vec::new();
    for (from, to) in pods().flat_map(|from| pods().map(move |to| (from, to))) {
        let same_family = |own: &IpAddr| to.addresses.iter().find(|it| it.is_ipv4() == own.is_ipv4());
        let pairs = from.addresses.iter().filter_map(|own| Some((*own, *same_family(own)?)));
        for (own, address) in pairs.filter(|_| from.uid != to.uid) {
            for (by, traffic) in
                PORTS.iter().flat_map(|it| [(By::Tcp(*it), (TCP, *it)), (By::Udp(*it), (UDP, *it))])
            {
                let ends = (End::Pod(&from.uid, own), End::Pod(&to.uid, address));
                let expected = oracle::allowed(world, ends.0, ends.1, traffic);
                all.push(Sample { from, to, address, by, expected });
            }
        }
    }
    rng.shuffle(&mut all);
    let (allowed, mut samples): (Vec<_>, Vec<_>) = all.into_iter().partition(|it| it.expected);
    samples.truncate(SAMPLES / 2);
    samples.extend(allowed.into_iter().take(SAMPLES - samples.len()));
    samples
}

/// Waits until each answer is the oracle's, and then asks once more: at the same time, because what is denied
/// has no answer.
fn compare(samples: &[Sample<'_>]) -> anyhow::Result<()> {
    let at_once = |ask: &(dyn Fn(&Sample<'_>) -> anyhow::Result<()> + Sync)| {
        thread::scope(|scope| {
            let threads: Vec<_> = samples.iter().map(|it| scope.spawn(move || ask(it))).collect();
            threads.into_iter().try_for_each(|it| it.join().map_err(|_| anyhow!("a thread panicked"))?)
        })
    };
    at_once(&|it| wait_until(&it.question(), TIMEOUT, || Ok(it.answer()? == it.expected)))?;
    at_once(&|it| {
        ensure!(it.answer()? == it.expected, "no more: {}", it.question());
        Ok(())
    })
}

// === impl Sample ===

impl Sample<'_> {
    fn answer(&self) -> anyhow::Result<bool> {
        reaches(self.from.path(), self.address, self.by)
    }

    fn question(&self) -> String {
        let Self { from, to, address, by, expected } = self;
        let name = |pod: &Pod| format!("{}/{}", pod.namespace, pod.name);
        format!("{} reaches {} ({address}) by {by:?}: {expected}", name(from), name(to))
    }
}
