//! Goals for rates, relative to those of other ways.

use super::{comparison::Comparison, load::Load};

/// A rate on one core relative to another; across cores, the scheduler decides.
pub(crate) struct Goal {
    pub(crate) load: Load,
    pub(crate) of: &'static str,
    pub(crate) to: &'static str,
    pub(crate) limits: Option<Limits>,
}

/// `bar` must hold; `aim` is the target.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) bar: f64,
    pub(crate) aim: f64,
}

pub(crate) const fn limits(bar: f64, aim: f64) -> Option<Limits> {
    Some(Limits { bar, aim })
}

// === impl Goal ===

impl Goal {
    /// The ratio, from the comparison that has both ways.
    pub(crate) fn ratio(&self, comparisons: &[Comparison]) -> Option<f64> {
        comparisons.iter().find_map(|it| it.ratio(self.load, self.of, self.to))
    }

    /// As in tables: the load, and both ways.
    pub(crate) fn describe(&self) -> String {
        format!("{}: {} / {}", self.load.name(), self.of, self.to)
    }

    /// Bar and aim, as in tables.
    pub(crate) fn limit_texts(&self) -> [String; 2] {
        let text = |limit: f64| {
            let text = format!("{limit:.3}");
            text.strip_suffix('0').map_or(text.clone(), str::to_owned)
        };
        self.limits.map_or_else(Default::default, |Limits { bar, aim }| [text(bar), text(aim)])
    }

    pub(crate) fn verdict(&self, ratio: f64) -> &'static str {
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
    use crate::rates::load::Cores;

    const fn goal(of: &'static str, to: &'static str, limits: Option<Limits>) -> Goal {
        Goal { load: Load::RequestResponse, of, to, limits }
    }

    #[test]
    fn a_verdict_compares_with_bar_and_aim() {
        let with = goal("ferrule", "bridge", limits(1.18, 1.22));
        assert_eq!([1.22, 1.21, 1.17].map(|it| with.verdict(it)), ["reached", "within bar", "missed"]);
        assert_eq!(goal("ferrule", "veth", None).verdict(0.1), "");
    }

    #[test]
    fn bars_have_as_many_digits_as_they_need() {
        assert_eq!(goal("off", "never", limits(0.995, 1.0)).limit_texts(), ["0.995", "1.00"]);
        assert_eq!(goal("ferrule", "bridge", None).limit_texts(), ["", ""]);
    }

    #[test]
    fn a_goal_finds_its_comparison() {
        let loads = [(Load::RequestResponse, Cores::Same)];
        let mut comparisons = vec![
            Comparison::new("paths", vec!["loopback", "ferrule"], loads),
            Comparison::new("flows", vec!["off", "on"], loads),
        ];
        comparisons[1].rows[0].push(0, 4.0);
        comparisons[1].rows[0].push(1, 3.0);
        assert_eq!(goal("on", "off", None).ratio(&comparisons), Some(0.75));
        assert_eq!(goal("on", "loopback", None).ratio(&comparisons), None);
    }
}
