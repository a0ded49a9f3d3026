//! The results of ADD and DEL, as tables and as JSON.

mod markdown;

use std::fmt;

use serde_json::{Value, json};

use crate::{
    add::Options,
    phases::Phases,
    results::Results,
    target::Name,
    wave::{Measured, Shape},
};

pub(crate) struct Report {
    pub(crate) options: Options,
    pub(crate) parts: Vec<Part>,
    /// Of the serial part.
    pub(crate) phases: Phases,
    /// Ferrule's serial part before and after the node was filled.
    pub(crate) full: Option<Filled>,
}

/// Serial ADDs before and after many other pods were attached.
#[derive(Default)]
pub(crate) struct Filled {
    pub(crate) before: Measured,
    pub(crate) after: Measured,
}

/// A part of a run; measurements in the order of [`Name::ALL`].
pub(crate) enum Part {
    Serial([Measured; 3]),
    Parallel(Shape, [Measured; 3]),
    Burst(Shape, [Measured; 3]),
}

/// A target for Ferrule's ratio to another plugin.
struct Goal {
    what: String,
    of: fn(&Measured) -> f64,
    /// `bar` must hold; `aim` is the target.
    bar: f64,
    aim: f64,
    better: Better,
}

#[derive(Clone, Copy, PartialEq)]
enum Better {
    Less,
    More,
}

const PERCENTILES: [usize; 3] = [50, 90, 99];
/// With at least this many existing pods, the goals for a full node apply.
const FULL: usize = 500;

/// Bar and aim for ADD on a full node, relative to an empty node.
const GROWTH: (f64, f64) = (1.30, 1.20);

const LEGEND: &str = "\
Times are wall-clock times from the start of the plugin's process to its end, on this machine; only the ratios can be
compared with other runs. CPU is that of the plugin's processes and, for Ferrule, of the agent during the calls;
background work of the kernel is not attributed.
DEL does different work: bridge and ptp return after the interface is deleted. Ferrule returns once no packet can reach
or leave the pod; the agent deletes the retired interfaces of many pods together shortly after (\"gone after\": from the
answer to the last DEL until no interface is left, polled every 5 ms). The CPU time of this deletion is included only as
far as other calls run meanwhile, as in a burst.
";

// === impl Part ===

impl Part {
    fn key(&self) -> &'static str {
        match self {
            Self::Serial(_) => "serial",
            Self::Parallel(..) => "parallel",
            Self::Burst(..) => "burst",
        }
    }

    fn title(&self) -> String {
        match self {
            Self::Serial(_) => "One pod at a time".to_owned(),
            Self::Parallel(Shape { pods, .. }, _) => format!("{pods} pods concurrently"),
            Self::Burst(Shape { pods, workers }, _) => format!("Bursts of {pods} pods, {workers} at a time"),
        }
    }

    fn measured(&self) -> &[Measured; 3] {
        match self {
            Self::Serial(measured) | Self::Parallel(_, measured) | Self::Burst(_, measured) => measured,
        }
    }

    fn goals(&self, existing: usize) -> Vec<Goal> {
        let less =
            |what: &str, of, bar, aim| Goal { what: what.to_owned(), of, bar, aim, better: Better::Less };
        let add: fn(&Measured) -> f64 = |it| it.add.took.p50();
        match self {
            Self::Serial(_) if existing >= FULL => vec![less("ADD, p50", add, 0.16, 0.12)],
            Self::Serial(_) => vec![
                less("ADD, p50", add, 0.30, 0.22),
                less("ADD, p99", |it| it.add.took.percentile(99), 0.40, 0.25),
                less("ADD, CPU", |it| it.add.cpu.p50(), 0.25, 0.18),
                less("DEL, p50", |it| it.del.took.p50(), 0.08, 0.04),
            ],
            Self::Parallel(..) => vec![less("ADD, p50", add, 0.30, 0.22)],
            Self::Burst(..) => {
                let what = "ADD, pods/s".to_owned();
                vec![Goal {
                    what,
                    of: |it| per_second(it.add.pace.p50()),
                    bar: 3.5,
                    aim: 5.0,
                    better: Better::More,
                }]
            }
        }
    }
}

// === impl Goal ===

impl Goal {
    /// Ferrule's value divided by each of the others'.
    fn ratios(&self, [ferrule, bridge, ptp]: &[Measured; 3]) -> [f64; 2] {
        [bridge, ptp].map(|other| (self.of)(ferrule) / (self.of)(other))
    }

    fn verdict(&self, ratio: f64) -> &'static str {
        let reaches = |limit| if self.better == Better::Less { ratio <= limit } else { ratio >= limit };
        match (reaches(self.aim), reaches(self.bar)) {
            (true, _) => "reached",
            (_, true) => "within bar",
            _ => "missed",
        }
    }
}

// === impl Report ===

