//! `ferrulectl status`: the state of every component.

use ferrule_proto::agent::{Component as Shown, GetStatusResponse, component::State as ShownState};

use crate::health::{Affects, Component, Health, State};

pub(super) fn show(health: &Health, node_name: &str) -> GetStatusResponse {
    let show_one = |(name, component): (&'static str, Component)| Shown {
        name: name.to_owned(),
        state: show_state(component.state).into(),
        reason: component.why,
        since_ms: component.since_ms,
        needed_for_add: component.affects == Affects::NewPods,
        needed_by_pods: component.affects == Affects::AllPods,
    };
    GetStatusResponse {
        ready: health.is_ready(),
        components: health.components().into_iter().map(show_one).collect(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        node: node_name.to_owned(),
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
    use super::*;

    #[test]
    fn status_lists_each_component_with_its_state_and_whether_add_needs_it() {
        let health = Health::default();
        let ranges = health.component("ranges", true, "waiting for the node's spec.podCIDRs");
        let pods = health.component("pods", false, "listing");
        pods.unhealthy("connection refused");
        let status = show(&health, "node-1");
        assert_eq!((status.ready, status.node.as_str()), (false, "node-1"));
        assert_eq!(status.version, env!("CARGO_PKG_VERSION"));
        let shown: Vec<_> =
            status.components.iter().map(|it| (it.name.as_str(), it.state(), it.needed_for_add)).collect();
        assert_eq!(shown, [("pods", ShownState::Unhealthy, false), ("ranges", ShownState::Starting, true)]);
        assert_eq!(status.components[0].reason, "connection refused");
        assert_eq!(status.components[1].since_ms, health.components()["ranges"].since_ms);
        ranges.healthy("10.0.0.0/24");
        assert!(show(&health, "").ready, "readiness does not depend on the pods' watch");
    }
}
