//! Duration of an ADD's phases, from the agent's own metrics.

use std::{collections::BTreeMap, fmt};

use ferrule_tests::node::Node;

/// Successful ADDs so far: seconds and count, by phase.
#[derive(Debug, Clone, Default)]
pub(crate) struct Phases(BTreeMap<String, (f64, f64)>);

/// The pseudo-phase that covers the whole call.
const TOTAL: &str = "total";

// === impl Phases ===

impl Phases {
    /// Reads the metrics of the node's agent.
    pub(crate) fn of(node: &Node) -> anyhow::Result<Self> {
        let (_, body) = node.http("/metrics")?;
        let mut phases = BTreeMap::<String, (f64, f64)>::new();
        for line in body.lines() {
            let Some(rest) = line.strip_prefix("ferrule_cni_duration_seconds_") else { continue };
            let Some((what, rest)) = rest.split_once(r#"{verb="ADD",phase=""#) else { continue };
            let Some((phase, value)) = rest.split_once(r#"",code="0"} "#) else { continue };
            let sums = phases.entry(phase.to_owned()).or_default();
            match what {
                "sum" => sums.0 = value.parse()?,
                "count" => sums.1 = value.parse()?,
                _ => {}
            }
        }
        Ok(Self(phases))
    }

    /// The difference to an earlier reading.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let earlier = |phase: &str| before.0.get(phase).copied().unwrap_or_default();
        let less = |(phase, now): (&String, &(f64, f64))| {
            let before = earlier(phase);
            (phase.clone(), (now.0 - before.0, now.1 - before.1))
        };
        Self(self.0.iter().map(less).collect())
    }

    /// Mean duration of each phase in microseconds, longest first.
    pub(crate) fn means(&self) -> Vec<(&str, f64)> {
        let calls = self.0.get(TOTAL).map_or(1.0, |(_, count)| count.max(1.0));
        let mut means: Vec<_> =
            self.0.iter().map(|(phase, (sum, _))| (phase.as_str(), sum / calls * 1e6)).collect();
        means.sort_by(|a, b| b.1.total_cmp(&a.1));
        means
    }
}

impl fmt::Display for Phases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let means: Vec<_> = self.means().iter().map(|(phase, us)| format!("{phase} {us:.0}")).collect();
        write!(f, "{}", means.join(", "))
    }
}
