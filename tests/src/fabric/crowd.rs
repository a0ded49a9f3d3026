//! Node objects of a large cluster's nodes, which do not exist, and how long an agent takes for them.

use std::{net::IpAddr, time::Duration};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use crate::apiserver::objects;

const LISTED: &str = "listed watch=\"nodes\"";
const CHANGED: &str = "changed the routes to other nodes";

/// A Node with ranges and addresses of both families, and with the labels that the kubelet and the controller
/// of a cloud set; every tenth of the first thousand is on the fabric's segment.
pub fn node(number: u16) -> Value {
    let [high, low] = number.to_be_bytes();
    let addresses: [IpAddr; 2] = if number.is_multiple_of(10) && number < 1000 {
        [[192, 0, 2, 100 + (number / 10) as u8].into(), [0x2001, 0xdb8, 1, 0, 0, 0, 1, number].into()]
    } else {
        [[198, 18, high, low].into(), [0x2001, 0xdb8, 0x18, 0, 0, 0, 0, number].into()]
    };
    let (name, ranges) =
        (name(number), [format!("172.{}.{low}.0/24", 16 + high), format!("fd01:0:0:{number:x}::/64")]);
    let labels = json!({ "metadata": { "labels": {
        "beta.kubernetes.io/arch": "amd64",
        "beta.kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": "m6i.2xlarge",
        "topology.kubernetes.io/region": "eu-central-1",
        "topology.kubernetes.io/zone": "eu-central-1a",
    } } });
    let node = objects::merged(objects::node(&name, &ranges.each_ref().map(String::as_str)), &labels);
    objects::with_addresses(node, &addresses)
}

pub fn name(number: u16) -> String {
    format!("other-{number}")
}

/// How long an agent took from the list of the nodes to the last route or row, by its log.
///
/// # Errors
/// If the log does not have both.
pub fn converged(log: &str) -> anyhow::Result<Duration> {
    let lines = |text: &'static str| log.lines().filter(move |line| line.contains(text));
    let listed = of_day(lines(LISTED).next().with_context(|| format!("no {LISTED} in {log}"))?)?;
    let changed = of_day(lines(CHANGED).next_back().with_context(|| format!("no {CHANGED} in {log}"))?)?;
    changed.checked_sub(listed).context("the routes changed before the list")
}

/// The time of a line of the log.
fn of_day(line: &str) -> anyhow::Result<Duration> {
    let (_, time) = line.split_once('T').context("no time")?;
    let numbers: Vec<f64> = time.split(['Z', ':']).take(3).map(str::parse).collect::<Result<_, _>>()?;
    let &[hours, minutes, seconds] = numbers.as_slice() else { bail!("{line}") };
    Ok(Duration::from_secs_f64((hours * 60.0 + minutes) * 60.0 + seconds))
}
