//! Why the engine could not attach, detach or verify.

use ferrule_proto::names::InvalidName;

use crate::{
    dataplane::MapFailure,
    decide::{DecideError, Refused},
    plug::{PlugError, netlink::NetlinkError, netns::NetnsError},
    policy::AdmitError,
    ports::PortError,
    registry::RegistryError,
};

/// A failed operation of the engine. Everything that the operation had changed is rolled back.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// A name in the pod's VIF is not well-formed.
    #[error("the pod's VIF has an invalid interface name: {0}")]
    Name(#[from] InvalidName),
    #[error(transparent)]
    Decide(#[from] DecideError),
    /// The VIF breaks a rule of this node.
    #[error("the pod's VIF is refused: {0}")]
    Refused(#[from] Refused),
    #[error(transparent)]
    Plug(#[from] PlugError),
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error("cannot change the dataplane's maps")]
    Dataplane(#[from] MapFailure),
    #[error(transparent)]
    Policy(#[from] AdmitError),
    #[error(transparent)]
    Ports(#[from] PortError),
    /// A DEL of the same key arrived while an ADD was waiting.
    #[error("a DEL of this container arrived during its ADD")]
    Overtaken,
    /// The interface of a waiting ADD was modified before the VIF became active.
    #[error("the plugged interface was modified before its VIF became active: {0}")]
    Damaged(String),
    /// The interface of an earlier ADD has another alias now: not the agent's to replace.
    #[error("the host interface of an earlier ADD is not the agent's to replace: {0}")]
    Restamped(String),
    /// The next agent serves the retried call.
    #[error("the agent is stopping")]
    Stopping,
    /// The limit on concurrent calls.
    #[error("the agent is already serving {0} calls, its limit")]
    Busy(u32),
    /// CHECK of a key without an attachment.
    #[error("no attachment is recorded for this container and interface")]
    Unknown,
    /// CHECK found a deviation.
    #[error("the attachment has drifted from the state that ADD created: {0}")]
    Differs(String),
    /// The worker thread panicked.
    #[error("the agent's thread for this call ended without a result: please report this defect")]
    Lost,
}

// === impl AttachError ===

impl From<NetnsError> for AttachError {
    fn from(error: NetnsError) -> Self {
        Self::Plug(error.into())
    }
}

impl From<NetlinkError> for AttachError {
    fn from(error: NetlinkError) -> Self {
        Self::Plug(error.into())
    }
}
