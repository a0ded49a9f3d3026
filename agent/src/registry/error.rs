//! Failures of the registry.

use std::{io, net::IpAddr, path::PathBuf};

use ferrule_proto::names::IfName;

use super::{key::Key, store::StoreError};
use crate::ipam::NoAddress;

/// A failed operation of the registry.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    NoAddress(#[from] NoAddress),
    #[error("the address {address} is in use by {by}")]
    InUse { address: IpAddr, by: Key },
    #[error("the interface name {0} is in use by another interface of the container")]
    KeyTaken(IfName),
    #[error("cannot use the state directory {path:?}")]
    Directory {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot read the identity of this boot and network namespace")]
    Identity(#[source] io::Error),
    /// Two agents would allocate the same addresses.
    #[error(
        "the state directory {path:?} is locked by another ferrule-agent{}",
        pid.as_deref().map(|pid| format!(" (pid {pid})")).unwrap_or_default()
    )]
    Locked { path: PathBuf, pid: Option<String> },
}
