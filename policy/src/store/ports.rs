//! Named ports of pods.

use super::word::Word;
use crate::Protocol;

/// A port that a pod's container names. A pod may have several of one name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NamedPort {
    pub(crate) name: Word,
    pub(crate) protocol: Protocol,
    pub(crate) number: u16,
}

/// A name in a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PortName {
    pub(crate) name: Word,
    /// `None` is any.
    pub(crate) protocol: Option<Protocol>,
}

// === impl PortName ===

impl PortName {
    pub(crate) fn means(&self, port: &NamedPort) -> bool {
        self.name == port.name && self.protocol.is_none_or(|protocol| protocol == port.protocol)
    }
}
