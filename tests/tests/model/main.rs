//! The CNI contract against a model: ADD, DEL, CHECK, GC, API events, damage and restarts in random order,
//! with the real agent, shim and kernel. After each step, the node's state must equal the model's.
//!
//! `FERRULE_MODEL_OPS=10000` sets the number of operations, `FERRULE_MODEL_SEED` the seed.
//! `FERRULE_MODEL_REPLAY` is a list of operations as printed by a failure, or a file with one: see
//! `docs/architecture.md`.

#![expect(clippy::panic, reason = "a failed test and an invalid setting panic")]

mod batch;
mod fixture;
mod invariants;
mod leaks;
mod linearize;
mod model;
mod nodes;
mod operations;
mod policies;
mod run;
mod time;

use std::{env, fs};

use ferrule_tests::observe;
use operations::{Mode, Op};

/// Default number of operations per test.
const OPS: usize = 120;
/// Fixed, so that failures are reproducible.
const SEED: u64 = 20;

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

fn check(mode: Mode) {
    // Both tests share the number of operations.
    let count = number("FERRULE_MODEL_OPS").map_or(OPS, |all| all as usize / 2);
    run::check(number("FERRULE_MODEL_SEED").unwrap_or(SEED), mode, count);
}

#[test]
fn sequential_calls_match_the_model() {
    check(Mode::Sequential);
}

#[test]
fn concurrent_calls_are_linearizable() {
    check(Mode::Concurrent);
}

#[test]
fn cooldown_and_collection_take_their_time() {
    time::check().unwrap();
}

/// Replays `FERRULE_MODEL_REPLAY` several times; without that, once a list of the generator.
#[test]
fn printed_list_is_replayed() {
    let (text, times) = match env::var("FERRULE_MODEL_REPLAY") {
        Ok(given) => (fs::read_to_string(&given).unwrap_or(given), run::REPLAYS),
        Err(_) => (run::printed(&operations::make(SEED, Mode::Concurrent, 10)), 1),
    };
    let operations: Vec<Op> = serde_json::from_str(&text).unwrap();
    assert!(!operations.is_empty(), "no operation to replay");
    run::replay(&operations, times);
}
