//! Lists of operations, run one after the other on one node; a list that fails is made shorter and printed.

use std::{
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use ferrule_tests::cluster::with_cluster_of;

use crate::{
    left::Left,
    ops::{self, Mode, Op},
    world::World,
};

/// Operations between two looks at what is left.
const LIST: usize = 60;
/// How long a list that failed is made shorter.
const SHORTEN: Duration = Duration::from_secs(180);
/// How often a list is replayed: what happens at once does not happen the same way twice.
const REPLAYS: usize = 20;

/// Small enough that it is used up now and then.
const POOL: &str = "10.244.0.0/26";
const ADDRESSES: (Ipv4Addr, Ipv4Addr) = (Ipv4Addr::new(10, 244, 0, 2), Ipv4Addr::new(10, 244, 0, 62));
/// What is damaged stays so while the agent runs, for the calls that are to find it so; a start puts it right all the same.
const FLAGS: [&str; 6] = ["--vif-timeout", "1", "--reconcile-period", "5", "--self-heal", "off"];

/// A list that failed, where, and why.
struct Failed {
    at: usize,
    why: anyhow::Error,
}

/// Runs as many operations as that, made from a seed.
pub fn check(seed: u64, mode: Mode, count: usize) {
    let lists: Vec<Vec<Op>> =
        (0..count.div_ceil(LIST)).map(|number| ops::make(seed + number as u64, mode, LIST)).collect();
    let Err(Failed { at, why }) = run(&lists) else { return };
    let list = lists.get(at).cloned().unwrap_or_default();
    let (shorter, again) = shorten(list);
    let again = again.map_or_else(
        || {
            "On a node of its own, it does not fail again: it may take several times, or the lists before it."
                .to_owned()
        },
        |why| format!("Its own failure:\n{why:?}"),
    );
    panic!(
        "list {at} of seed {seed}, {mode:?}:\n{why:?}\n\nTo replay it: FERRULE_MODEL_REPLAY='{}'\n{again}",
        serde_json::to_string(&shorter).unwrap_or_default()
    );
}

/// Runs a list several times.
pub fn replay(list: &[Op]) {
    for number in 0..REPLAYS {
        if let Err(Failed { why, .. }) = run(&[list.to_vec()]) {
            panic!("at replay {number}:\n{why:?}");
        }
    }
}

fn run(lists: &[Vec<Op>]) -> Result<(), Failed> {
    let mut at = 0;
    let ran = with_cluster_of(&[POOL, ferrule_tests::node::POD_V6], &FLAGS, |node, cluster| {
        let mut world = World::new(node, cluster, ADDRESSES)?;
        world.settle()?;
        let start = Left::look(world.node)?;
        for list in lists {
            let ran = list
                .iter()
                .try_for_each(|op| world.apply(op).with_context(|| format!("while it happened: {op:?}")));
            let cleared = ran.and_then(|()| {
                world.clear()?;
                start.wait_until_restored(world.node)
            });
            cleared.with_context(|| format!("what happened:\n{}", world.history.join("\n")))?;
            at += 1;
        }
        println!("{:#?}", world.tally);
        Ok(())
    });
    ran.map_err(|why| Failed { at, why })
}

/// The shortest list found that fails, and its failure: parts are left out for as long as the rest still fails.
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
