//! Cost of the path between pods of two nodes, and the time until a new node, or a large cluster, is reached.
//!
//! All nodes exist on one machine at the same time. Every path is a cable between two nodes and a pod on
//! each, so that paths differ by what is on the nodes. Each round measures every path once, every other round
//! in the other order, so that other load of the machine affects all of them.

mod cable;
mod ferrule;
mod goal;
mod join;
mod list;
mod others;
mod reference;
mod report;

use std::time::Duration;

use anyhow::Context as _;
use ferrule_tests::{
    fabric::{Fabric, on_fabric},
    pod::Pod,
};

use self::{ferrule::Setting, report::Report};
use crate::rates::{
    comparison::Comparison,
    load::{Cores, Load},
    path::Path,
};

/// Sizes and repetitions of the measurements.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Rounds; the result is their median.
    #[arg(long, default_value_t = 11)]
    rounds: usize,
    /// Milliseconds of each measurement.
    #[arg(long, default_value_t = 200)]
    milliseconds: u64,
    /// Node objects of a large cluster.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u16).range(..=3000))]
    others: u16,
    /// Times that a node joins the cluster, on the same segment and behind a router.
    #[arg(long, default_value_t = 100)]
    joins: usize,
    /// Times that a new agent lists the nodes of the large cluster.
    #[arg(long, default_value_t = 5)]
    lists: usize,
}

const ONE_DIRECT: &str = "direct, one other node";
const MANY_DIRECT: &str = "direct, many other nodes";
const ONE_VXLAN: &str = "VXLAN, one other node";
const MANY_VXLAN: &str = "VXLAN, many other nodes";

const SETTINGS: [Setting; 4] = [ferrule::DIRECT, ferrule::DIRECT_STACK, ferrule::VXLAN, ferrule::VXLAN_STACK];
/// Positions in [`SETTINGS`] of those beside which references are measured.
const DIRECT: usize = 0;
const VXLAN: usize = 2;
const LOADS: [Load; 3] = [Load::RequestResponse, Load::ConnectRequestResponse, Load::Stream];

/// Everything that exists during the rounds.
struct Bed<'a> {
    fabric: &'a Fabric,
    pods: [Pod; 2],
    /// Without a tunnel, and with one.
    references: [Vec<Path>; 2],
    duration: Duration,
    others: u16,
    paths: Comparison,
    sizes: Comparison,
}

/// Runs the measurements.
pub(crate) fn run(options: &Options) -> anyhow::Result<Report> {
    let comparisons = on_fabric(|fabric| {
        let mut bed = Bed::new(fabric, options)?;
        for round in 0..=options.rounds {
            eprintln!("nodes: round {round} of {}", options.rounds);
            bed.round(round)?;
            // The first round warms caches and neighbour entries up.
            if round == 0 {
                [&mut bed.paths, &mut bed.sizes].into_iter().for_each(Comparison::clear);
            }
        }
        Ok([bed.paths, bed.sizes])
    })?;
    eprintln!("nodes: {} times a new node", options.joins);
    let joined = if options.joins > 0 { join::measure(options.joins)? } else { Default::default() };
    eprintln!("nodes: {} times a list of {} nodes", options.lists, options.others);
    let listed = list::measure(options.others, options.lists)?;
    Ok(Report { others: options.others, comparisons, joined, listed })
}

// === impl Bed ===

impl<'a> Bed<'a> {
    fn new(fabric: &'a Fabric, options: &Options) -> anyhow::Result<Self> {
        let references = reference::all()?;
        let of_settings = SETTINGS.iter().flat_map(|setting| setting.names);
        let names = references.iter().flatten().map(Path::name).chain(of_settings).collect();
        let sizes = vec![ONE_DIRECT, MANY_DIRECT, ONE_VXLAN, MANY_VXLAN];
        let [rr, crr, _] = LOADS;
        Ok(Self {
            fabric,
            pods: ferrule::start(fabric)?,
            references,
            duration: Duration::from_millis(options.milliseconds),
            others: options.others,
            paths: Comparison::new("Paths between nodes", names, LOADS.map(|load| (load, Cores::Same))),
            sizes: Comparison::new("Size of the cluster", sizes, [rr, crr].map(|load| (load, Cores::Same))),
        })
    }

    /// Measures everything once. References take turns with Ferrule: those without a tunnel are measured
    /// beside the direct routes, the others beside the tunnel.
    fn round(&mut self, number: usize) -> anyhow::Result<()> {
        let mut turns: Vec<usize> = (0..SETTINGS.len()).collect();
        if !number.is_multiple_of(2) {
            turns.reverse();
        }
        for turn in turns {
            let Some(setting) = SETTINGS.get(turn) else { continue };
            let paths = setting.apply(self.fabric, &self.pods)?;
            self.paths(&paths)?;
            match turn {
                DIRECT => self.beside(0, &paths)?,
                VXLAN => self.beside(1, &paths)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn paths(&mut self, paths: &[Path]) -> anyhow::Result<()> {
        paths.iter().try_for_each(|path| measure(&mut self.paths, path.name(), path, self.duration))
    }

    /// What belongs beside a setting: its references, without a tunnel (0) or with one (1), and sizes of the
    /// cluster.
    fn beside(&mut self, tunnel: usize, paths: &[Path]) -> anyhow::Result<()> {
        let references = self.references.get(tunnel).cloned().unwrap_or_default();
        self.paths(&references)?;
        let [one, many] = if tunnel == 0 { [ONE_DIRECT, MANY_DIRECT] } else { [ONE_VXLAN, MANY_VXLAN] };
        let path = paths.first().context("no path between the pods")?;
        let (sizes, duration) = (&mut self.sizes, self.duration);
        measure(sizes, one, path, duration)?;
        others::with_others(self.fabric, &ferrule::CABLE, self.others, || {
            measure(sizes, many, path, duration)
        })
    }
}

/// Measures a way that a comparison has by this name.
fn measure(into: &mut Comparison, name: &str, path: &Path, duration: Duration) -> anyhow::Result<()> {
    let way = into.names.iter().position(|it| *it == name).with_context(|| format!("no way {name}"))?;
    for row in &mut into.rows {
        row.push(way, row.load.measure(path, row.cores, duration)?);
    }
    Ok(())
}
