//! The CNI error that the runtime gets for a failed call.

use ferrule_proto::{
    API,
    cni::{ApiRange, Error, error::Code},
    names::InvalidName,
};

use crate::{
    attach::AttachError,
    chain::chain,
    decide::DecideError,
    plug::{PlugError, netns::NetnsError},
    registry::RegistryError,
};

/// A failed call: the request is invalid, or the engine failed. Nothing is left changed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// A part of the request is not well-formed.
    #[error("invalid request: {0}")]
    Name(#[from] InvalidName),
    /// A part of the request is missing.
    #[error("invalid request: missing {0}")]
    Missing(&'static str),
    /// The caller and the agent have no API version in common.
    #[error("the caller speaks API {0}, and this agent speaks {API}")]
    Api(ApiRange),
    #[error(transparent)]
    Attach(#[from] AttachError),
}

// === impl CallError ===

impl CallError {
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

    /// The CNI code, and the remedy for `details`.
    fn classify(&self) -> (Code, &'static str) {
        match self {
            Self::Name(_) | Self::Missing(_) => (
                Code::InvalidEnvironment,
                "check what the runtime hands to the plugin, or which plugin it runs",
            ),
            Self::Api(_) => (Code::ApiIncompatible, "install plugin and agent from the same release"),
            Self::Attach(error) => attach(error),
        }
    }
}

fn attach(error: &AttachError) -> (Code, &'static str) {
    match error {
        AttachError::Name(_) => (Code::VifRefused, "correct the name in the pod's VIF"),
        AttachError::Decide(error) => decide(error),
        AttachError::Plug(error) => plug(error),
        AttachError::Refused(_) => {
            (Code::VifRefused, "let the controller decide otherwise, or see --vif-cidr")
        }
        AttachError::Overtaken | AttachError::Damaged(_) | AttachError::Stopping => {
            (Code::TryAgainLater, "the runtime tries again by itself")
        }
        AttachError::Registry(RegistryError::InUse { .. }) => (
            Code::TryAgainLater,
            "the address becomes free when that pod goes; if both should live, one of the two VIFs is wrong",
        ),
        AttachError::Registry(RegistryError::KeyTaken(_)) => {
            (Code::InterfaceExists, "give this network another interface name")
        }
        AttachError::Registry(RegistryError::Exhausted(_)) => (
            Code::TryAgainLater,
            "addresses become free as pods go; if this lasts, give the node a larger --pod-cidr",
        ),
        AttachError::Registry(_) => {
            (Code::TryAgainLater, "check that the state directory is writable and not full")
        }
        AttachError::Dataplane(_) => {
            (Code::TryAgainLater, "see the agent's log, and `bpftool map` for what the maps hold")
        }
        AttachError::Busy(_) => (Code::TryAgainLater, "the runtime tries again by itself"),
        AttachError::Unknown => (Code::UnknownContainer, "the runtime should add the container again"),
        AttachError::Differs(_) => {
            (Code::CheckFailed, "the runtime should delete the container and add it again")
        }
        AttachError::Lost => (Code::Internal, "see the agent's log"),
    }
}

fn decide(error: &DecideError) -> (Code, &'static str) {
    match error {
        DecideError::PodGone(_) => (Code::UnknownContainer, "nothing: the runtime gives the sandbox up"),
        DecideError::TimedOut { .. } => (
            Code::TryAgainLater,
            "see who decides it: the controller's log, `ferrulectl status`, and the pod's events",
        ),
        DecideError::Vif(_) => {
            (Code::VifRefused, "correct it; `ferrulectl vif decode -f` shows how the agent reads it")
        }
        DecideError::Changed => (Code::TryAgainLater, "none: the runtime retries by itself"),
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
        let error = CallError::from(AttachError::from(NetnsError::NotNetns { path: "/tmp/x".into() }))
            .into_proto("ADD of net/0/eth0");
        assert_eq!(error.code(), Code::InvalidNetns);
        assert_eq!(
            error.message,
            "ADD of net/0/eth0 failed: the pod's network namespace cannot be used: \"/tmp/x\" is not a network namespace"
        );
        assert!(!error.details.is_empty());
    }

    #[test]
    fn an_api_error_carries_our_own_range() {
        let error = CallError::Api(ApiRange { min: 7, max: 9 }).into_proto("ADD");
        assert_eq!((error.code(), error.api), (Code::ApiIncompatible, Some(API)));
        assert!(error.message.contains("v7 to v9"), "{}", error.message);
    }
}
