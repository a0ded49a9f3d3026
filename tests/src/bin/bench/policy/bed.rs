//! A node whose agent watches an API server, with pods and policies.

use std::{net::IpAddr, time::Duration};

use anyhow::Context as _;
use ferrule_tests::{
    apiserver::{Options, Resource, objects},
    cluster::{Cluster, NODE},
    node::{Node, POD_V6},
    pod::{NAMESPACE, Pod},
    sys,
};
use serde_json::{Value, json};

pub(super) struct Bed<'a> {
    pub(super) node: &'a mut Node,
    pub(super) cluster: Cluster,
}

/// Large enough for all pods of a run: released addresses stay in cooldown.
pub(super) const POD_V4: &str = "10.244.0.0/16";
/// For an agent in a debug build, on a busy machine.
pub(super) const TIMEOUT: Duration = Duration::from_secs(60);

// === impl Bed ===

impl<'a> Bed<'a> {
    /// With an agent and without policies.
    pub(super) fn new(node: &'a mut Node) -> anyhow::Result<Self> {
        let bed = Self::without_agent(node, Options::default())?;
        bed.start()
    }

    pub(super) fn without_agent(node: &'a mut Node, options: Options) -> anyhow::Result<Self> {
        let cluster = Cluster::start(options)?;
        cluster.api.create(Resource::Nodes, objects::node(NODE, &[POD_V4, POD_V6]))?;
        Ok(Self { node, cluster })
    }

    pub(super) fn start(self) -> anyhow::Result<Self> {
        self.cluster.start_agent(self.node, &[])?;
        sys::wait_until("the agent is ready", TIMEOUT, || Ok(self.node.http("/readyz")?.0 == 200))?;
        Ok(self)
    }

    /// Creates a pod with the label `role`, and attaches it.
    pub(super) fn attach(&self, name: &str, role: &str) -> anyhow::Result<Pod> {
        let mut pod = self.node.pod(name)?;
        let more = json!({ "metadata": { "uid": pod.uid, "labels": { "role": role } } });
        let object = objects::merged(objects::pod(NAMESPACE, name, NODE), &more);
        self.cluster.api.create(Resource::Pods, object)?;
        let result = self.node.runtime()?.add(&pod)?;
        pod.attached(&result)?;
        Ok(pod)
    }

    pub(super) fn relabel(&self, pod: &Pod, role: &str) -> anyhow::Result<()> {
        let label = json!({ "metadata": { "labels": { "role": role } } });
        self.cluster.api.patch(Resource::Pods, &pod.namespace, &pod.name, label)?;
        Ok(())
    }

    pub(super) fn create_policy(&self, name: &str, spec: Value) -> anyhow::Result<()> {
        let policy = objects::network_policy(NAMESPACE, name, spec);
        self.cluster.api.create(Resource::NetworkPolicies, policy)?;
        Ok(())
    }

    pub(super) fn delete_policy(&self, name: &str) -> anyhow::Result<()> {
        self.cluster.api.delete(Resource::NetworkPolicies, NAMESPACE, name)?;
        Ok(())
    }

    /// Waits until an echo request is answered, or until none is.
    pub(super) fn wait_until_reached(&self, from: &Pod, to: &Pod, is_reached: bool) -> anyhow::Result<()> {
        let what = format!("{} reaches {}: {is_reached}", from.name, to.name);
        let ping = format!("ping -n -c 1 -W 0.3 {}", v4(to)?);
        sys::wait_until(&what, TIMEOUT, || Ok(from.run(&ping).is_ok() == is_reached))
    }
}

/// A pod's IPv4 address.
pub(super) fn v4(pod: &Pod) -> anyhow::Result<IpAddr> {
    pod.addresses.iter().find(|it| it.is_ipv4()).copied().context("the pod has no IPv4 address")
}
