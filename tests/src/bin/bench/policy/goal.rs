//! Goals for traffic between pods that policies judge.

use super::traffic::{FEW, FEW_LINEAR, MANY, MANY_LINEAR, NONE};
use crate::rates::{
    goal::{Goal, limits},
    load::Load::{ConnectRequestResponse, RequestResponse},
};

pub(crate) const GOALS: [Goal; 6] = [
    Goal { load: RequestResponse, of: FEW, to: NONE, limits: limits(0.98, 0.99) },
    Goal { load: ConnectRequestResponse, of: FEW, to: NONE, limits: limits(0.94, 0.97) },
    Goal { load: RequestResponse, of: MANY, to: FEW, limits: limits(0.95, 0.99) },
    Goal { load: ConnectRequestResponse, of: MANY, to: FEW, limits: limits(0.97, 0.99) },
    Goal { load: RequestResponse, of: MANY_LINEAR, to: FEW_LINEAR, limits: None },
    Goal { load: ConnectRequestResponse, of: MANY_LINEAR, to: FEW_LINEAR, limits: None },
];
