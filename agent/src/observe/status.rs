//! `ferrulectl status`: the state of every component.

use ferrule_proto::agent::{Component as Shown, GetStatusResponse, Link, component::State as ShownState};

use super::drops;
use crate::{
    health::{Affects, Component, Health, State},
    metrics::LinkCounters,
    nodes::{FastPath, Report},
};

pub(super) fn show(health: &Health, node_name: &str, links: Vec<Link>) -> GetStatusResponse {
    GetStatusResponse {
        ready: health.is_ready(),
        components: components(health, |_| true),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        node: node_name.to_owned(),
        links,
    }
}

/// The components that match, by name.
pub(super) fn components(health: &Health, matches: impl Fn(&Component) -> bool) -> Vec<Shown> {
    let show = |(name, component): (&'static str, Component)| Shown {
        name: name.to_owned(),
        state: show_state(component.state).into(),
        needed_for_add: component.is_needed_for_add(),
        reason: component.why,
        since_ms: component.since_ms,
        needed_by_pods: component.affects == Affects::AllPods,
    };
    health.components().into_iter().filter(|(_, it)| matches(it)).map(show).collect()
}

/// The tunnel device and the uplinks.
pub(super) fn links(counted: Vec<LinkCounters>, decided: &Report) -> Vec<Link> {
    counted.into_iter().map(|link| show_link(decided.fast_path(link.ifindex), link)).collect()
}

fn show_link(fast_path: FastPath, LinkCounters { interface, traffic, .. }: LinkCounters) -> Link {
    let (fast_path, slow_because) = match fast_path {
        FastPath::On => (true, String::new()),
        FastPath::OnByTunnel => (true, "by the tunnel".to_owned()),
        FastPath::Partly(why) => (true, why),
        FastPath::Off(why) => (false, why),
    };
    Link {
        interface,
        packets: traffic.packets,
        bytes: traffic.bytes,
        drops: drops::show(&traffic.drops),
        fast_path,
        slow_because,
    }
}

fn show_state(state: State) -> ShownState {
    match state {
        State::Starting => ShownState::Starting,
        State::Healthy => ShownState::Healthy,
        State::Unhealthy => ShownState::Unhealthy,
    }
}

#[cfg(test)]
mod tests {
    use agent_common::{DropReason, Traffic};

    use super::*;

    #[test]
    fn status_lists_each_component_with_its_state_and_whether_add_needs_it() {
        let health = Health::default();
        let ranges = health.component("ranges", true, "waiting for the node's spec.podCIDRs");
        let pods = health.component("pods", false, "listing");
        pods.unhealthy("connection refused");
        let mut traffic = Traffic { packets: 3, bytes: 300, ..Traffic::default() };
        traffic.drops.add(DropReason::TunnelOuter, 2);
        let link = LinkCounters { ifindex: 2, interface: "eth0".to_owned(), traffic };
        let link = show_link(FastPath::Off("no Ethernet".to_owned()), link);
        let status = show(&health, "node-1", vec![link]);
        assert_eq!((status.ready, status.node.as_str()), (false, "node-1"));
        assert_eq!(status.version, env!("CARGO_PKG_VERSION"));
        let shown: Vec<_> =
            status.components.iter().map(|it| (it.name.as_str(), it.state(), it.needed_for_add)).collect();
        assert_eq!(shown, [("pods", ShownState::Unhealthy, false), ("ranges", ShownState::Starting, true)]);
        assert_eq!(status.components[0].reason, "connection refused");
        assert_eq!(status.components[1].since_ms, health.components()["ranges"].since_ms);
        ranges.healthy("10.0.0.0/24");
        let link = &status.links[0];
        assert_eq!((link.interface.as_str(), link.packets, link.bytes), ("eth0", 3, 300));
        assert_eq!((link.drops[0].reason.as_str(), link.drops[0].packets), ("tunnel_outer", 2));
        assert_eq!((link.fast_path, link.slow_because.as_str()), (false, "no Ethernet"));
        assert!(show(&health, "", Vec::new()).ready, "readiness does not depend on the pods' watch");
    }
}
