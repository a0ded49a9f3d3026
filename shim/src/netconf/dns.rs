//! `dns` of the network configuration.

use serde::{Deserialize, Serialize};

/// DNS settings of the pod, which the result of ADD returns to the runtime.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Dns {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) nameservers: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) domain: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) search: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) options: Vec<String>,
}

/// Longest `dns`, in bytes of JSON: in memory, a list of empty names is many times larger than its JSON.
pub(super) const MAX_DNS: usize = 64 * 1024;

// === impl Dns ===

impl Dns {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
