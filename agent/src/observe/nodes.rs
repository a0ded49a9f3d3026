//! `ferrulectl nodes`: the nodes of the cluster, and the ways to them.

use std::{collections::BTreeMap, sync::Arc};

use ferrule_proto::agent::{
    ListNodesRequest, ListNodesResponse, Node as Shown, NodeRange, Refused as ShownRefused, node_range,
};
use ipnet::IpNet;
use nix::net::if_::if_indextoname;
use tokio::task::spawn_blocking;
use tonic::{Response, Status};

use super::reach;
use crate::{
    chain::chain,
    nodes::{Node, Reached, Refused, Report, Taken, Way},
};

pub(super) async fn list(
    decided: Arc<Report>,
    request: ListNodesRequest,
) -> Result<Response<ListNodesResponse>, Status> {
    let shown = spawn_blocking(move || {
        let mut names = Names::default();
        let mut shown = show(&decided, |ifindex| names.of(ifindex));
        if request.ask {
            reach::ask(&mut shown, &request.node);
        }
        shown
    });
    shown.await.map(Response::new).map_err(|error| Status::internal(chain(&error)))
}

/// The names of interfaces, each looked up once.
#[derive(Default)]
struct Names(BTreeMap<u32, String>);

// === impl Names ===

impl Names {
    /// Empty if the interface is gone.
    fn of(&mut self, ifindex: u32) -> String {
        let name = || if_indextoname(ifindex).ok()?.into_string().ok();
        self.0.entry(ifindex).or_insert_with(|| name().unwrap_or_default()).clone()
    }
}

fn show(report: &Report, mut name: impl FnMut(u32) -> String) -> ListNodesResponse {
    let own = report.nodes.own.iter().map(|node| Shown { own: true, ..show_node(node, show_own(node)) });
    let others = report.others().map(|Reached { node, ranges }| {
        let ranges = ranges.into_iter().map(|(range, way)| show_range(range, way, &mut name));
        show_node(node, ranges.collect())
    });
    ListNodesResponse {
        synced: report.nodes.is_synced,
        nodes: own.chain(others).collect(),
        refused: report.nodes.refused.iter().map(show_refused).collect(),
    }
}

fn show_node(node: &Node, ranges: Vec<NodeRange>) -> Shown {
    Shown {
        name: node.name.to_string(),
        uid: node.uid.to_string(),
        zone: node.zone.clone().unwrap_or_default(),
        own: false,
        internal_ips: node.addresses.iter().map(ToString::to_string).collect(),
        ranges,
    }
}

fn show_own(node: &Node) -> Vec<NodeRange> {
    let show_one = |range: &IpNet| NodeRange {
        range: range.to_string(),
        way: node_range::Way::Own.into(),
        ..NodeRange::default()
    };
    node.ranges.iter().map(show_one).collect()
}

fn show_range(range: IpNet, way: Result<Taken, String>, name: &mut impl FnMut(u32) -> String) -> NodeRange {
    let range = range.to_string();
    let Taken { way, slow } = match way {
        Ok(taken) => taken,
        Err(no_way_because) => {
            let way = node_range::Way::None.into();
            return NodeRange { range, way, no_way_because, ..NodeRange::default() };
        }
    };
    let (kind, to) = match way {
        Way::Direct { gateway, .. } => (node_range::Way::Direct, gateway),
        Way::Vxlan { remote, .. } => (node_range::Way::Vxlan, remote),
    };
    NodeRange {
        range,
        way: kind.into(),
        to: to.to_string(),
        interface: name(way.ifindex()),
        mtu: way.mtu(),
        fast_path: slow.is_none(),
        slow_because: slow.unwrap_or_default(),
        ..NodeRange::default()
    }
}

fn show_refused(it: &Refused) -> ShownRefused {
    ShownRefused {
        node: it.node.clone(),
        uid: it.uid.to_string(),
        what: it.what.clone(),
        why: it.why.clone(),
        claimant: it.claimant.clone().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_shows_its_way_the_interface_and_why_packets_pass_the_stack() {
        let range: IpNet = "10.2.0.0/24".parse().unwrap();
        let mut name = |ifindex| format!("eth{ifindex}");
        let direct = Way::Direct { gateway: "192.0.2.2".parse().unwrap(), ifindex: 2, mtu: 1500 };
        let shown = show_range(range, Ok(Taken { way: direct, slow: None }), &mut name);
        assert_eq!(
            (shown.way(), &*shown.to, &*shown.interface),
            (node_range::Way::Direct, "192.0.2.2", "eth2")
        );
        assert_eq!((&*shown.range, shown.mtu, shown.fast_path), ("10.2.0.0/24", 1500, true));
        let remote = "198.51.100.3".parse().unwrap();
        let vxlan =
            Way::Vxlan { remote, source: None, is_usual_source: false, ifindex: 3, next: None, mtu: 1450 };
        let shown = show_range(range, Ok(Taken { way: vxlan, slow: Some("why".to_owned()) }), &mut name);
        assert_eq!((shown.way(), &*shown.to, shown.mtu), (node_range::Way::Vxlan, "198.51.100.3", 1450));
        assert_eq!((shown.fast_path, &*shown.slow_because), (false, "why"));
        let shown = show_range(range, Err("no route".to_owned()), &mut name);
        assert_eq!((shown.way(), &*shown.no_way_because), (node_range::Way::None, "no route"));
        assert_eq!((shown.mtu, shown.fast_path, &*shown.interface), (0, false, ""));
    }

    #[test]
    fn an_interface_that_is_gone_has_no_name() {
        let mut names = Names::default();
        assert_eq!((names.of(1).as_str(), names.of(u32::MAX).as_str()), ("lo", ""));
    }
}
