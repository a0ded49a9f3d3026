//! Runs lists of operations on one node; shrinks and prints a list that fails.

use std::{
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use ferrule_tests::cluster::with_cluster_of;

use crate::{
    fixture::Fixture,
    leaks::Baseline,
    operations::{self, Mode, Op},
};

/// Operations between two leak checks.
const LIST: usize = 60;
/// Time limit for shrinking a failing list.
const SHORTEN: Duration = Duration::from_secs(180);
/// Number of replays; concurrent calls interleave differently each time.
pub const REPLAYS: usize = 20;

/// Small enough to be exhausted now and then.
const POOL: &str = "10.244.0.0/26";
/// Of the node.
pub const RANGES: [&str; 2] = [POOL, ferrule_tests::node::POD_V6];
const ADDRESSES: (Ipv4Addr, Ipv4Addr) = (Ipv4Addr::new(10, 244, 0, 2), Ipv4Addr::new(10, 244, 0, 62));
// With self-healing off, damage stays until a call or a restart finds it.
const FLAGS: [&str; 6] = ["--vif-timeout", "1", "--reconcile-period", "5", "--self-heal", "off"];

/// The index of a failing list, and its failure.
struct Failed {
    at: usize,
    why: anyhow::Error,
}

/// Runs `count` operations generated from a seed.
pub fn check(seed: u64, mode: Mode, count: usize) {
    let lists: Vec<Vec<Op>> =
        (0..count.div_ceil(LIST)).map(|number| operations::make(seed + number as u64, mode, LIST)).collect();
    let Err(Failed { at, why }) = run(&lists) else { return };
    let list = lists.get(at).cloned().unwrap_or_default();
    let (shorter, again) = shorten(list);
    let again = again.map_or_else(
        || {
            "On a new node, the list does not fail again: it may need repetition, or the lists before it."
                .to_owned()
        },
        |why| format!("Failure of the shrunk list:\n{why:?}"),
    );
    panic!(
        "list {at} of seed {seed}, {mode:?}:\n{why:?}\n\nTo replay: FERRULE_MODEL_REPLAY='{}'\n{again}",
        printed(&shorter)
    );
}

/// A list as a failure prints it.
pub fn printed(list: &[Op]) -> String {
    serde_json::to_string(list).unwrap_or_default()
}

pub fn replay(list: &[Op], times: usize) {
    for number in 0..times {
        if let Err(Failed { why, .. }) = run(&[list.to_vec()]) {
            panic!("replay {number}:\n{why:?}");
        }
    }
}

fn run(lists: &[Vec<Op>]) -> Result<(), Failed> {
    let mut at = 0;
    let ran = with_cluster_of(&RANGES, &FLAGS, |node, cluster| {
        let mut fixture = Fixture::new(node, cluster, ADDRESSES)?;
        fixture.sync()?;
        let start = Baseline::take(fixture.node)?;
        for list in lists {
            let ran =
                list.iter().try_for_each(|op| fixture.apply(op).with_context(|| format!("operation {op:?}")));
            let cleared = ran.and_then(|()| {
                fixture.clear()?;
                start.wait_until_restored(fixture.node)
            });
            cleared.with_context(|| format!("history:\n{}", fixture.history.join("\n")))?;
            at += 1;
        }
        println!("{:#?}", fixture.tally);
        Ok(())
    });
    ran.map_err(|why| Failed { at, why })
}

/// Shrinks a failing list by removing parts while the rest still fails; returns the list and its failure.
fn shorten(mut list: Vec<Op>) -> (Vec<Op>, Option<anyhow::Error>) {
    let start = Instant::now();
    let fails = |list: &[Op]| run(&[list.to_vec()]).err().map(|it| it.why);
    let mut why = fails(&list);
    let mut size = list.len() / 2;
    while why.is_some() && size > 0 && start.elapsed() < SHORTEN {
        let mut from = 0;
        while from < list.len() && start.elapsed() < SHORTEN {
            let rest: Vec<Op> = list
                .iter()
                .enumerate()
                .filter(|(at, _)| !(from..from + size).contains(at))
                .map(|(_, op)| op.clone())
                .collect();
            match fails(&rest) {
                Some(still) => (list, why) = (rest, Some(still)),
                None => from += size,
            }
        }
        size /= 2;
    }
    (list, why)
}
