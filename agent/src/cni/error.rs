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
    policy::AdmitError,
    ports::PortError,
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
    /// A part of the request has no meaning.
    #[error("invalid request: {0}")]
    Invalid(&'static str),
    /// The caller and the agent have no API version in common.
    #[error("the caller speaks API {0}, and this agent speaks {API}")]
    Api(ApiRange),
    #[error(transparent)]
    Attach(#[from] AttachError),
}

// === impl CallError ===

impl CallError {
    /// The error for the runtime; `what` names the call, such as "ADD of net/0123/eth0".
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
            Self::Name(_) | Self::Missing(_) | Self::Invalid(_) => (
                Code::InvalidEnvironment,
                "check the runtime's CNI configuration, and that plugin and agent are of one release",
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
            (Code::VifRefused, "correct the VIF at its source, or allow its range with --vif-cidr")
        }
        AttachError::Overtaken | AttachError::Damaged(_) | AttachError::Stopping => {
            (Code::TryAgainLater, "none: the runtime retries by itself")
        }
        AttachError::Restamped(_) => (
            Code::InterfaceExists,
            "restore the alias that `ferrulectl verify` expects, or DEL the container first",
        ),
        AttachError::Registry(RegistryError::InUse { .. }) => (
            Code::TryAgainLater,
            "wait for the DEL of that pod; if both pods should run, correct one of the two VIFs",
        ),
        AttachError::Registry(RegistryError::KeyTaken(_)) => {
            (Code::InterfaceExists, "choose another interface name for this network")
        }
        AttachError::Registry(RegistryError::NoAddress(_)) => (
            Code::TryAgainLater,
            "wait for pods to end, or give the node a larger pod CIDR (spec.podCIDRs, --pod-cidr)",
        ),
        AttachError::Registry(_) => {
            (Code::TryAgainLater, "check that the state directory is writable and has free space")
        }
        AttachError::Dataplane(_) => {
            (Code::TryAgainLater, "see the agent's log; `bpftool map` shows the maps")
        }
        AttachError::Policy(AdmitError::Refused(_)) => (
            Code::TryAgainLater,
            "see `ferrulectl status`; raise the setting that the message names, or remove policies",
        ),
        AttachError::Policy(_) => (
            Code::TryAgainLater,
            "none: the runtime retries by itself; see `ferrulectl status`, and whether the API server can be reached",
        ),
        AttachError::Ports(PortError::NoAddress(_)) => {
            (Code::UnsupportedField, "remove the hostIP, or give the pod an address of that family")
        }
        AttachError::Ports(PortError::Own { .. }) => {
            (Code::UnsupportedField, "choose another hostPort, or change the agent's setting on all nodes")
        }
        AttachError::Ports(PortError::NoSctp(_)) => {
            (Code::UnsupportedField, "use a kernel with CONFIG_NF_CT_PROTO_SCTP, or remove the hostPort")
        }
        AttachError::Ports(PortError::Taken { .. }) => {
            (Code::TryAgainLater, "wait for the DEL of that container, or choose another hostPort or hostIP")
        }
        AttachError::Ports(PortError::Netlink(_)) => {
            (Code::TryAgainLater, "see `nft list table inet ferrule-ports`")
        }
        AttachError::Busy(_) => (Code::TryAgainLater, "none: the runtime retries by itself"),
        AttachError::Unknown => (Code::UnknownContainer, "the runtime should repeat the ADD"),
        AttachError::Differs(_) => (
            Code::CheckFailed,
            "the runtime should DEL and ADD the container; `ferrulectl verify` lists the drift",
        ),
        AttachError::Lost => (Code::Internal, "see the agent's log"),
    }
}

fn decide(error: &DecideError) -> (Code, &'static str) {
    match error {
        DecideError::PodGone(_) => (Code::UnknownContainer, "none: the runtime gives up the sandbox"),
        DecideError::TimedOut { .. } => (
            Code::TryAgainLater,
            "see the log of the controller that decides the VIF, `ferrulectl status`, and the pod's events",
        ),
        DecideError::Never(_) => (
            Code::VifRefused,
            "annotate the pod, and let the runtime pass annotations (docs/vif.md); or set another --vif-source",
        ),
        DecideError::RangesWithdrawn(_) => (
            Code::TryAgainLater,
            "create the Node object again, or let a controller assign its spec.podCIDRs; see `ferrulectl status`",
        ),
        DecideError::Vif(_) => {
            (Code::VifRefused, "correct it; `ferrulectl vif decode -f` shows how the agent reads it")
        }
        DecideError::Changed => (Code::TryAgainLater, "none: the runtime retries by itself"),
    }
}

