//! An agent that dies at any step, as by `kill -9`, harms nobody, and the next one brings all in order.
//!
//! The steps are those of `agent/src/crash.rs`, and the agent is one that was built to die at them on demand
//! (`cargo xtask test` builds it). In each [`scenario`] the [`walk`] notes which steps the agent passes, and then lets
//! it die at each of them. `FERRULE_CRASH_SCENARIO=add` walks through that one only, `FERRULE_CRASH_AT=add.up:1` lets the
//! agent die only there.
//!
//! [`kills`] come at any moment, also between steps, and to the agent that is shipped. `FERRULE_KILLS=1000` makes it
//! more of them, `FERRULE_KILLS_SEED` others.

mod kills;
mod orders;
mod scenario;
mod truth;
mod walk;
mod world;

use std::env;

/// As many as are soon done.
const KILLS: u64 = 25;
/// The same every time.
const SEED: u64 = 7;

#[test]
fn the_agent_may_die_at_every_step() {
    walk::walk_all(env::var("FERRULE_CRASH_SCENARIO").ok(), env::var("FERRULE_CRASH_AT").ok()).unwrap();
}

#[test]
fn the_agent_may_be_killed_at_any_moment() {
    let number = |name, default| env::var(name).ok().map_or(Ok(default), |text| text.parse::<u64>());
    let (kills, seed) =
        (number("FERRULE_KILLS", KILLS).unwrap(), number("FERRULE_KILLS_SEED", SEED).unwrap());
    println!("{kills} kills of seed {seed}");
    kills::kill_often(kills, seed).unwrap();
}
