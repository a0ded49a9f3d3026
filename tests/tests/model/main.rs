//! The whole CNI contract against a model: ADD, DEL, CHECK, GC, events of the watch, damage and restarts in random
//! orders, with the real agent, shim and kernel. After each step, all there is has to be all there should be.
//!
//! `FERRULE_MODEL_OPS=10000` makes it long, `FERRULE_MODEL_SEED` makes it another one, and `FERRULE_MODEL_REPLAY` is a list
//! of operations as a failure prints it, or a file with one: see `docs/operations.md`.

#![expect(
    clippy::panic,
    reason = "a test that finds something wrong, or is told nonsense, is to panic with it"
)]

mod batch;
mod invariants;
mod judge;
mod left;
mod model;
mod ops;
mod run;
mod world;

use std::{env, fs};

use ferrule_tests::observe;
use ops::{Mode, Op};

/// Operations of each test, unless it is said otherwise.
const OPS: usize = 120;
/// The same every time: a failure that cannot be seen again helps nobody.
const SEED: u64 = 20;

/// The number in an environment variable.
fn number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

fn check(mode: Mode) {
    if env::var_os("FERRULE_MODEL_REPLAY").is_some() {
        return;
    }
    // The two tests share what is asked for.
    let count = number("FERRULE_MODEL_OPS").map_or(OPS, |all| all as usize / 2);
    run::check(number("FERRULE_MODEL_SEED").unwrap_or(SEED), mode, count);
}

#[test]
fn calls_in_turn_do_what_the_contract_says() {
    check(Mode::InTurn);
}

#[test]
fn calls_at_once_do_what_they_would_in_some_order() {
    check(Mode::AtOnce);
}

/// Nothing, unless a list is given.
#[test]
fn a_list_that_failed_is_replayed() {
    let Ok(given) = env::var("FERRULE_MODEL_REPLAY") else { return };
    let text = fs::read_to_string(&given).unwrap_or(given);
    let ops: Vec<Op> = serde_json::from_str(&text).unwrap();
    run::replay(&ops);
}
