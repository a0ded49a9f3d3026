//! An agent that follows an API server: what it knows, what it keeps, and what pods get by it.

mod broken;
mod interfaces;
mod kuryr;
mod operator;
mod resume;
mod sources;
