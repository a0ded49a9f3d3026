//! Goals for rates, relative to those of other ways.

use super::{
    comparison::Comparison,
    flood, flows,
    load::Load::{self, ConnectRequestResponse, RequestResponse, Stream},
    path,
};

/// A rate on one core relative to another; across cores, the scheduler decides.
pub(super) struct Goal {
    pub(super) load: Load,
    pub(super) of: &'static str,
    pub(super) to: &'static str,
    pub(super) limits: Option<Limits>,
}

/// `bar` must hold; `aim` is the target.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) bar: f64,
    pub(super) aim: f64,
}

pub(super) const GOALS: [Goal; 13] = [
    ferrule(RequestResponse, "loopback", limits(0.91, 0.94)),
    ferrule(RequestResponse, path::REDIRECT, None),
    ferrule(RequestResponse, "bridge", limits(1.18, 1.22)),
    ferrule(ConnectRequestResponse, "loopback", limits(0.86, 0.90)),
    ferrule(ConnectRequestResponse, path::REDIRECT, None),
    ferrule(ConnectRequestResponse, "bridge", limits(1.20, 1.27)),
    ferrule(Stream, "veth", limits(0.97, 1.0)),
    ferrule(Stream, path::REDIRECT, None),
    Goal { load: RequestResponse, of: flows::ON, to: flows::OFF, limits: limits(0.98, 1.0) },
    Goal { load: ConnectRequestResponse, of: flows::ON, to: flows::OFF, limits: limits(0.98, 1.0) },
    Goal { load: RequestResponse, of: flows::OFF, to: flows::NEVER, limits: None },
    Goal { load: ConnectRequestResponse, of: flows::OFF, to: flows::NEVER, limits: None },
    Goal { load: RequestResponse, of: flood::SPOOFED, to: flood::OWN, limits: limits(0.97, 1.0) },
];

const fn ferrule(load: Load, to: &'static str, limits: Option<Limits>) -> Goal {
    Goal { load, of: path::FERRULE, to, limits }
}

const fn limits(bar: f64, aim: f64) -> Option<Limits> {
    Some(Limits { bar, aim })
}

// === impl Goal ===

impl Goal {
    /// The ratio, from the comparison that has both ways.
    pub(super) fn ratio(&self, comparisons: &[Comparison]) -> Option<f64> {
        comparisons.iter().find_map(|it| it.ratio(self.load, self.of, self.to))
    }

    pub(super) fn verdict(&self, ratio: f64) -> &'static str {
        match self.limits {
            None => "",
            Some(Limits { aim, .. }) if ratio >= aim => "reached",
            Some(Limits { bar, .. }) if ratio >= bar => "within bar",
            Some(_) => "missed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::load::Cores;

    #[test]
    fn a_verdict_compares_with_bar_and_aim() {
        let goal = ferrule(RequestResponse, "bridge", limits(1.18, 1.22));
        assert_eq!([1.22, 1.21, 1.17].map(|it| goal.verdict(it)), ["reached", "within bar", "missed"]);
        assert_eq!(ferrule(Stream, "veth", None).verdict(0.1), "");
    }

    #[test]
    fn a_goal_finds_its_comparison() {
        let loads = [(RequestResponse, Cores::Same)];
        let mut comparisons = vec![
            Comparison::new("paths", vec!["loopback", "ferrule"], loads),
            Comparison::new("flows", vec![flows::OFF, flows::ON], loads),
        ];
        comparisons[1].rows[0].push(0, 4.0);
        comparisons[1].rows[0].push(1, 3.0);
        let of_flows = GOALS.iter().find(|it| it.of == flows::ON).unwrap();
        assert_eq!(of_flows.ratio(&comparisons), Some(0.75));
        assert_eq!(GOALS.iter().find(|it| it.of == flood::SPOOFED).unwrap().ratio(&comparisons), None);
    }
}
