//! The agent's memory.

use std::{thread, time::Duration};

use ferrule_tests::node::Node;

use crate::table::{Goal, Table};

/// By then, the checkpoint is durable and the allocator has returned its free memory.
const SETTLE_TIME: Duration = Duration::from_secs(4);

/// Adds the agent's memory to a table, once it has settled.
pub(crate) fn measure(
    node: &Node,
    what: &str,
    goal: impl Into<Option<Goal>>,
    table: &mut Table,
) -> anyhow::Result<()> {
    thread::sleep(SETTLE_TIME);
    let mebibytes = |field: &str| anyhow::Ok(node.agent_status(field)? as f64 / 1024.0);
    table.add(format!("RSS, {what}"), mebibytes("VmRSS")?, "MiB", goal);
    table.add("  anonymous (the rest is file-backed)", mebibytes("RssAnon")?, "MiB", None);
    table.add("  peak so far", mebibytes("VmHWM")?, "MiB", None);
    Ok(())
}