impl Results for Report {
    fn to_json(&self) -> Value {
        let parts = self.parts.iter().map(|part| {
            let targets =
                Name::ALL.iter().zip(part.measured()).map(|(name, it)| (name.to_string(), target(it)));
            let goals = part.goals(self.options.existing);
            let goals = goals.iter().map(|goal| {
                let [bridge, ptp] = goal.ratios(part.measured());
                json!({
                    "what": goal.what, "bar": goal.bar, "aim": goal.aim, "to_bridge": bridge, "to_ptp": ptp,
                    "verdict": goal.verdict(bridge),
                })
            });
            let value = json!({
                "title": part.title(),
                "targets": targets.collect::<serde_json::Map<_, _>>(),
                "goals": goals.collect::<Vec<_>>(),
            });
            (part.key().to_owned(), value)
        });
        json!({
            "existing_pods": self.options.existing,
            "ferrule_families": self.families(),
            "phases_us": self.phases.means().into_iter().collect::<std::collections::BTreeMap<_, _>>(),
            "full": self.full.as_ref().map(|full| json!({
                "pods": self.options.full, "before": target(&full.before), "after": target(&full.after),
                "growth": full.growth(),
            })),
            "parts": parts.collect::<serde_json::Map<_, _>>(),
        })
    }

    fn to_markdown(&self) -> String {
        markdown::document(self)
    }
}

impl Report {
    fn families(&self) -> &'static str {
        if self.options.ipv4_only { "IPv4" } else { "IPv4 and IPv6" }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (families, existing) = (self.families(), self.options.existing);
        writeln!(
            f,
            "ADD and DEL compared with the reference plugins, each with {existing} pods already attached."
        )?;
        writeln!(
            f,
            "ferrule assigns {families}; bridge and ptp assign IPv4 through host-local, without ipMasq.\n"
        )?;
        for part in &self.parts {
            table(f, part)?;
            writeln!(f)?;
        }
        writeln!(f, "{:34} {:>9} {:>9} {:>6} {:>6}", "Ferrule relative to", "bridge", "ptp", "bar", "aim")?;
        for part in &self.parts {
            for goal in part.goals(existing) {
                let what = format!("{}: {}", part.key(), goal.what);
                let [bridge, ptp] = goal.ratios(part.measured());
                let Goal { bar, aim, .. } = goal;
                let verdict = goal.verdict(bridge);
                writeln!(f, "{what:34} {bridge:9.3} {ptp:9.3} {bar:6.2} {aim:6.2}  {verdict}")?;
            }
        }
        writeln!(f, "\nPhases of a serial ADD inside the agent, mean, us: {}", self.phases)?;
        if let (Some(full), (bar, aim)) = (&self.full, GROWTH) {
            let (pods, growth) = (self.options.full, full.growth());
            let [before, after] = [&full.before, &full.after].map(|it| it.add.took.p50());
            writeln!(
                f,
                "\nFerrule's ADD, p50, before and after {pods} more pods: {before:.2} ms and {after:.2} ms, \
                 ratio {growth:.3} (bar {bar}, aim {aim})"
            )?;
        }
        writeln!(f, "\n{LEGEND}")
    }
}

// === impl Filled ===

impl Filled {
    /// ADD after, relative to ADD before.
    fn growth(&self) -> f64 {
        self.after.add.took.p50() / self.before.add.took.p50()
    }
}

fn table(f: &mut fmt::Formatter<'_>, part: &Part) -> fmt::Result {
    let samples = part.measured().first().map_or(0, |it| it.add.took.len());
    writeln!(f, "{} ({samples} pods per plugin), ms", part.title())?;
    writeln!(f, "{:8} {:^26} {:^26} {:^15} {:^15}", "", "ADD", "DEL", "CPU per pod", "pods/s")?;
    write!(f, "{:8}", "")?;
    for head in ["p50", "p90", "p99"].iter().cycle().take(6) {
        write!(f, " {head:>8}")?;
    }
    writeln!(f, " {:>7} {:>7} {:>7} {:>7} {:>11}", "ADD", "DEL", "ADD", "DEL", "gone after")?;
    for (name, Measured { add, del, gone }) in Name::ALL.iter().zip(part.measured()) {
        write!(f, "{name:8}")?;
        for verb in [add, del] {
            for percent in PERCENTILES {
                write!(f, " {:8.2}", verb.took.percentile(percent))?;
            }
        }
        for verb in [add, del] {
            write!(f, " {:7.2}", verb.cpu.p50())?;
        }
        for verb in [add, del] {
            write!(f, " {:7.0}", per_second(verb.pace.p50()))?;
        }
        writeln!(f, " {:11.0}", gone.p50())?;
    }
    Ok(())
}

fn target(Measured { add, del, gone }: &Measured) -> Value {
    let verb = |verb: &crate::wave::Verb| {
        json!({
            "samples": verb.took.len(),
            "p50_ms": verb.took.percentile(50),
            "p90_ms": verb.took.percentile(90),
            "p99_ms": verb.took.percentile(99),
            "cpu_ms": verb.cpu.p50(),
            "pods_per_s": per_second(verb.pace.p50()),
        })
    };
    json!({ "add": verb(add), "del": verb(del), "gone_after_ms": gone.p50() })
}

fn per_second(ms: f64) -> f64 {
    1e3 / ms
}
