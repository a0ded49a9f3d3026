//! What the kernel has for the node's ranges, beside the interfaces of single pods: forwarding, unreachable
//! routes, and the table that masquerades.

use std::{
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use ipnet::IpNet;
use tokio::{
    sync::watch::{Receiver, channel},
    task::spawn_blocking,
    time::{MissedTickBehavior, interval},
};

use super::usable::check;
use crate::{
    chain::chain,
    config::Config,
    decide::VifSource,
    ipam::{PodCidrs, Ranges},
    masquerade::{Masquerade, Pods},
    nodes::Nodes,
    plug::{connected, host, range_route},
    registry::Registry,
};

/// Follows the registry's ranges and the pods outside of them.
pub(super) struct LocalNetwork {
    registry: Arc<Registry>,
    masquerade: Arc<Masquerade>,
    /// Addresses that others assign, and route.
    elsewhere: Elsewhere,
    /// The nodes of the cluster, once they are watched.
    nodes: OnceLock<Receiver<Arc<Nodes>>>,
    /// One thread at a time changes anything.
    routes: Mutex<Routes>,
}

enum Elsewhere {
    /// Neutron's.
    Everything,
    /// Of annotations.
    Networks(Vec<IpNet>),
}

/// The unreachable routes.
#[derive(Default)]
struct Routes {
    /// What they were made for; `None` after a failure.
    of: Option<Vec<IpNet>>,
    retry: Option<Instant>,
}

/// Nothing on the path of a call changes anything here; the file of ip-masq-agent and the pods outside of the
/// ranges are compared this often.
const PERIOD: Duration = Duration::from_secs(1);
/// After the kernel has refused a route.
const RETRY: Duration = Duration::from_secs(10);

// === impl LocalNetwork ===

impl LocalNetwork {
    pub fn new(config: &Config, registry: Arc<Registry>, masquerade: Arc<Masquerade>) -> Self {
        let elsewhere = match config.vif_source {
            VifSource::Kuryr => Elsewhere::Everything,
            VifSource::Auto | VifSource::Annotation | VifSource::Ipam => {
                Elsewhere::Networks(config.vif_cidrs.clone())
            }
        };
        let nodes = OnceLock::new();
        if let Some(ranges) = &config.pod_cidrs {
            // There are no others, and no list to wait for.
            let _ = nodes.set(channel(Arc::new(Nodes::only(ranges.nets()))).1);
        }
        Self { registry, masquerade, elsewhere, nodes, routes: Mutex::default() }
    }

    /// Prepares the node for ranges, and then hands them to the IPAM: with the ranges, ADDs begin. Routes and
    /// table are retried if the kernel refuses them. Blocks.
    ///
    /// # Errors
    /// If a range overlaps a network of the node, or forwarding cannot be enabled.
    pub fn use_ranges(&self, ranges: PodCidrs) -> anyhow::Result<()> {
        let mut routes = self.routes();
        check(&ranges, connected::networks()?)?;
        let own = host::addresses()?;
        host::forward(ranges.nets())?;
        self.apply(&mut routes, Some(ranges.nets()));
        self.registry.set_ranges(ranges, &own);
        Ok(())
    }

    /// Runs until dropped. Packets to `nodes` and their pods keep their source.
    pub async fn follow(self: Arc<Self>, mut nodes: Receiver<Arc<Nodes>>) {
        let _ = self.nodes.set(nodes.clone());
        let mut are_final = false;
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                changed = nodes.changed(), if !are_final => are_final = changed.is_err(),
            }
            // Work on the pool each second would wake its threads in turn, so that none ever ends.
            if !self.is_due() {
                continue;
            }
            let this = Arc::clone(&self);
            // Fails while the agent stops.
            let _ = spawn_blocking(move || this.update()).await;
        }
    }

    /// Whether [`Self::update`] would change or report anything. Does not block.
    fn is_due(&self) -> bool {
        let Ok(routes) = self.routes.try_lock() else { return true };
        let ranges = self.registry.ranges().borrow().clone();
        if ranges == Ranges::Awaited {
            return self.masquerade.is_due(None);
        }
        routes.is_due(ranges.nets()) || self.masquerade.is_due(self.pods(ranges.nets()).as_ref())
    }

    /// Whose packets are masqueraded, and to whom not; `None` before the nodes of the cluster are known.
    fn pods(&self, ranges: &[IpNet]) -> Option<Pods> {
        let nodes = self.nodes.get()?.borrow();
        if !nodes.is_synced {
            return None;
        }
        let all = nodes.own.iter().chain(&nodes.others);
        let addresses = all.flat_map(|node| &node.addresses).copied().collect();
        let elsewhere = nodes.others.iter().flat_map(|node| &node.ranges).copied().collect();
        drop(nodes);
        let outside = self.registry.addresses_outside(ranges);
        let pods = Pods { ranges: ranges.to_vec(), outside, nodes: addresses, elsewhere };
        Some(self.elsewhere.without(pods))
    }

    /// Applies what has changed. Blocks.
    pub fn update(&self) {
        let mut routes = self.routes();
        let ranges = self.registry.ranges().borrow().clone();
        self.apply(&mut routes, (ranges != Ranges::Awaited).then(|| ranges.nets()));
    }

    /// `ranges`: `None` while they are unknown; routes and table of an earlier agent then stay.
    fn apply(&self, routes: &mut Routes, ranges: Option<&[IpNet]>) {
        let Some(ranges) = ranges else { return self.masquerade.update(None) };
        if routes.is_due(ranges) {
            *routes = keep_routes(ranges);
        }
        self.masquerade.update(self.pods(ranges).as_ref());
    }

    fn routes(&self) -> MutexGuard<'_, Routes> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Routes ===

impl Routes {
    fn is_due(&self, ranges: &[IpNet]) -> bool {
        self.of.as_deref() != Some(ranges) && self.retry.is_none_or(|at| at <= Instant::now())
    }
}

// === impl Elsewhere ===

impl Elsewhere {
    fn without(&self, mut pods: Pods) -> Pods {
        match self {
            Self::Everything => pods.outside.clear(),
            Self::Networks(nets) => {
                pods.outside.retain(|address| !nets.iter().any(|net| net.contains(address)));
            }
        }
        pods
    }
}

fn keep_routes(ranges: &[IpNet]) -> Routes {
    match range_route::keep(ranges) {
        Ok(skipped) => {
            for range_route::Skipped { range, why } in skipped {
                tracing::warn!(
                    %range,
                    why,
                    "the range gets no unreachable route: packets to unused addresses may leave the node"
                );
            }
            Routes { of: Some(ranges.to_vec()), retry: None }
        }
        Err(error) => {
            tracing::warn!(error = chain(&error), "cannot keep the unreachable routes; retrying");
            Routes { of: None, retry: Some(Instant::now() + RETRY) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_others_assign_are_not_masqueraded() {
        let pods = || Pods {
            ranges: vec!["10.0.0.0/24".parse().unwrap()],
            outside: vec!["10.1.0.9".parse().unwrap(), "10.2.0.9".parse().unwrap()],
            ..Pods::default()
        };
        let networks = Elsewhere::Networks(vec!["10.2.0.0/16".parse().unwrap()]);
        assert_eq!(networks.without(pods()).outside, ["10.1.0.9".parse::<std::net::IpAddr>().unwrap()]);
        assert_eq!(Elsewhere::Everything.without(pods()).outside, [] as [std::net::IpAddr; 0]);
        assert_eq!(Elsewhere::Everything.without(pods()).ranges, pods().ranges);
    }
}
