//! What further pods on the node cost the path between two of them, by the pod's own address and by that of a
//! Service, beside the same path of the plugin `bridge`.

use std::time::Duration;

use anyhow::Context as _;
use ferrule_tests::node::Node;

use super::path;
use crate::rates::{
    comparison::{Comparison, median},
    load::{Cores, Load},
    path::Path,
};

/// How reports call a path, at each step.
pub(super) type Names = [&'static str; STEPS.len()];

pub(super) const FERRULE: Names = ["no further pods", "100 further pods", "500 further pods"];
pub(super) const SERVICE: Names =
    ["Service, no further pods", "Service, 100 further pods", "Service, 500 further pods"];
pub(super) const BRIDGE: Names =
    ["bridge, no further pods", "bridge, 100 further pods", "bridge, 500 further pods"];

/// Numbers of further pods.
const STEPS: [usize; 3] = [0, 100, 500];
const PATHS: [(&str, Names); 3] =
    [(path::FERRULE, FERRULE), (path::FERRULE_SERVICE, SERVICE), (path::BRIDGE, BRIDGE)];
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
    let loopback = find(path::LOOPBACK)?;
    let measured_paths = PATHS.iter().map(|(name, _)| find(name)).collect::<Result<Vec<_>, _>>()?;
    let steps: Vec<_> = STEPS.into_iter().filter(|pods| *pods <= most).collect();
    let of_steps = PATHS.iter().flat_map(|(_, names)| names.iter().take(steps.len()).copied());
    let names = [LOOPBACK].into_iter().chain(of_steps).collect();
    let loads = [Load::RequestResponse, Load::ConnectRequestResponse].map(|load| (load, Cores::Same));
    let mut comparison = Comparison::new("Further pods", names, loads);
    // Of each load: the rates of loopback, and each step's way and its share of that.
    let mut measured = comparison.rows.iter().map(|_| (Vec::new(), Vec::new())).collect::<Vec<_>>();
    let mut attached = 0;
    for (step, pods) in steps.iter().copied().enumerate() {
        for number in attached..pods {
            node.attach(&format!("further-{number}"))?;
        }
        attached = pods;
        eprintln!("dataplane: {pods} further pods");
        for round in 0..=rounds {
            for (row, (references, shares)) in comparison.rows.iter().zip(&mut measured) {
                let reference = row.load.measure(loopback, row.cores, duration)?;
                for (number, path) in measured_paths.iter().enumerate() {
                    let rate = row.load.measure(path, row.cores, duration)?;
                    // The first round warms up.
                    if round > 0 {
                        shares.push((1 + number * steps.len() + step, rate / reference));
                    }
                }
                if round > 0 {
                    references.push(reference);
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
