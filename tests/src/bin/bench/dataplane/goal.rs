//! Goals for the paths between two pods of a node.

use super::{flood, flows, path, scale};
use crate::rates::{
    goal::{Goal, Limits, limits},
    load::Load::{self, ConnectRequestResponse, RequestResponse, Stream},
};

pub(crate) const GOALS: [Goal; 26] = [
    ferrule(RequestResponse, "loopback", limits(0.91, 0.94)),
    ferrule(RequestResponse, path::REDIRECT, None),
    ferrule(RequestResponse, "bridge", limits(1.18, 1.22)),
    ferrule(RequestResponse, "veth", limits(0.94, 0.96)),
    ferrule(ConnectRequestResponse, "loopback", limits(0.86, 0.90)),
    ferrule(ConnectRequestResponse, path::REDIRECT, None),
    ferrule(ConnectRequestResponse, "bridge", limits(1.20, 1.27)),
    ferrule(Stream, "veth", limits(0.97, 1.0)),
    ferrule(Stream, path::REDIRECT, None),
    Goal { load: RequestResponse, of: path::FERRULE_SERVICE, to: path::BRIDGE_SERVICE, limits: None },
    Goal {
        load: ConnectRequestResponse,
        of: path::FERRULE_SERVICE,
        to: path::BRIDGE_SERVICE,
        limits: limits(1.0, 1.05),
    },
    Goal { load: RequestResponse, of: flows::ON, to: flows::OFF, limits: limits(0.98, 1.0) },
    Goal { load: ConnectRequestResponse, of: flows::ON, to: flows::OFF, limits: limits(0.98, 1.0) },
    Goal { load: RequestResponse, of: flows::ON, to: flows::NEVER, limits: limits(0.98, 1.0) },
    Goal { load: ConnectRequestResponse, of: flows::ON, to: flows::NEVER, limits: limits(0.98, 1.0) },
    Goal { load: RequestResponse, of: flows::OFF, to: flows::NEVER, limits: limits(0.995, 1.0) },
    Goal { load: ConnectRequestResponse, of: flows::OFF, to: flows::NEVER, limits: limits(0.995, 1.0) },
    Goal { load: RequestResponse, of: flood::SPOOFED, to: flood::OWN, limits: limits(0.97, 1.0) },
    Goal { load: RequestResponse, of: flood::SPOOFED, to: flood::NONE, limits: None },
    Goal { load: RequestResponse, of: flood::OWN, to: flood::NONE, limits: None },
    of_pods(RequestResponse, scale::FERRULE),
    of_pods(ConnectRequestResponse, scale::FERRULE),
    of_pods(RequestResponse, scale::SERVICE),
    of_pods(ConnectRequestResponse, scale::SERVICE),
    of_pods(RequestResponse, scale::BRIDGE),
    of_pods(ConnectRequestResponse, scale::BRIDGE),
];

/// Of a path, with the most further pods and without any.
const fn of_pods(load: Load, [alone, .., many]: scale::Names) -> Goal {
    Goal { load, of: many, to: alone, limits: None }
}

const fn ferrule(load: Load, to: &'static str, limits: Option<Limits>) -> Goal {
    Goal { load, of: path::FERRULE, to, limits }
}
