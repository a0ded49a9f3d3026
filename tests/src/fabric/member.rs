//! A node of a cluster of several.

use std::{
    cell::RefCell,
    collections::BTreeSet,
    net::IpAddr,
    path::{Path, PathBuf},
    process::Command,
    rc::Rc,
    time::Duration,
};

use anyhow::{Context as _, ensure};

use super::underlay::{self, FAR, Network, SEGMENT};
use crate::{
    apiserver::{ApiServer, Resource, objects},
    capture::Capture,
    cluster::{self, KUBECONFIG},
    dist,
    home::Home,
    node::Node,
    others,
    pod::Pod,
    sys,
};

/// A node with its own namespaces, agent, pods, and place in the underlay.
pub struct Member {
    pub name: &'static str,
    /// IPv4 and IPv6, of the underlay.
    pub addresses: [IpAddr; 2],
    /// IPv4 and IPv6, for pods.
    pub ranges: [String; 2],
    network: Network,
    host: u8,
    home: Home,
    /// `None` once the node has ended.
    node: RefCell<Option<Node>>,
    api: Rc<ApiServer>,
}

const READY: Duration = Duration::from_secs(20);
/// Pods of a node have numbers from the node's own number times this.
const PODS: u32 = 1000;

// === impl Member ===

impl Member {
    /// Makes a node and connects it: to the segment, or behind the router.
    pub(super) fn make(
        name: &'static str,
        host: u8,
        is_far: bool,
        api: Rc<ApiServer>,
    ) -> anyhow::Result<Self> {
        let home = Home::make(&underlay::path(name))?;
        let network = if is_far { FAR } else { SEGMENT };
        plug(name, network, host)?;
        let node = home.enter(|| {
            sys::mount_around("tmpfs", "/run", "/run/netns")?;
            api.kubeconfig(Path::new(KUBECONFIG), None)?;
            Node::without_uplink(u32::from(host) * PODS)
        })?;
        let [v4, v6] = network.addresses(host);
        Ok(Self {
            name,
            addresses: [v4.parse()?, v6.parse()?],
            ranges: [format!("10.244.{host}.0/24"), format!("fd00:10:244:{host}::/64")],
            network,
            host,
            home,
            node: RefCell::new(Some(node)),
            api,
        })
    }

    /// Runs a closure on the node: files, commands and sockets are the node's.
    ///
    /// # Errors
    /// The closure's error.
    pub fn on<T>(&self, run: impl FnOnce(&mut Node) -> anyhow::Result<T>) -> anyhow::Result<T> {
        let mut node = self.node.borrow_mut();
        let node = node.as_mut().with_context(|| format!("{} has ended", self.name))?;
        self.home.enter(|| run(node)).with_context(|| format!("on {}", self.name))
    }

    /// Runs a command line, split at whitespace, on the node.
    ///
    /// # Errors
    /// If the command fails.
    pub fn run(&self, line: &str) -> anyhow::Result<String> {
        self.home.enter(|| sys::run(line)).with_context(|| format!("on {}", self.name))
    }

    /// The path of the node's network namespace, for sockets of the node itself.
    pub fn path(&self) -> &Path {
        self.home.network()
    }

    /// The MAC of the node's uplink.
    pub const fn mac(&self) -> [u8; 6] {
        underlay::mac(self.host)
    }

    /// Creates the Node object, with the node's addresses and ranges.
    ///
    /// # Errors
    /// If a Node of this name exists.
    pub fn register(&self) -> anyhow::Result<()> {
        let ranges: Vec<_> = self.ranges.iter().map(String::as_str).collect();
        self.register_with(&ranges)
    }

    /// As [`Self::register`], with other ranges.
    ///
    /// # Errors
    /// As [`Self::register`].
    pub fn register_with(&self, ranges: &[&str]) -> anyhow::Result<()> {
        self.register_as(ranges, &self.addresses)
    }

    /// As [`Self::register`], with other ranges and addresses.
    ///
    /// # Errors
    /// As [`Self::register`].
    pub fn register_as(&self, ranges: &[&str], addresses: &[IpAddr]) -> anyhow::Result<()> {
        let object = objects::with_addresses(objects::node(self.name, ranges), addresses);
        self.api.create(Resource::Nodes, object)?;
        Ok(())
    }

    /// Deletes the Node object.
    ///
    /// # Errors
    /// If there is none.
    pub fn unregister(&self) -> anyhow::Result<()> {
        self.api.delete(Resource::Nodes, "", self.name)?;
        Ok(())
    }

    /// Starts the agent with these flags, besides those that name the API server and the node, and does not
    /// wait.
    ///
    /// # Errors
    /// If an agent runs already.
    pub fn begin_agent(&self, flags: &[&str]) -> anyhow::Result<()> {
        let own = ["--kubeconfig", KUBECONFIG, "--node-name", self.name];
        self.on(|node| {
            node.use_flags(&[&own[..], flags].concat());
            node.begin_start()
        })
    }

