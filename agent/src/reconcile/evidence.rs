//! The evidence for and against an attachment being orphaned. Collecting evidence may block, and changes
//! nothing.
//!
//! A proof holds only if its claim was observed: what cannot be read proves nothing.

mod link_gone;
mod netns_gone;
mod pod_gone;
mod proof;

use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

pub(super) use self::pod_gone::Witness;
pub use self::proof::Proof;
use self::{link_gone::link_gone, netns_gone::netns_gone};
use crate::registry::{Attachment, Key, Registry, State};

/// The evidence about the attachments of one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    /// Whether ADD has committed the attachments. Uncommitted ones belong to the ADD.
    pub is_committed: bool,
    /// The recorded path no longer leads to the recorded namespace.
    pub netns_gone: Proof,
    /// The host link is gone. The kernel deletes the link with the namespace of its peer, independent of
    /// paths.
    pub link_gone: Proof,
    /// The API server no longer has the pod. `None` if the API server cannot know the pod.
    pub pod_gone: Option<Proof>,
    /// No call runs on the key.
    pub not_in_work: Proof,
}

// === impl Evidence ===

impl Evidence {
    /// Collects the evidence about the attachments of a runtime key; `None` if there are none.
    pub(super) fn collect(
        registry: &Registry,
        witness: Witness<'_>,
        key: &Key,
        group: &[Attachment],
    ) -> Option<Self> {
        let requested = group.first()?;
        let link_gone = link_gone(group);
        Some(Self {
            is_committed: group.iter().all(|it| match it.state {
                State::Attached | State::Unplugging => true,
                State::Reserved | State::Plugged => false,
            }),
            netns_gone: if requested.has_path() {
                netns_gone(&requested.netns, requested.netns_id)
            } else {
                netns_gone_without_path(&link_gone)
            },
            link_gone,
            pod_gone: witness.pod_gone(&requested.pod, age(group)),
            not_in_work: if registry.is_locked(key) {
                Proof::no("a call runs on it, or waits to")
            } else {
                Proof::yes("no call runs on it")
            },
        })
    }

    /// All proofs by name, as `ferrulectl gc --dry-run` shows them.
    pub fn proofs(&self) -> impl Iterator<Item = (&'static str, &Proof)> {
        [
            ("netns-gone", Some(&self.netns_gone)),
            ("link-gone", Some(&self.link_gone)),
            ("pod-gone", self.pod_gone.as_ref()),
            ("not-in-work", Some(&self.not_in_work)),
        ]
        .into_iter()
        .filter_map(|(name, proof)| Some((name, proof?)))
    }

    /// Whether any proof suggests an orphan.
    pub fn is_suspect(&self) -> bool {
        self.netns_gone.holds
            || self.link_gone.holds
            || self.pod_gone.as_ref().is_some_and(|proof| proof.holds)
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (name, Proof { holds, observed })) in self.proofs().enumerate() {
            let (separator, holds) = (if number > 0 { "; " } else { "" }, if *holds { "yes" } else { "no" });
            write!(f, "{separator}{name}: {holds}, {observed}")?;
        }
        Ok(())
    }
}

/// A rebuilt attachment may lack a path. Its link proves instead, because the link goes with the namespace.
fn netns_gone_without_path(link_gone: &Proof) -> Proof {
    let Proof { holds, observed } = link_gone;
    Proof { holds: *holds, observed: format!("no path to the namespace is recorded, and {observed}") }
}

/// The age of the youngest attachment. After the clock was set back, the age is zero.
fn age(group: &[Attachment]) -> Duration {
    let created = group.iter().map(|it| it.created_at_ms).max().unwrap_or(u64::MAX);
    let created = UNIX_EPOCH.checked_add(Duration::from_millis(created));
    created.and_then(|created| SystemTime::now().duration_since(created).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn netns_without_path_is_gone_only_with_the_link() {
        assert!(!netns_gone_without_path(&Proof::no("the host has the link")).holds);
        assert!(netns_gone_without_path(&Proof::yes("the host has no link of it")).holds);
    }
}
