//! A cluster of three nodes on one machine: two on one segment, the third behind a router.
//!
//! Each node has network and mount namespaces of its own, and so its own agent, socket, state and maps. The
//! nodes share `/run/netns`, so that a pod's namespace has one name everywhere. The thread of the test stays
//! outside, and enters a node for a while ([`Member::on`]).

pub mod crowd;
mod member;
pub mod underlay;

use std::{fs, path::PathBuf, rc::Rc, thread};

use crate::{
    apiserver::{ApiServer, Options},
    sys,
    wire::Wire,
    world::World,
};

pub use member::{Member, destination};

/// The cluster, its API server and its underlay.
pub struct Fabric {
    /// Node 1 and node 2 share a segment; node 3 is behind a router.
    pub nodes: [Member; 3],
    pub api: Rc<ApiServer>,
}

/// Runs `run` on a fabric without Node objects and agents. The fabric is removed afterwards, also on failure.
///
/// # Errors
/// The closure's error, or a failure to set up the fabric.
pub fn on_fabric<T: Send>(run: impl FnOnce(&Fabric) -> anyhow::Result<T> + Send) -> anyhow::Result<T> {
    let body = || -> anyhow::Result<T> {
        let fabric = Fabric::three()?;
        let result = run(&fabric);
        fabric.nodes.iter().fold(result, |result, node| node.end(result))
    };
    // The namespaces belong to the thread and end with it.
    match thread::scope(|scope| scope.spawn(body).join()) {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// As [`on_fabric`], with three Node objects and agents that are ready for pods. `flags` are additional ones
/// of all agents.
///
/// # Errors
/// The closure's error, or a failure to set up the fabric.
pub fn with_fabric<T: Send>(
    flags: &[&str],
    run: impl FnOnce(&Fabric) -> anyhow::Result<T> + Send,
) -> anyhow::Result<T> {
    on_fabric(|fabric| {
        fabric.nodes.iter().try_for_each(Member::register)?;
        fabric.nodes.iter().try_for_each(|node| node.begin_agent(flags))?;
        fabric.nodes.iter().try_for_each(Member::wait_until_ready)?;
        run(fabric)
    })
}

// === impl Fabric ===

impl Fabric {
    fn three() -> anyhow::Result<Self> {
        sys::leave_host()?;
        sys::mount_private("tmpfs", "/run")?;
        fs::create_dir_all("/run/netns")?;
        sys::mount_private("tmpfs", "/run/netns")?;
        sys::share_mounts("/run/netns")?;
        underlay::make()?;
        let listen = underlay::API.parse()?;
        let start = || ApiServer::start(Options { listen, ..Options::default() });
        let api = Rc::new(sys::in_netns(&underlay::path(underlay::CONTROL), start)?);
        let node = |name, host, is_far| Member::make(name, host, is_far, Rc::clone(&api));
        let nodes = [node("node-1", 1, false)?, node("node-2", 2, false)?, node("node-3", 3, true)?];
        Ok(Self { nodes, api })
    }

    /// The world behind the router, which knows no pods.
    pub fn world(&self) -> World {
        World::at(underlay::path(underlay::WORLD))
    }

    /// The path of the network namespace of a stranger on the segment.
    pub fn stranger(&self) -> PathBuf {
        underlay::path(underlay::STRANGER)
    }

    /// The stranger's packet socket on the segment.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn forger(&self) -> anyhow::Result<Wire> {
        Wire::open(&self.stranger(), "eth0")
    }
}
