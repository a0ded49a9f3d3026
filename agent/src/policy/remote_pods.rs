//! The names of other nodes' pods, as far as policies have made the agent watch them.

use std::net::IpAddr;

use super::Enforcer;

/// A pod of another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemotePod {
    pub namespace: String,
    pub name: String,
    /// The one by which the pod was found.
    pub address: IpAddr,
}

/// Knows the pods of other nodes.
pub trait RemotePods: Send + Sync {
    /// The pod that has an address now, by the API. Never waits: while policies are being compiled, none is
    /// named.
    fn with_address(&self, address: IpAddr) -> Option<RemotePod>;
}

// === impl RemotePods ===

impl RemotePods for Enforcer {
    fn with_address(&self, address: IpAddr) -> Option<RemotePod> {
        self.try_read(|compiler| {
            let (namespace, name) = compiler.pod_with(address)?;
            Some(RemotePod { namespace: namespace.to_owned(), name: name.to_owned(), address })
        })?
    }
}
