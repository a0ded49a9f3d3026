//! An agent that crashes at any step, as by SIGKILL, harms no pod, and the next agent restores all
//! invariants.
//!
//! The steps are the crash points of `agent/src/crash.rs`; the agent is a test build (`cargo xtask test`)
//! that crashes at them on demand. For each [`scenario`], [`walk`] records the steps that the agent passes
//! and then lets it die at each one, when the agent first passes it. `FERRULE_CRASH_AT=every` lets it die
//! each time that it passes one, `FERRULE_CRASH_AT=add.up:2` only there; `FERRULE_CRASH_SCENARIO=add`
//! restricts the test to one scenario.
//!
//! [`kills`] also hit the shipped agent between steps, at random times. `FERRULE_KILLS=1000` sets their
//! number, `FERRULE_KILLS_SEED` the seed.

mod crash_points;
mod fixture;
mod invariants;
mod kills;
mod policies;
mod scenario;
mod walk;

use std::env;

use walk::Deaths;

/// Default number of kills, for a short run.
const KILLS: u64 = 25;
/// Fixed, so that failures are reproducible.
const SEED: u64 = 7;

#[test]
fn crash_at_every_step_is_recovered() {
    let at = env::var("FERRULE_CRASH_AT").ok();
    let deaths = at.map_or(Ok(Deaths::First), |at| at.parse()).unwrap();
    walk::walk_all(env::var("FERRULE_CRASH_SCENARIO").ok(), &deaths).unwrap();
}

#[test]
fn kill_at_random_times_is_recovered() {
    let number = |name, default| env::var(name).ok().map_or(Ok(default), |text| text.parse::<u64>());
    let (kills, seed) =
        (number("FERRULE_KILLS", KILLS).unwrap(), number("FERRULE_KILLS_SEED", SEED).unwrap());
    println!("{kills} kills of seed {seed}");
    kills::kill_often(kills, seed).unwrap();
}
