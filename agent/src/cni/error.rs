//! What can go wrong in a verb, and the CNI error that the runtime gets for it.

use std::time::Duration;

use ferrule_proto::{
    API,
    cni::{ApiRange, Error, error::Code},
    names::InvalidName,
};
use ferrule_vif::VifError;

use crate::{
    chain::chain,
    dataplane::DataplaneError,
    plug::{PlugError, netlink::NetlinkError, netns::NetnsError},
    registry::{Pod, RegistryError},
    vif::Refused,
};

/// A verb that failed. Whatever it had done is undone.
#[derive(Debug, thiserror::Error)]
pub enum VerbError {
    /// A part of the request is not well-formed.
    #[error("the request is not well-formed: {0}")]
    Name(#[from] InvalidName),
    /// A part of the request is missing.
    #[error("the request has no {0}")]
    Missing(&'static str),
    /// The caller speaks other versions than we do.
    #[error("the caller speaks API {0}, and this agent speaks {API}")]
    Api(ApiRange),
    #[error(transparent)]
    Plug(#[from] PlugError),
    #[error("the registry refused")]
    Registry(#[from] RegistryError),
    #[error("the dataplane cannot be changed")]
    Dataplane(#[from] DataplaneError),
    /// The pod is no more, so that there is nothing to attach.
    #[error("the pod {0} is gone: it was deleted, has ended, or is on another node")]
    PodGone(Pod),
    /// What the pod waits for did not come.
    #[error("there was no {missing} within {} s", waited.as_secs())]
    NoVif { missing: &'static str, waited: Duration },
    /// The VIF is not to be understood.
    #[error("the pod's VIF cannot be read: {0}")]
    Vif(#[from] VifError),
    /// The VIF is not to be plugged.
    #[error("the pod's VIF is refused: {0}")]
    Refused(#[from] Refused),
    /// What was plugged is not any more what it should be.
    #[error("the pod's VIF has changed while its interface waited to become active")]
    VifChanged,
    /// A DEL came while an ADD was waiting.
    #[error("the container was deleted meanwhile")]
    Overtaken,
    /// Somebody changed what an ADD had plugged while it was waiting.
    #[error("what was plugged was changed before the VIF became active: {0}")]
    Damaged(String),
    /// The next agent serves what this one cannot wait for any more.
    #[error("the agent is stopping")]
    Stopping,
    /// More calls are in work than we can promise to serve in time.
    #[error("the agent is working on {0} calls already")]
    Busy(u32),
    /// CHECK for what was never added.
    #[error("there is no such attachment")]
    Unknown,
    /// CHECK found a difference.
    #[error("the attachment is not as ADD left it: {0}")]
    Differs(String),
    /// The work ended without a result.
    #[error("the agent failed while it was working on the call")]
    Lost,
}

// === impl VerbError ===

impl From<NetnsError> for VerbError {
    fn from(error: NetnsError) -> Self {
        Self::Plug(error.into())
    }
}

impl From<NetlinkError> for VerbError {
    fn from(error: NetlinkError) -> Self {
        Self::Plug(error.into())
    }
}

impl VerbError {
    /// The error as the runtime gets it.
    ///
    /// `what` is the call in words, such as "ADD of net/0123/eth0".
    pub fn into_proto(self, what: &str) -> Error {
        let (code, advice) = self.classify();
        let api = matches!(self, Self::Api(_)).then_some(API);
        Error {
            code: code.into(),
            message: format!("{what} failed: {}", chain(&self)),
            details: advice.to_owned(),
            api,
        }
    }

    /// The code, and what to do.
    fn classify(&self) -> (Code, &'static str) {
        match self {
            Self::Name(_) | Self::Missing(_) => (
                Code::InvalidEnvironment,
                "check what the runtime hands to the plugin, or which plugin it runs",
            ),
            Self::Api(_) => (Code::ApiIncompatible, "install plugin and agent from the same release"),
            Self::Plug(error) => plug(error),
            Self::PodGone(_) => (Code::UnknownContainer, "nothing: the runtime gives the sandbox up"),
            Self::NoVif { .. } => (
                Code::TryAgainLater,
                "see who decides it: the controller's log, `ferrulectl status`, and the pod's events",
            ),
            Self::Vif(_) => {
                (Code::VifRefused, "correct it; `ferrulectl vif decode -f` shows what is made of it")
            }
            Self::Refused(_) => (Code::VifRefused, "let the controller decide otherwise, or see --vif-cidr"),
            Self::VifChanged | Self::Overtaken | Self::Damaged(_) | Self::Stopping => {
                (Code::TryAgainLater, "the runtime tries again by itself")
            }
            Self::Registry(RegistryError::InUse { .. }) => (
                Code::TryAgainLater,
                "the address becomes free when that pod goes; if both should live, one of the two VIFs is wrong",
            ),
            Self::Registry(RegistryError::KeyTaken(_)) => {
                (Code::InterfaceExists, "give this network another interface name")
            }
            Self::Registry(RegistryError::Exhausted(_)) => (
                Code::TryAgainLater,
                "addresses become free as pods go; if this lasts, give the node a larger --pod-cidr",
            ),
            Self::Registry(_) => {
                (Code::TryAgainLater, "check that the state directory is writable and not full")
            }
            Self::Dataplane(_) => {
                (Code::TryAgainLater, "see the agent's log, and `bpftool map` for what the maps hold")
            }
            Self::Busy(_) => (Code::TryAgainLater, "the runtime tries again by itself"),
            Self::Unknown => (Code::UnknownContainer, "the runtime should add the container again"),
            Self::Differs(_) => {
                (Code::CheckFailed, "the runtime should delete the container and add it again")
            }
            Self::Lost => (Code::Internal, "see the agent's log"),
        }
    }
}

fn plug(error: &PlugError) -> (Code, &'static str) {
    match error {
        PlugError::Netns(NetnsError::Enter { .. }) => {
            (Code::Internal, "check that the agent has CAP_SYS_ADMIN")
        }
        PlugError::Netns(_) => (Code::InvalidNetns, "the runtime should try again with a new sandbox"),
        PlugError::InterfaceExists(_) => {
            (Code::InterfaceExists, "remove it from the pod, or give this network another interface name")
        }
        PlugError::AddressInUse(_) => (
            Code::TryAgainLater,
            "find out by `ip route show` whose route it is; without a VIF that says its address, the next try gets another one",
        ),
        PlugError::DefaultRouteExists => {
            (Code::RouteExists, "let only one network of the pod be its default, and list this one first")
        }
        PlugError::Mtu { .. } => {
            (Code::InvalidNetworkConfig, "set another `mtu` in the network configuration")
        }
        _ if error.is_gone() => {
            (Code::TryAgainLater, "the runtime tries again by itself; a DEL, or somebody, was faster")
        }
        PlugError::Netlink(_) | PlugError::Sysctl(_) | PlugError::NoAnswer => {
            (Code::Internal, "see the agent's log; the node's kernel refused what it is asked for each pod")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_what_was_attempted_why_it_failed_and_what_to_do() {
        let error =
            VerbError::from(NetnsError::NotNetns { path: "/tmp/x".into() }).into_proto("ADD of net/0/eth0");
        assert_eq!(error.code(), Code::InvalidNetns);
        assert_eq!(
            error.message,
            "ADD of net/0/eth0 failed: the pod's network namespace cannot be used: \"/tmp/x\" is not a network namespace"
        );
        assert!(!error.details.is_empty());
    }

    #[test]
    fn an_api_error_carries_our_own_range() {
        let error = VerbError::Api(ApiRange { min: 7, max: 9 }).into_proto("ADD");
        assert_eq!((error.code(), error.api), (Code::ApiIncompatible, Some(API)));
        assert!(error.message.contains("v7 to v9"), "{}", error.message);
    }
}
