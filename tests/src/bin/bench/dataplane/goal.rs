//! Goals for the paths between two pods of a node.

use super::{flood, flows, path, scale};
use crate::rates::{
    goal::{Goal, Limits, limits},
    load::Load::{self, ConnectRequestResponse, RequestResponse, Stream},
};

pub(crate) const GOALS: [Goal; 17] = [
    ferrule(RequestResponse, "loopback", limits(0.91, 0.94)),
    ferrule(RequestResponse, path::REDIRECT, None),
    ferrule(RequestResponse, "bridge", limits(1.18, 1.22)),
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
    Goal { load: RequestResponse, of: flows::OFF, to: flows::NEVER, limits: None },
    Goal { load: ConnectRequestResponse, of: flows::OFF, to: flows::NEVER, limits: None },
    Goal { load: RequestResponse, of: flood::SPOOFED, to: flood::OWN, limits: limits(0.97, 1.0) },
    Goal { load: RequestResponse, of: scale::MANY, to: scale::ALONE, limits: None },
    Goal { load: ConnectRequestResponse, of: scale::MANY, to: scale::ALONE, limits: None },
];

const fn ferrule(load: Load, to: &'static str, limits: Option<Limits>) -> Goal {
    Goal { load, of: path::FERRULE, to, limits }
}