fn plug(error: &PlugError) -> (Code, &'static str) {
    match error {
        PlugError::Netns(NetnsError::Enter { .. }) => (Code::Internal, "give the agent CAP_SYS_ADMIN"),
        PlugError::Netns(_) => (Code::InvalidNetns, "none: the runtime retries with a new sandbox"),
        PlugError::InterfaceExists(_) => (
            Code::InterfaceExists,
            "remove the interface from the pod, or choose another interface name for this network",
        ),
        PlugError::AddressInUse(_) => (
            Code::TryAgainLater,
            "find the owner of the route with `ip route show`; an address from the IPAM is replaced by the retry",
        ),
        PlugError::AddressNotUsable { .. } => {
            (Code::TryAgainLater, "none: the runtime retries by itself; the node is overloaded if this lasts")
        }
        PlugError::DefaultRouteExists => (
            Code::RouteExists,
            "give only one network of the pod a default route, and list that network first",
        ),
        PlugError::Mtu { .. } => (Code::InvalidNetworkConfig, "change `mtu` in the network configuration"),
        _ if error.is_gone() => {
            (Code::TryAgainLater, "none: the runtime retries by itself; the interface was deleted meanwhile")
        }
        PlugError::Netlink(_) | PlugError::Sysctl(_) | PlugError::NoAnswer => {
            (Code::Internal, "see the agent's log; the kernel refused a request that every pod needs")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_call_the_cause_and_the_remedy() {
        let error = CallError::from(AttachError::from(NetnsError::NotNetns { path: "/tmp/x".into() }))
            .into_proto("ADD of net/0/eth0");
        assert_eq!(error.code(), Code::InvalidNetns);
        assert_eq!(
            error.message,
            "ADD of net/0/eth0 failed: cannot use the pod's network namespace: \"/tmp/x\" is not a network namespace"
        );
        assert!(!error.details.is_empty());
    }

    #[test]
    fn each_failure_has_its_code() {
        use std::path::PathBuf;

        use nix::errno::Errno;

        use crate::registry::{Key, RegistryError};

        let key = || Key::try_from("net/a/eth0".to_owned()).unwrap();
        let enter = NetnsError::Enter { path: PathBuf::new(), source: Errno::EPERM.into() };
        for (error, code) in [
            (AttachError::Overtaken, 11),
            (AttachError::Stopping, 11),
            (AttachError::Damaged(String::new()), 11),
            (AttachError::Busy(1024), 11),
            (AttachError::Restamped(String::new()), 102),
            (AttachError::Unknown, 3),
            (AttachError::Differs(String::new()), 101),
            (AttachError::Lost, 999),
            (RegistryError::InUse { address: [10, 0, 0, 1].into(), by: key() }.into(), 11),
            (RegistryError::KeyTaken(key().ifname).into(), 102),
            (RegistryError::Identity(std::io::ErrorKind::NotFound.into()).into(), 11),
            (PlugError::InterfaceExists(key().ifname).into(), 102),
            (PlugError::DefaultRouteExists.into(), 103),
            (PlugError::Mtu { mtu: 9000, why: String::new() }.into(), 7),
            (PlugError::NoAnswer.into(), 999),
            (enter.into(), 999),
            (NetnsError::Host { path: PathBuf::new() }.into(), 8),
            (DecideError::Changed.into(), 11),
            (DecideError::PodGone(crate::cluster::PodRef::default()).into(), 3),
            (DecideError::TimedOut { missing: "VIF", waited: std::time::Duration::ZERO }.into(), 11),
        ] {
            let text = format!("{error:?}");
            let error = CallError::from(error).into_proto("ADD");
            assert_eq!(error.code, code, "{text}");
            assert!(!error.details.is_empty(), "{text}");
        }
    }

    #[test]
    fn a_node_without_ranges_lets_the_runtime_retry_and_an_impossible_annotation_does_not() {
        let code =
            |error: DecideError| CallError::from(AttachError::from(error)).into_proto("ADD").code() as i32;
        assert_eq!(code(DecideError::RangesWithdrawn("the Node was deleted".to_owned())), 11);
        assert_eq!(code(DecideError::Never("annotation")), 104);
    }

    #[test]
    fn an_api_error_carries_our_own_range() {
        let error = CallError::Api(ApiRange { min: 7, max: 9 }).into_proto("ADD");
        assert_eq!((error.code(), error.api), (Code::ApiIncompatible, Some(API)));
        assert!(error.message.contains("v7 to v9"), "{}", error.message);
    }
}
