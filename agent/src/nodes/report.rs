//! What the keeper has decided: the way to each range of another node, and where packets bypass the stack.
//! For administrators, and pure.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use ipnet::IpNet;

use super::{
    Mode, Node, Nodes, Settings,
    ahead::Ahead,
    plan::{Plan, RangeWay},
    way::Way,
};
use crate::plug::nodes::{areas::Areas, changes::Scope, uplink_filter::Bare};

/// The decisions at one moment.
#[derive(Debug)]
pub struct Report {
    /// Those that the decisions are about.
    pub nodes: Arc<Nodes>,
    pub(super) settings: Settings,
    /// `None` until the nodes are known.
    pub(super) plan: Option<Arc<Plan>>,
    /// The index of the tunnel device, if there is one.
    pub(super) tunnel: Option<u32>,
    pub(super) bare: Bare,
    pub(super) ahead: Vec<Ahead>,
    /// Where routes of other programs are known.
    pub(super) areas: Areas,
}

/// The ranges of a node.
#[derive(Debug)]
pub struct Reached<'a> {
    pub node: &'a Node,
    /// Each with the way, or why there is none.
    pub ranges: Vec<(IpNet, Result<Taken, String>)>,
}

/// A way that is in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    pub way: Way,
    /// Why packets between pods do not bypass the stack; `None` if they do.
    pub slow: Option<String>,
}

/// Numbers of ranges of other nodes, by their ways.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub direct: usize,
    pub vxlan: usize,
    pub none: usize,
}

/// Whether packets between pods bypass the stack on a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FastPath {
    On,
    /// For the packets of the tunnel: nothing goes directly there.
    OnByTunnel,
    /// With a reason, for some ranges of other nodes only.
    Partly(String),
    /// With a reason.
    Off(String),
}

const LEFT_TO_OTHERS: &str = "--node-routes is off: others route";

// === impl Report ===

impl Report {
    /// Before the first pass.
    pub(super) fn nothing(settings: Settings) -> Self {
        Self {
            nodes: Arc::default(),
            settings,
            plan: None,
            tunnel: None,
            bare: Bare::new(),
            ahead: Vec::new(),
            areas: Areas::default(),
        }
    }

    /// The uplinks that cannot have filters, and why.
    pub fn bare(&self) -> &Bare {
        &self.bare
    }

    /// Programs of others that run before the agent's on the tunnel device and the uplinks.
    pub fn ahead(&self) -> &[Ahead] {
        &self.ahead
    }

    /// The tunnel device and the interfaces by which packets leave.
    pub fn links(&self) -> BTreeSet<u32> {
        self.plan.iter().flat_map(|plan| plan.uplinks.iter().copied()).chain(self.tunnel).collect()
    }

    /// What concerns the routes: the tunnel device, the interfaces by which packets leave, and the other
    /// nodes.
    pub(super) fn scope(&self) -> Scope {
        let addresses = self.nodes.others.iter().flat_map(|node| node.addresses.iter().copied());
        Scope {
            interfaces: self.links().into_iter().collect(),
            addresses: addresses.collect(),
            areas: self.areas.clone(),
        }
    }

