//! Where packets leave the node that no policy judges.

/// By which interfaces, and why.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unjudged {
    /// No filter of the agent is there.
    pub surely: Option<String>,
    /// Programs of others run before, and may keep packets from it. Most do not.
    pub perhaps: Option<String>,
}