    /// Waits until the agent is ready for pods.
    ///
    /// # Errors
    /// If the agent does not become ready.
    pub fn wait_until_ready(&self) -> anyhow::Result<()> {
        self.on(|node| {
            node.wait_until_it_serves()?;
            sys::wait_until("the agent is ready", READY, || {
                let (code, body) = node.http("/readyz?verbose")?;
                ensure!(code == 200, "{body}");
                Ok(true)
            })
        })
    }

    /// Creates a pod in the API, bound to the node, and its network namespace. The pod is not attached.
    ///
    /// # Errors
    /// If either cannot be created.
    pub fn pod(&self, name: &str, annotations: &[(&str, &str)]) -> anyhow::Result<Pod> {
        let pod = self.on(|node| node.pod(name))?;
        cluster::schedule(&self.api, self.name, &pod, annotations)?;
        Ok(pod)
    }

    /// Creates a pod and attaches it by the shim.
    ///
    /// # Errors
    /// If either step fails.
    pub fn attach(&self, name: &str) -> anyhow::Result<Pod> {
        let mut pod = self.pod(name, &[])?;
        let result = self.on(|node| node.runtime()?.add(&pod))?;
        pod.attached(&result)?;
        Ok(pod)
    }

    /// The output of `ferrulectl status`, whatever the state of the agent.
    ///
    /// # Errors
    /// If `ferrulectl` cannot be started.
    pub fn status(&self) -> anyhow::Result<String> {
        let output = self.on(|_| Ok(Command::new(dist::binary("ferrulectl")?).arg("status").output()?))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Sends one ping from the node itself and requires a reply.
    ///
    /// # Errors
    /// If no reply arrives within two seconds.
    pub fn ping(&self, to: IpAddr) -> anyhow::Result<String> {
        self.run(&format!("ping -n -c 1 -W 2 {to}"))
    }

    /// The agent's routes to other nodes' ranges, as `ip route` prints them.
    ///
    /// # Errors
    /// If the node has ended.
    pub fn node_routes(&self) -> anyhow::Result<BTreeSet<String>> {
        self.home.enter(others::routes).with_context(|| format!("on {}", self.name))
    }

    /// The prefixes in the agent's map `NODES`.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn node_rows(&self) -> anyhow::Result<BTreeSet<String>> {
        self.home.enter(others::rows).with_context(|| format!("on {}", self.name))
    }

    /// The prefixes in the index of the map `NODES`.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn indexed_rows(&self) -> anyhow::Result<BTreeSet<String>> {
        self.home.enter(others::indexed).with_context(|| format!("on {}", self.name))
    }

    /// Starts a capture of what the node sends and receives, at the other end of the uplink's cable.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn capture(&self) -> anyhow::Result<Capture> {
        let (namespace, interface) = self.port();
        Capture::start(&namespace, interface)
    }

    /// The other end of the uplink's cable: namespace and interface.
    pub fn port(&self) -> (PathBuf, &'static str) {
        if self.network.name == SEGMENT.name {
            (underlay::path(underlay::SWITCH), self.name)
        } else {
            (underlay::path(underlay::ROUTER), self.network.name)
        }
    }

    /// Configures the uplink as at the start: addresses and default routes, which the kernel deletes with a
    /// link that goes down.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn configure_uplink(&self) -> anyhow::Result<()> {
        self.configure("uplink")
    }

    /// Gives another interface what the uplink has at the start.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn configure(&self, interface: &str) -> anyhow::Result<()> {
        self.network.join(self.name, interface, self.host)
    }

    /// Makes the uplink and its cable again, which were deleted.
    ///
    /// # Errors
    /// If the uplink exists.
    pub fn plug_again(&self) -> anyhow::Result<()> {
        plug(self.name, self.network, self.host)
    }

    /// Stops the agent. Adds its log to an error.
    pub(super) fn end<T>(&self, result: anyhow::Result<T>) -> anyhow::Result<T> {
        match self.node.borrow_mut().take() {
            Some(node) => self.home.enter(|| node.end(result)),
            None => result,
        }
    }
}

/// Connects a node to its network.
fn plug(name: &str, network: Network, host: u8) -> anyhow::Result<()> {
    if network.name == SEGMENT.name {
        underlay::add_to_segment(name, host)
    } else {
        underlay::add_behind_router(name, host)
    }
}

/// The destination of a route that `ip route` prints.
pub fn destination(route: &str) -> &str {
    route.split(' ').next().unwrap_or_default()
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Some(node) = self.node.borrow_mut().take() {
            // On panic: the agent ends with its node, whose log is in the node's mount namespace.
            let _ = self.home.enter(|| {
                drop(node);
                Ok(())
            });
        }
    }
}
