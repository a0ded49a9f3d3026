//! The price of counting and recording flows: the same two pods with each value of the agent's `--flows`.

use std::{fs, thread, time::Duration};

use agent_common::{FlowKey, event::FlowStats};
use anyhow::{Context as _, bail, ensure};
use aya::{
    maps::{Array, HashMap, Map, MapData, MapInfo},
    programs::loaded_programs,
};
use ferrule_tests::node::Node;

use crate::rates::{
    comparison::Comparison,
    load::{Cores, Load},
    path::Path,
};

pub(super) const NEVER: &str = "flows never";
pub(super) const OFF: &str = "flows off";
pub(super) const ON: &str = "flows on";

/// What the programs read for each packet: one flow in how many is counted. And what they have counted.
const SAMPLING: &str = "FLOW_SAMPLING";
const STATS: &str = "FLOW_STATS";
/// A new agent works for a moment after its start.
const SETTLE: Duration = Duration::from_millis(500);

pub(super) fn comparison() -> Comparison {
    let loads = [Load::RequestResponse, Load::ConnectRequestResponse];
    Comparison::new("Flows counted", vec![NEVER, OFF, ON], loads.map(|load| (load, Cores::Same)))
}

/// Measures each setting once. For `never`, an agent loads other programs. A change of a map separates off
/// and on, so that the same programs are measured twice in a row, every other round in the other order.
pub(super) fn round(
    node: &mut Node,
    path: &Path,
    duration: Duration,
    number: usize,
    into: &mut Comparison,
) -> anyhow::Result<()> {
    let (never, [off, on]) = (0, [(1, 0), (2, 1)]);
    restart(node, "never")?;
    for row in &mut into.rows {
        row.push(never, row.load.measure(path, row.cores, duration)?);
    }
    restart(node, "off")?;
    let mut sampling = Array::<_, u32>::try_from(Map::Array(map(node, SAMPLING)?))?;
    let counted = HashMap::<_, FlowKey, FlowStats>::try_from(Map::LruHashMap(map(node, STATS)?))?;
    ensure!(counted.keys().next().is_none(), "the programs count flows without being asked to");
    let turns = if number.is_multiple_of(2) { [off, on] } else { [on, off] };
    for row in &mut into.rows {
        for (way, one_in) in turns {
            sampling.set(0, &one_in, 0)?;
            row.push(way, row.load.measure(path, row.cores, duration)?);
        }
    }
    sampling.set(0, &0, 0)?;
    ensure!(counted.keys().next().is_some(), "the programs have counted no flow");
    Ok(())
}

/// Packets flow meanwhile: the pods stay attached, with the new agent's programs.
fn restart(node: &mut Node, flows: &str) -> anyhow::Result<()> {
    node.stop_agent()?;
    node.use_agent("ferrule-agent", &[("FERRULE_FLOWS", flows)]);
    node.start_again().with_context(|| format!("with flows {flows}"))?;
    thread::sleep(SETTLE);
    Ok(())
}

/// A map of the programs that this node's agent holds: the machine may run further agents.
fn map(node: &Node, name: &str) -> anyhow::Result<MapData> {
    let pid = node.agent_pid().context("no agent is running")?;
    let held = held_programs(pid)?;
    let mut maps = Vec::new();
    for program in loaded_programs() {
        // Another one may have been unloaded since the kernel listed it.
        let Some(program) = program.ok().filter(|it| held.contains(&it.id())) else { continue };
        maps.extend(program.map_ids()?.unwrap_or_default());
    }
    for id in maps {
        if MapInfo::from_id(id)?.name_as_str() == Some(name) {
            return Ok(MapData::from_id(id)?);
        }
    }
    bail!("no program of the agent {pid} has a map {name}")
}

/// The IDs of the programs that a process has open.
fn held_programs(pid: u32) -> anyhow::Result<Vec<u32>> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fdinfo"))?.collect::<Result<Vec<_>, _>>()?;
    // A descriptor may have been closed since.
    let infos = descriptors.iter().filter_map(|it| fs::read_to_string(it.path()).ok());
    let id = |info: String| info.lines().find_map(|line| line.strip_prefix("prog_id:")?.trim().parse().ok());
    Ok(infos.filter_map(id).collect())
}
