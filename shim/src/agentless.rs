//! DEL without an agent, so that a pod can terminate while no agent runs.
//!
//! The shim deletes the attachment's host interface itself and records a [deferred
//! DEL](ferrule_proto::deferred) for the next agent. Without that record, the agent would take the missing
//! interface for a deviation and restore it.

mod deferred;
mod key;
mod links;
mod lock;

use std::{io, path::Path, time::Duration};

use ferrule_proto::{cni::error::Code, quoted::Quoted};

pub(crate) use self::key::Key;
use self::links::Links;
use crate::error::CniError;

/// Time for a starting agent, and for other shims that record a deferred DEL.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// Deletes an attachment without an agent.
///
/// `retry` calls the agent once more, under the lock that keeps an agent from starting, and returns the
/// agent's answer if one serves by now.
///
/// # Errors
/// If an agent serves by now and its DEL fails, if a starting agent keeps the lock until the timeout, or if
/// the kernel refuses to list or delete interfaces.
pub(crate) fn del(
    socket: &str,
    key: &Key,
    retry: impl FnOnce() -> Option<Result<(), CniError>>,
) -> Result<(), CniError> {
    let path = Path::new(socket);
    let lock = match lock::shared(path, LOCK_TIMEOUT) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            let msg = format!("the agent at {} is still starting after {LOCK_TIMEOUT:?}", Quoted(socket));
            return Err(try_again_later(&msg, "none: the runtime retries the DEL"));
        }
        lock => lock,
    };
    if let Some(answer) = retry() {
        return answer;
    }
    let failed = |error: io::Error| {
        let msg = format!("no agent at {}, and deleting the host interface failed: {error}", Quoted(socket));
        try_again_later(&msg, "start ferrule-agent on this node")
    };
    let mut links = Links::open().map_err(failed)?;
    let found = links.find(&key.stamp()).map_err(failed)?;
    // Recorded before the deletion, so that the agent learns of the DEL even if this process is killed in
    // between.
    let recorded = match &lock {
        Ok(_) => deferred::record(path, key, !found.is_empty()),
        Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
    };
    if let Err(error) = recorded {
        // Not an error: the pod must terminate, and the agent garbage-collects the attachment once its netns
        // is gone.
        eprintln!("ferrule: DEL of {} not recorded for the agent: {error}", key.stamp());
    }
    let deleted = links.delete(&found).map_err(failed);
    // Held until now: an agent that starts must find the interface deleted.
    drop(lock);
    deleted
}

fn try_again_later(msg: &str, details: &str) -> CniError {
    CniError::new(Code::TryAgainLater, format!("DEL: {msg}"), details)
}
