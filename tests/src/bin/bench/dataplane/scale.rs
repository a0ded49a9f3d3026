//! What further pods on the node cost the path between two of them.

use std::time::Duration;

use anyhow::Context as _;
use ferrule_tests::node::Node;

use super::path;
use crate::rates::{
    comparison::{Comparison, median},
    load::{Cores, Load},
    path::Path,
};

pub(super) const ALONE: &str = "no further pods";
pub(super) const MANY: &str = "500 further pods";

/// Numbers of further pods, and how reports call them.
const STEPS: [(usize, &str); 3] = [(0, ALONE), (100, "100 further pods"), (500, MANY)];
const LOOPBACK: &str = "loopback meanwhile";

/// Attaches pods step by step, and measures at each.
///
/// A step takes too long for rounds of all steps. So loopback is measured beside each rate, and the rates are
/// scaled to one rate of loopback: drift of the machine cancels out.
pub(super) fn measure(
    node: &Node,
    paths: &[Path],
    rounds: usize,
    duration: Duration,
    most: usize,
) -> anyhow::Result<Comparison> {
    let find = |name: &str| paths.iter().find(|it| it.name() == name).context(format!("no path {name}"));
    let (loopback, ferrule) = (find(path::LOOPBACK)?, find(path::FERRULE)?);
    let steps: Vec<_> = STEPS.into_iter().filter(|(pods, _)| *pods <= most).collect();
    let names = [LOOPBACK].into_iter().chain(steps.iter().map(|(_, name)| *name)).collect();
    let loads = [Load::RequestResponse, Load::ConnectRequestResponse].map(|load| (load, Cores::Same));
    let mut comparison = Comparison::new("Further pods", names, loads);
    // Of each load: the rates of loopback, and each step's way and its share of that.
    let mut measured = comparison.rows.iter().map(|_| (Vec::new(), Vec::new())).collect::<Vec<_>>();
    let mut attached = 0;
    for (way, (pods, name)) in (1..).zip(steps) {
        for number in attached..pods {
            node.attach(&format!("further-{number}"))?;
        }
        attached = pods;
        eprintln!("dataplane: {name}");
        for round in 0..=rounds {
            for (row, (references, shares)) in comparison.rows.iter().zip(&mut measured) {
                let reference = row.load.measure(loopback, row.cores, duration)?;
                let rate = row.load.measure(ferrule, row.cores, duration)?;
                // The first round warms up.
                if round > 0 {
                    references.push(reference);
                    shares.push((way, rate / reference));
                }
            }
        }
    }
    for (row, (references, shares)) in comparison.rows.iter_mut().zip(measured) {
        let reference = median(&references);
        let scaled = shares.into_iter().map(|(way, share)| (way, share * reference));
        (0..rounds).map(|_| (0, reference)).chain(scaled).for_each(|(way, rate)| row.push(way, rate));
    }
    Ok(comparison)
}
