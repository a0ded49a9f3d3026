//! Failures: the attempt, the reason and the remedy.

use std::{error::Error, fmt};

use anyhow::Result;

/// A failed step.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) attempted: String,
    pub(crate) why: String,
    pub(crate) remedy: String,
}

/// Turns any error into a [`Failure`].
pub(crate) trait OrFail<T> {
    fn or_fail(self, attempted: impl Into<String>, remedy: impl Into<String>) -> Result<T>;
}

// === impl Failure ===

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { attempted, why, remedy } = self;
        write!(f, "{attempted}: failed\n  why:   {why}\n  to do: {remedy}")
    }
}

impl Error for Failure {}

// === impl OrFail ===

impl<T, E: fmt::Display> OrFail<T> for Result<T, E> {
    fn or_fail(self, attempted: impl Into<String>, remedy: impl Into<String>) -> Result<T> {
        self.map_err(|error| {
            Failure { attempted: attempted.into(), why: format!("{error:#}"), remedy: remedy.into() }.into()
        })
    }
}
