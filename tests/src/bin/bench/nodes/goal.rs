//! Goals for the paths between two nodes.

use super::{
    MANY_DIRECT, MANY_VXLAN, ONE_DIRECT, ONE_VXLAN, ferrule,
    reference::{FLANNEL, FLANNEL_IPV6, FLANNEL_TRACKED, KERNEL, KERNEL_IPV6, KERNEL_TRACKED, UNDERLAY},
};
use crate::rates::{
    goal::{Goal, Limits, limits},
    load::Load::{self, ConnectRequestResponse, RequestResponse, Stream},
};

const DIRECT: &str = ferrule::DIRECT.names[0];
const VXLAN: &str = ferrule::VXLAN.names[0];
const DIRECT_IPV6: &str = ferrule::DIRECT.names[1];
const VXLAN_IPV6: &str = ferrule::VXLAN.names[1];

pub(super) const GOALS: [Goal; 24] = [
    goal(RequestResponse, DIRECT, KERNEL, limits(1.10, 1.14)),
    goal(ConnectRequestResponse, DIRECT, KERNEL, None),
    goal(Stream, DIRECT, KERNEL, None),
    goal(RequestResponse, DIRECT, UNDERLAY, limits(0.85, 0.87)),
    goal(RequestResponse, VXLAN, FLANNEL, limits(1.12, 1.16)),
    goal(ConnectRequestResponse, VXLAN, FLANNEL, limits(1.10, 1.16)),
    goal(Stream, VXLAN, FLANNEL, None),
    goal(RequestResponse, VXLAN, UNDERLAY, limits(0.66, 0.68)),
    goal(RequestResponse, DIRECT, KERNEL_TRACKED, None),
    goal(ConnectRequestResponse, DIRECT, KERNEL_TRACKED, None),
    goal(RequestResponse, VXLAN, FLANNEL_TRACKED, None),
    goal(ConnectRequestResponse, VXLAN, FLANNEL_TRACKED, None),
    goal(RequestResponse, DIRECT, ferrule::DIRECT_STACK.names[0], None),
    goal(ConnectRequestResponse, DIRECT, ferrule::DIRECT_STACK.names[0], None),
    goal(RequestResponse, VXLAN, ferrule::VXLAN_STACK.names[0], None),
    goal(ConnectRequestResponse, VXLAN, ferrule::VXLAN_STACK.names[0], None),
    goal(RequestResponse, DIRECT_IPV6, KERNEL_IPV6, None),
    goal(ConnectRequestResponse, DIRECT_IPV6, KERNEL_IPV6, None),
    goal(RequestResponse, VXLAN_IPV6, FLANNEL_IPV6, None),
    goal(ConnectRequestResponse, VXLAN_IPV6, FLANNEL_IPV6, None),
    goal(RequestResponse, MANY_DIRECT, ONE_DIRECT, limits(0.97, 1.0)),
    goal(ConnectRequestResponse, MANY_DIRECT, ONE_DIRECT, limits(0.97, 1.0)),
    goal(RequestResponse, MANY_VXLAN, ONE_VXLAN, limits(0.97, 1.0)),
    goal(ConnectRequestResponse, MANY_VXLAN, ONE_VXLAN, limits(0.97, 1.0)),
];

/// From a new Node object to the first answer of one of its pods.
pub(super) const JOIN: TimeGoal = TimeGoal { percent: 99, bar: 50.0, aim: 50.0 };
/// From the list of a thousand nodes to all routes and rows.
pub(super) const LIST: TimeGoal = TimeGoal { percent: 100, bar: 100.0, aim: 100.0 };

/// Of a percentile. `bar` must hold; `aim` is the target. Milliseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct TimeGoal {
    pub(super) percent: usize,
    pub(super) bar: f64,
    pub(super) aim: f64,
}

// === impl TimeGoal ===

impl TimeGoal {
    pub(super) fn verdict(self, milliseconds: f64) -> &'static str {
        match milliseconds {
            it if it <= self.aim => "reached",
            it if it <= self.bar => "within bar",
            _ => "missed",
        }
    }
}

const fn goal(load: Load, of: &'static str, to: &'static str, limits: Option<Limits>) -> Goal {
    Goal { load, of, to, limits }
}
