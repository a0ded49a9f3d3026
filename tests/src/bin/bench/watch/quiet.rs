//! What an agent asks of the API server while nothing happens.

use std::{thread, time::Duration};

use super::{bed::Bed, table::Table};

/// How long a watch is open: from 300 to 600 seconds, whatever comes.
const OPEN: f64 = 450.0;

/// Waits, and adds what it saw.
pub(super) fn measure(bed: &Bed<'_>, seconds: u64, table: &mut Table) -> anyhow::Result<()> {
    // Lists and first bookmarks are of the start.
    thread::sleep(Duration::from_secs(3));
    let (api, agent) = (&bed.cluster.api, bed.agent()?);
    let watches: usize = api.open_watches().values().sum();
    let (bytes, cpu) = (api.bytes_served(), agent.used()?);
    api.clear_requests();
    thread::sleep(Duration::from_secs(seconds));
    let (bytes, cpu) = (api.bytes_served() - bytes, agent.used()?.saturating_sub(cpu));
    let requests = api.requests().len();

    let hours = seconds as f64 / 3600.0;
    table.add(format!("nothing happens for {seconds} s: watches that are open"), watches as f64, "", None);
    table.add("  requests", requests as f64, "", None);
    table.add(
        "  requests, by how long a watch is open (300 to 600 s)",
        watches as f64 * 3600.0 / OPEN,
        "per hour",
        None,
    );
    table.add("  bytes of bodies: bookmarks", bytes as f64, "", None);
    table.add("  bytes of bodies, as many for an hour", bytes as f64 / hours, "per hour", None);
    table.add(
        "  the agent's CPU time, as much for an hour",
        cpu.as_secs_f64() * 1e3 / hours,
        "ms/hour",
        None,
    );
    Ok(())
}
