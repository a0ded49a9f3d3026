//! Goals for traffic between pods that policies judge.

use super::traffic::{FEW, FEW_OF_HOST, HUNDRED, IPTABLES, LIST, MANY, NONE, SET, THOUSAND};
use crate::rates::{
    goal::{Goal, limits},
    load::Load::{self, ConnectRequestResponse, RequestResponse},
};

pub(crate) const GOALS: [Goal; 14] = [
    Goal { load: RequestResponse, of: FEW, to: NONE, limits: limits(0.98, 0.99) },
    Goal { load: ConnectRequestResponse, of: FEW, to: NONE, limits: limits(0.94, 0.97) },
    Goal { load: RequestResponse, of: HUNDRED, to: FEW, limits: None },
    Goal { load: ConnectRequestResponse, of: HUNDRED, to: FEW, limits: None },
    Goal { load: RequestResponse, of: THOUSAND, to: FEW, limits: None },
    Goal { load: ConnectRequestResponse, of: THOUSAND, to: FEW, limits: None },
    Goal { load: RequestResponse, of: MANY, to: FEW, limits: limits(0.95, 0.99) },
    Goal { load: ConnectRequestResponse, of: MANY, to: FEW, limits: limits(0.97, 0.99) },
    of_host(RequestResponse, LIST),
    of_host(ConnectRequestResponse, LIST),
    of_host(RequestResponse, SET),
    of_host(ConnectRequestResponse, SET),
    of_host(RequestResponse, IPTABLES),
    of_host(ConnectRequestResponse, IPTABLES),
];

/// Of the peers, without a limit.
const fn of_host(load: Load, of: &'static str) -> Goal {
    Goal { load, of, to: FEW_OF_HOST, limits: None }
}
