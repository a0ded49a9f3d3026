//! DEL while the agent is away: a pod has to end also then.
//!
//! The host link with the stamp of the attachment is deleted here (a kind of VIF without such a link has nothing to
//! delete: its devices go with the pod's namespace, and its record with the note), and a [`note`] is left for the agent. By it, the agent tells a
//! container that was deleted from one that has lost its interface, which it makes anew while the namespace lives.

mod links;
mod lock;
mod note;

use std::{io, path::Path, time::Duration};

use ferrule_proto::{
    cni::{AttachmentKey, error::Code},
    names::{ContainerId, IfName, InvalidName, NetworkName},
};

use self::links::Links;
use crate::error::{CniError, Shown};

/// What identifies the attachment, checked.
pub(crate) struct Key {
    network: NetworkName,
    container_id: ContainerId,
    ifname: IfName,
}

/// How long an agent may take to start, and other shims to leave their notes.
const LOCK_WAIT: Duration = Duration::from_secs(5);

/// Deletes an attachment for an agent that is away.
///
/// `again` calls the agent once more, when it cannot come back unnoticed any more, and gives its answer if it has.
///
/// # Errors
/// Those of an agent that has come back; if it is starting and does not come to an end with that; and if the kernel refuses.
pub(crate) fn del(
    socket: &str,
    key: &Key,
    again: impl FnOnce() -> Option<Result<(), CniError>>,
) -> Result<(), CniError> {
    let path = Path::new(socket);
    let locked = match lock::shared(path, LOCK_WAIT) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            let why = format!("the agent at {} has been starting for {LOCK_WAIT:?}", Shown(socket));
            return Err(later(&why, "the runtime tries again by itself"));
        }
        locked => locked,
    };
    if let Some(answer) = again() {
        return answer;
    }
    let failed = |error: io::Error| {
        let why = format!("the agent at {} is away, and deleting the interface: {error}", Shown(socket));
        later(&why, "start ferrule-agent on this node")
    };
    let mut links = Links::open().map_err(failed)?;
    let found = links.find(&key.stamp()).map_err(failed)?;
    // Before the interface goes: whatever ends this process now, the agent knows.
    let left = match &locked {
        Ok(_) => note::leave(path, key, !found.is_empty()),
        Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
    };
    if let Err(error) = left {
        // The agent sees in the kernel that the attachment is gone once its namespace is; and no pod may stay for a file.
        eprintln!("ferrule: no note for the agent of the DEL of {}: {error}", key.stamp());
    }
    let deleted = links.delete(&found).map_err(failed);
    // Not before: an agent that starts is to find the interface gone.
    drop(locked);
    deleted
}

// === impl Key ===

impl Key {
    /// The attachment of a request.
    ///
    /// # Errors
    /// If a part breaks its rules; the names of requests were checked when they were made.
    pub(crate) fn new(key: &AttachmentKey) -> Result<Self, InvalidName> {
        Ok(Self {
            network: NetworkName::new(&key.network)?,
            container_id: ContainerId::new(&key.container_id)?,
            ifname: IfName::new(&key.ifname)?,
        })
    }

    /// The alias by which the agent marks the host's interface.
    fn stamp(&self) -> String {
        format!("ferrule:{}:{}:{}", self.network, self.container_id, self.ifname)
    }
}

fn later(why: &str, details: &str) -> CniError {
    CniError::new(Code::TryAgainLater, format!("DEL: {why}"), details)
}
