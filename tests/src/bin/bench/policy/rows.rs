//! What policies take in the kernel: classes, rulesets, and the rows and bytes of their maps.

use anyhow::Context as _;
use ferrule_tests::{
    node::{Node, PINS},
    sys,
};
use serde_json::Value;

use crate::table::Table;

/// The maps whose rows the agent writes.
const RULES: [&str; 6] = ["PEERS", "BLOCKS", "RULESETS", "RULES", "NAMED", "PORTS"];
/// Those that the programs write.
const FLOWS: [&str; 4] = ["POLICY_FLOWS", "POLICY_PLACES", "POLICY_PENDING", "FRAGMENTS"];
const MIB: f64 = 1024.0 * 1024.0;

/// Adds them to a table.
pub(super) fn measure(node: &Node, what: &str, table: &mut Table) -> anyhow::Result<()> {
    table.add(format!("Classes of addresses, {what}"), node.metric("ferrule_policy_classes")?, "", None);
    table.add("  rulesets", node.metric("ferrule_policy_rulesets")?, "", None);
    for map in RULES {
        let rows = node.metric(&format!("ferrule_map_entries{{map=\"{map}\"}}"))?;
        table.add(format!("  rows of {map}"), rows, "", None);
    }
    for (which, maps) in [("these maps", &RULES[..]), ("the maps of flows", &FLOWS[..])] {
        let bytes = maps.iter().map(|map| charged(map)).sum::<anyhow::Result<f64>>()?;
        table.add(format!("  {which}, by bpftool"), bytes / MIB, "MiB", None);
    }
    Ok(())
}

/// The bytes of a map that the kernel charges for.
fn charged(map: &str) -> anyhow::Result<f64> {
    let shown: Value = serde_json::from_str(&sys::run(&format!("bpftool -j map show pinned {PINS}/{map}"))?)?;
    let bytes = shown.get("bytes_memlock").with_context(|| format!("no bytes_memlock in {shown}"))?;
    // bpftool writes the number as a text.
    let number = bytes.as_f64().or_else(|| bytes.as_str()?.parse().ok());
    number.with_context(|| format!("{bytes} is no number"))
}
