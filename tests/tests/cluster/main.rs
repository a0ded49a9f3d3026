//! An agent that watches an API server: resuming watches, VIF decisions, and failures.

mod faults;
mod interfaces;
mod kuryr;
mod nodes;
mod operator;
mod policies;
mod ranges;
mod resume;
mod sources;
mod wishes;
