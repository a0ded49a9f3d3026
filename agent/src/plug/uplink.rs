//! The MTU of the node's uplink, which limits the MTU of every pod.

use std::{
    convert::Infallible,
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use rtnetlink::packet_route::{
    AddressFamily,
    route::{RouteAttribute, RouteHeader, RouteMessage},
};
use tokio::{sync::watch, task::spawn_blocking, time::sleep};

use super::{
    PlugError,
    default_route::{DefaultRoute, Links},
    host, monitor,
    monitor::{Monitor, Notification},
    netconf::{Forwarding, Scope},
    netlink::{NetlinkError, Socket},
    route_scan::{RT_TABLE_MAIN, scan},
};
use crate::health::Reporter;

/// The MTU of the uplink: the interface of the node's default route. Clones share the values.
#[derive(Debug, Clone)]
pub struct Uplink(Arc<Mtus>);

/// In bytes.
#[derive(Debug)]
struct Mtus {
    uplink: AtomicU32,
    /// The largest packet that gets to the pods of every other node; `None` until those are known.
    nodes: Mutex<Option<u32>>,
    /// The smaller of both: the MTU of pods' routes.
    path: watch::Sender<Option<u32>>,
}

/// The node's default routes.
#[derive(Debug)]
struct DefaultRoutes {
    /// `None` without a default route.
    mtu: Option<u32>,
    /// The interfaces of the IPv4 and of the IPv6 default routes, by priority.
    interfaces: [Vec<u32>; 2],
    links: Links,
}

/// The wait before a retry, after the kernel refused.
const RETRY: Duration = Duration::from_secs(5);
/// How long notifications are collected before one read serves all of them.
const GATHER: Duration = Duration::from_millis(100);

/// The MTU of a node without a default route: Ethernet's.
const ETHERNET: u32 = 1500;
/// The least that a link with IPv6 may have (RFC 8200, 5) and that one with IPv4 must carry (RFC 791, 3.2).
const LEAST_IPV6: u32 = 1280;
const LEAST_IPV4: u32 = 68;
/// The most that veth accepts (`ETH_MAX_MTU` in `linux/if_ether.h`); loopback, for one, has more.
const MOST: u32 = 65535;

// === impl Uplink ===

impl Uplink {
    /// Reads the current MTU.
    ///
    /// # Errors
    /// If the kernel refuses a dump.
    pub fn detect() -> Result<Self, NetlinkError> {
        let mtu = DefaultRoutes::read()?.mtu;
        match mtu {
            Some(mtu) => tracing::info!(mtu, "new pods get the uplink's MTU"),
            None => tracing::warn!(
                mtu = ETHERNET,
                "no uplink: the node has no default route; new pods get this MTU"
            ),
        }
        Ok(Self::with_mtu(mtu.unwrap_or(ETHERNET)))
    }

    fn with_mtu(mtu: u32) -> Self {
        let path = watch::Sender::new(None);
        Self(Arc::new(Mtus { uplink: AtomicU32::new(mtu), nodes: Mutex::default(), path }))
    }

    /// The MTU in bytes for a pod: the uplink's, or a smaller requested one.
    ///
    /// # Errors
    /// If the requested MTU is larger than the uplink's, or too small for an address family of the pod.
    pub fn mtu_for(&self, requested: Option<u32>, has_ipv6: bool) -> Result<u32, PlugError> {
        let uplink = self.0.uplink.load(Ordering::Relaxed);
        let least = if has_ipv6 { LEAST_IPV6 } else { LEAST_IPV4 };
        let mtu = requested.unwrap_or(uplink.min(MOST));
        if mtu > uplink {
            return Err(PlugError::Mtu { mtu, why: format!("the node's uplink carries at most {uplink}") });
        }
        if mtu < least {
            return Err(PlugError::Mtu { mtu, why: format!("the pod's addresses need at least {least}") });
        }
        Ok(mtu)
    }

    /// The MTU in bytes of pods' routes: what gets to every other node. `None` until the nodes are known.
    pub fn path_mtu(&self) -> watch::Receiver<Option<u32>> {
        self.0.path.subscribe()
    }

    /// The value of [`Self::path_mtu`].
    pub fn current_path_mtu(&self) -> Option<u32> {
        *self.0.path.borrow()
    }

    /// Takes over the largest packet, in bytes, that gets to the pods of every other node; `None` without
    /// other nodes.
    pub fn set_nodes_mtu(&self, mtu: Option<u32>) {
        *self.0.nodes() = Some(mtu.unwrap_or(MOST));
        self.0.update_path();
    }

    /// Follows links, routes and addresses until the task is dropped: updates the MTU for new pods, reports
    /// the state of the default routes to `default_route`, and passes the node's own addresses to `own`.
    pub async fn follow(self, health: Reporter, mut default_route: DefaultRoute, own: impl Fn(&[IpAddr])) {
        loop {
            let Err(error) = self.follow_until_failure(&health, &mut default_route, &own).await;
            health.unhealthy(format!("cannot follow changes of the uplink's MTU; retrying: {error:#}"));
            sleep(RETRY).await;
        }
    }

    /// Takes over the uplink's MTU, or keeps the last one and says so.
    fn update(&self, uplink: Option<u32>) -> Result<u32, String> {
        let Some(mtu) = uplink else {
            let kept = self.0.uplink.load(Ordering::Relaxed);
            return Err(format!("no uplink: the node has no default route; new pods get an MTU of {kept}"));
        };
        let before = self.0.uplink.swap(mtu, Ordering::Relaxed);
        self.0.update_path();
        if before != mtu {
            tracing::info!(before, mtu, "the uplink's MTU has changed; new pods get it");
        }
        Ok(mtu)
    }

    async fn follow_until_failure(
        &self,
        health: &Reporter,
        default_route: &mut DefaultRoute,
        own: impl Fn(&[IpAddr]),
    ) -> anyhow::Result<Infallible> {
        let mut monitor = Monitor::open(monitor::UPLINK)?;
        loop {
            let read = || Ok::<_, NetlinkError>((DefaultRoutes::read()?, host::addresses()?));
            let (routes, addresses) = spawn_blocking(read).await??;
            own(&addresses);
            match self.update(routes.mtu) {
                Ok(mtu) => health.healthy(format!("following changes; the MTU is {mtu}")),
                Err(why) => health.unhealthy(why),
            }
            default_route.update(&routes.interfaces, &routes.links);
            let mut may_change = false;
            while !may_change {
                monitor.arrival().await?;
                // Addresses and routes often change in bursts.
                sleep(GATHER).await;
                monitor.read(|notification| may_change |= routes.may_change_by(notification))?;
            }
        }
    }
}

// === impl Mtus ===

impl Mtus {
    fn update_path(&self) {
        let nodes = self.nodes();
        let path = nodes.map(|nodes| nodes.min(self.uplink.load(Ordering::Relaxed)));
        self.path.send_if_modified(|current| {
            let changed = *current != path;
            *current = path;
            changed
        });
    }

    fn nodes(&self) -> MutexGuard<'_, Option<u32>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl DefaultRoutes ===

impl DefaultRoutes {
    /// Reads the best default route of each family. If their MTUs differ, the smaller one counts.
    fn read() -> Result<Self, NetlinkError> {
        let mut host = Socket::open()?;
        let links = Links::list(&mut host)?;
        let mut interfaces = [Vec::new(), Vec::new()];
        let mut mtu = None;
        for (family, interfaces) in
            [AddressFamily::Inet, AddressFamily::Inet6].into_iter().zip(&mut interfaces)
        {
            let add = |found: &mut Vec<_>, route: &_| found.extend(default_route(route));
            let mut defaults = scan(&mut host, (family, RT_TABLE_MAIN), |to| to.prefix_len() == 0, add)?;
            defaults.sort_by_key(|(priority, _)| *priority);
            *interfaces = defaults.into_iter().flat_map(|(_, interfaces)| interfaces).collect();
            let best = interfaces.first().and_then(|ifindex| links.mtu(*ifindex));
            mtu = mtu.into_iter().chain(best).min();
        }
        Ok(Self { mtu, interfaces, links })
    }

    /// Every plug causes a dozen notifications; none of them is about an uplink.
    fn may_change_by(&self, notification: Notification) -> bool {
        let is_uplink = |ifindex| self.interfaces.iter().any(|interfaces| interfaces.contains(&ifindex));
        match notification {
            Notification::Link(ifindex) => is_uplink(ifindex),
            // Of any interface: the addresses are the node's own. Host ends of pods have none.
            Notification::Address | Notification::DefaultRoute | Notification::Overrun => true,
            Notification::Forwarding(Forwarding { is_ipv4, scope: Scope::Interface(ifindex), .. }) => {
                is_ipv4 && is_uplink(ifindex)
            }
            Notification::Forwarding(_)
            | Notification::OnLink(_)
            | Notification::RangeRouteRemoved
            | Notification::RouteReplaced(_) => false,
        }
    }
}

/// Priority and interfaces of a default route of the main table. A blackhole route has no interface.
pub(super) fn default_route(route: &RouteMessage) -> Option<(u32, Vec<u32>)> {
    if route.header.destination_prefix_length != 0 || route.header.table != RouteHeader::RT_TABLE_MAIN {
        return None;
    }
    let mut priority = 0;
    let mut interfaces = Vec::new();
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Priority(it) => priority = *it,
            RouteAttribute::Oif(index) => interfaces.push(*index),
            RouteAttribute::MultiPath(hops) => interfaces.extend(hops.iter().map(|hop| hop.interface_index)),
            _ => {}
        }
    }
    Some((priority, interfaces)).filter(|(_, interfaces)| !interfaces.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_uplink_is_reported_and_new_pods_keep_its_mtu() {
        let uplink = Uplink::with_mtu(1400);
        assert_eq!(uplink.update(Some(9000)), Ok(9000));
        let why = uplink.update(None).unwrap_err();
        assert!(why.contains("the node has no default route") && why.contains("9000"), "{why}");
        assert_eq!(uplink.mtu_for(None, false).unwrap(), 9000);
    }

    #[test]
    fn the_mtu_of_pods_routes_is_the_smaller_of_the_uplinks_and_the_nodes() {
        let uplink = Uplink::with_mtu(1500);
        let path = uplink.path_mtu();
        uplink.update(Some(1400)).unwrap();
        assert_eq!(*path.borrow(), None, "the nodes are not known");
        uplink.set_nodes_mtu(None);
        assert_eq!(*path.borrow(), Some(1400));
        uplink.set_nodes_mtu(Some(1350));
        assert_eq!(*path.borrow(), Some(1350));
        uplink.update(Some(1300)).unwrap();
        assert_eq!(*path.borrow(), Some(1300));
    }
}
