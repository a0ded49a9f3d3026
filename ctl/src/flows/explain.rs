//! Errors of the agent, for people.

use anyhow::{Error, anyhow};
use tonic::{Code, Status};

/// The agent's message, without the code.
pub(super) fn explain(status: Status) -> Error {
    match status.code() {
        Code::Unimplemented => {
            anyhow!("the agent records no drops and flows: it is older than this ferrulectl")
        }
        Code::InvalidArgument | Code::FailedPrecondition | Code::ResourceExhausted => {
            anyhow!("the agent refuses the request: {}", status.message())
        }
        _ => Error::new(status).context("the agent does not answer as expected"),
    }
}
