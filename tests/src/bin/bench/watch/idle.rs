//! Measures the agent's load on the API server while the cluster is idle.

use std::{thread, time::Duration};

use super::testbed::Testbed;
use crate::table::Table;

/// Average lifetime of a watch, in seconds: random between 300 and 600.
const OPEN: f64 = 450.0;

/// Measures the CPU and the requests of an agent while nothing in the cluster changes.
pub(super) fn measure(testbed: &Testbed<'_>, seconds: u64, table: &mut Table) -> anyhow::Result<()> {
    // Excludes the lists and first bookmarks of the agent's start.
    thread::sleep(Duration::from_secs(3));
    let (api, agent) = (&testbed.cluster.api, testbed.agent()?);
    let watches: usize = api.open_watches().values().sum();
    let (bytes, cpu) = (api.bytes_served(), agent.used()?);
    api.clear_requests();
    thread::sleep(Duration::from_secs(seconds));
    let (bytes, cpu) = (api.bytes_served() - bytes, agent.used()?.saturating_sub(cpu));
    let requests = api.requests().len();

    let hours = seconds as f64 / 3600.0;
    table.add(format!("idle for {seconds} s: open watches"), watches as f64, "", None);
    table.add("  requests", requests as f64, "", None);
    table.add(
        "  requests, from watch lifetimes of 300 to 600 s",
        watches as f64 * 3600.0 / OPEN,
        "per hour",
        None,
    );
    table.add("  response bytes (bookmarks)", bytes as f64, "", None);
    table.add("  response bytes, extrapolated", bytes as f64 / hours, "per hour", None);
    table.add("  agent CPU time, extrapolated", cpu.as_secs_f64() * 1e3 / hours, "ms/hour", None);
    Ok(())
}