    /// The other nodes, by name.
    pub fn others(&self) -> impl Iterator<Item = Reached<'_>> {
        // No two nodes have the same range.
        let ways: HashMap<_, _> = self.ranges().map(|it| (it.range, it)).collect();
        self.nodes.others.iter().map(move |node| {
            let ranges = node.ranges.iter().map(|range| (*range, self.taken(ways.get(range).copied())));
            Reached { node, ranges: ranges.collect() }
        })
    }

    /// Whether packets between pods bypass the stack on any way.
    pub fn has_fast(&self) -> bool {
        let mut taken = self.ranges().filter_map(|range| self.taken(Some(range)).ok());
        taken.any(|it| it.slow.is_none())
    }

    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for (_, way) in self.others().flat_map(|it| it.ranges) {
            match way {
                Ok(Taken { way: Way::Direct { .. }, .. }) => counts.direct += 1,
                Ok(Taken { way: Way::Vxlan { .. }, .. }) => counts.vxlan += 1,
                Err(_) => counts.none += 1,
            }
        }
        counts
    }

    /// Whether packets between pods bypass the stack on the tunnel device or an uplink.
    pub fn fast_path(&self, ifindex: u32) -> FastPath {
        if self.settings.mode == Mode::Off {
            return FastPath::Off(LEFT_TO_OTHERS.to_owned());
        }
        if let Some(why) = self.plan.as_ref().and_then(|plan| plan.only_stack.clone()) {
            return FastPath::Off(why);
        }
        if let Some(why) = self.bare.get(&ifindex) {
            return FastPath::Off(why.clone());
        }
        let taken: Vec<_> = self.ranges().filter_map(|range| self.taken(Some(range)).ok()).collect();
        let here = taken.iter().filter(|it| self.leaves_by(it.way) == Some(ifindex));
        let slow: Vec<_> = here.map(|it| it.slow.clone()).collect();
        if !slow.is_empty() {
            return FastPath::of(&slow, FastPath::On);
        }
        let carried = taken.into_iter().filter(|it| it.way.ifindex() == ifindex);
        let slow: Vec<_> = carried.map(|it| it.slow.or_else(|| self.slow_outside(it.way))).collect();
        if slow.is_empty() {
            return FastPath::Off("no route to another node's pods leads here".to_owned());
        }
        FastPath::of(&slow, FastPath::OnByTunnel)
    }

    /// Why the tunnel's packets on a way go through the stack of the uplink.
    fn slow_outside(&self, way: Way) -> Option<String> {
        self.plan.as_ref()?.outer(way, &self.bare).err()
    }

    fn ranges(&self) -> impl Iterator<Item = RangeWay<'_>> {
        self.plan.iter().flat_map(|plan| plan.ranges())
    }

    /// The device by which pods' packets leave.
    fn leaves_by(&self, way: Way) -> Option<u32> {
        match way {
            Way::Direct { ifindex, .. } => Some(ifindex),
            Way::Vxlan { .. } => self.tunnel,
        }
    }

    fn taken(&self, range: Option<RangeWay<'_>>) -> Result<Taken, String> {
        let (Some(plan), Some(range)) = (&self.plan, range) else {
            let why = if self.settings.mode == Mode::Off { LEFT_TO_OTHERS } else { "not decided yet" };
            return Err(why.to_owned());
        };
        match range.way.clone() {
            Ok(Way::Vxlan { remote, .. }) if self.tunnel.is_none() => Err(format!(
                "there is no tunnel to {remote}; `ferrulectl status` says why at the component node-routes"
            )),
            Ok(way) => Ok(Taken { way, slow: plan.slow_because(range.range, way, self.tunnel, &self.bare) }),
            Err(why) => Err(why.to_string()),
        }
    }
}

// === impl FastPath ===

impl FastPath {
    /// Of ranges, for each of which there may be a reason against it. `all`: if there is none.
    fn of(slow: &[Option<String>], all: Self) -> Self {
        let reasons: Vec<_> = slow.iter().flatten().collect();
        match reasons.first() {
            None => all,
            Some(why) if reasons.len() == slow.len() => Self::Off((*why).clone()),
            Some(why) => Self::Partly(format!("not to {} of {} ranges: {why}", reasons.len(), slow.len())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashSet};

    use super::*;
    use crate::{nodes::plan::Underlay, plug::nodes::reach::Hop};

    const UPLINK: u32 = 2;
    const TUNNEL: u32 = 9;

    fn node(name: &str, addresses: &[&str], ranges: &[&str]) -> Node {
        Node {
            uid: format!("uid-{name}").into(),
            name: name.into(),
            zone: None,
            addresses: addresses.iter().map(|it| it.parse().unwrap()).collect(),
            ranges: ranges.iter().map(|it| it.parse().unwrap()).collect(),
        }
    }

    /// A neighbour, two nodes behind a router to one of which packets leave from a foreign address, and a
    /// node without a way.
    fn report(mode: Mode, fast_path: bool) -> Report {
        let nodes = Arc::new(Nodes {
            is_synced: true,
            own: Some(node("a", &["192.0.2.1"], &["10.1.0.0/24"])),
            others: vec![
                node("b", &["192.0.2.2"], &["10.2.0.0/24"]),
                node("c", &["198.51.100.3"], &["10.3.0.0/24"]),
                node("d", &["198.51.100.4"], &["10.4.0.0/24"]),
                node("e", &[], &["10.5.0.0/24"]),
            ],
            refused: Vec::new(),
        });
        let hop = |to: &str, gateway: Option<&str>, source: &str| {
            let (gateway, source) = (gateway.map(|it| it.parse().unwrap()), source.parse().ok());
            let (is_spread, has_neighbours) = (false, true);
            let hop = Hop { ifindex: UPLINK, gateway, source, mtu: 1500, is_spread, has_neighbours };
            (to.parse().unwrap(), hop)
        };
        let underlay = Underlay {
            own: BTreeSet::from(["192.0.2.1".parse().unwrap()]),
            hops: HashMap::from([
                hop("192.0.2.2", None, "192.0.2.1"),
                hop("198.51.100.3", Some("192.0.2.254"), "192.0.2.1"),
                hop("198.51.100.4", Some("192.0.2.254"), "192.0.2.9"),
            ]),
            uplinks: BTreeSet::from([UPLINK]),
            ..Underlay::default()
        };
        let settings = Settings { mode, port: 4789, fast_path };
        let plan = Some(Arc::new(Plan::new(settings, &nodes, &underlay)));
        let areas = Areas::around(nodes.others.iter().flat_map(|node| &node.ranges));
        Report { nodes, settings, plan, tunnel: Some(TUNNEL), bare: Bare::new(), ahead: Vec::new(), areas }
    }

    /// One line for each range: the way, its MTU, and whether packets bypass the stack.
    fn lines(report: &Report) -> Vec<String> {
        let line = |(range, way): &(IpNet, Result<Taken, String>)| match way {
            Ok(Taken { way, slow }) => {
                format!("{range} {way}, {}, {}", way.mtu(), slow.as_deref().unwrap_or("fast"))
            }
            Err(why) => format!("{range}: {why}"),
        };
        report.others().flat_map(|it| it.ranges.iter().map(line).collect::<Vec<_>>()).collect()
    }

    #[test]
    fn each_range_has_its_way_or_the_reason_why_there_is_none() {
        let report = report(Mode::Auto, true);
        let expected = [
            "10.2.0.0/24 directly to 192.0.2.2, 1500, fast",
            "10.3.0.0/24 by VXLAN to 198.51.100.3, 1450, fast",
            "10.4.0.0/24 by VXLAN to 198.51.100.4, 1450, packets to the node leave from another address than \
             this Node's InternalIP",
            "10.5.0.0/24: the Node has no usable InternalIP",
        ];
        assert_eq!(lines(&report), expected);
        assert_eq!(report.counts(), Counts { direct: 1, vxlan: 2, none: 1 });
    }

    #[test]
    fn changes_of_uplinks_the_tunnel_device_and_ways_to_nodes_concern_the_routes() {
        let scope = report(Mode::Auto, true).scope();
        assert_eq!(scope.interfaces, HashSet::from([UPLINK, TUNNEL]));
        assert!(scope.addresses.contains(&"192.0.2.2".parse().unwrap()), "{scope:?}");
        assert!(scope.areas.contain(&"10.2.0.7/32".parse().unwrap()), "{scope:?}");
        let settings = report(Mode::Auto, true).settings;
        assert_eq!(Report::nothing(settings).scope(), Scope::default());
    }

    #[test]
    fn without_a_tunnel_device_there_is_no_way_by_the_tunnel() {
        let report = Report { tunnel: None, ..report(Mode::Auto, true) };
        assert!(lines(&report)[1].starts_with("10.3.0.0/24: there is no tunnel to 198.51.100.3"));
        assert_eq!(report.counts(), Counts { direct: 1, vxlan: 0, none: 3 });
    }

    #[test]
    fn a_range_has_no_way_where_others_route_and_before_the_first_pass() {
        let off = report(Mode::Off, true);
        assert_eq!(lines(&off)[0], "10.2.0.0/24: --node-routes is off: others route");
        let early = Report { plan: None, ..report(Mode::Auto, true) };
        assert_eq!(lines(&early)[0], "10.2.0.0/24: not decided yet");
    }

    #[test]
    fn the_fast_path_of_a_link_is_that_of_the_ranges_behind_it() {
        let mut report = report(Mode::Auto, true);
        assert_eq!(report.fast_path(UPLINK), FastPath::On);
        let FastPath::Partly(why) = report.fast_path(TUNNEL) else { panic!("{report:?}") };
        assert!(why.starts_with("not to 1 of 2 ranges: packets to the node leave from"), "{why}");
        assert_eq!(
            report.fast_path(3),
            FastPath::Off("no route to another node's pods leads here".to_owned())
        );
        report.bare.insert(UPLINK, "its packets have no Ethernet header".to_owned());
        let off = FastPath::Off("its packets have no Ethernet header".to_owned());
        assert_eq!(report.fast_path(UPLINK), off);
        assert!(matches!(report.fast_path(TUNNEL), FastPath::Partly(_)));
    }

    #[test]
    fn an_uplink_without_direct_routes_has_the_fast_path_of_the_tunnel_that_it_carries() {
        let mut report = report(Mode::Vxlan, true);
        let FastPath::Partly(why) = report.fast_path(UPLINK) else { panic!("{report:?}") };
        assert!(why.starts_with("not to 1 of 3 ranges: packets to the node leave from"), "{why}");
        let mut nodes = Nodes { is_synced: true, own: report.nodes.own.clone(), ..Nodes::default() };
        nodes.others.extend(report.nodes.others.iter().filter(|it| &*it.name == "c").cloned());
        let of = |nodes: &Arc<Nodes>, source, next: &str| {
            let hop = Hop {
                ifindex: UPLINK,
                gateway: Some(next.parse().unwrap()),
                source,
                mtu: 1500,
                is_spread: false,
                has_neighbours: true,
            };
            let own = "192.0.2.1".parse().unwrap();
            let underlay = Underlay {
                own: BTreeSet::from([own]),
                hops: HashMap::from([("198.51.100.3".parse().unwrap(), hop)]),
                ..Underlay::default()
            };
            Arc::new(Plan::new(report.settings, nodes, &underlay))
        };
        let (nodes, source) = (Arc::new(nodes), "192.0.2.1".parse().ok());
        report.plan = Some(of(&nodes, source, "192.0.2.254"));
        assert_eq!(report.fast_path(UPLINK), FastPath::OnByTunnel);
        assert_eq!(report.fast_path(TUNNEL), FastPath::On);
        report.plan = Some(of(&nodes, source, "fe80::1"));
        let FastPath::Off(why) = report.fast_path(UPLINK) else { panic!("{report:?}") };
        assert_eq!(why, "the kernel's route to 198.51.100.3 has several next hops, or one of IPv6");
        assert_eq!(report.fast_path(TUNNEL), FastPath::On);
    }

    #[test]
    fn settings_switch_the_fast_path_off_everywhere() {
        for (report, why) in [
            (report(Mode::Auto, false), "--node-fast-path is off"),
            (report(Mode::Off, true), LEFT_TO_OTHERS),
        ] {
            for link in [UPLINK, TUNNEL, 3] {
                assert_eq!(report.fast_path(link), FastPath::Off(why.to_owned()));
            }
        }
        let slow = report(Mode::Auto, false);
        assert_eq!(lines(&slow)[0], "10.2.0.0/24 directly to 192.0.2.2, 1500, --node-fast-path is off");
    }
}
