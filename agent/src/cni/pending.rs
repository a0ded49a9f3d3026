//! What an ADD has plugged and cannot answer yet: its VIF has to become active first.

use std::sync::Arc;

use super::{
    error::VerbError,
    phases::Phases,
    verbs::{Added, Node},
};
use crate::registry::{Attachment, Key};

/// What is plugged and waits to become active. Dropped, it is undone: the caller has gone, or waited in vain.
pub(super) struct Pending<'a> {
    node: &'a Arc<Node>,
    plugged: Option<Vec<Attachment>>,
}

// === impl Pending ===

impl<'a> Pending<'a> {
    pub(super) fn new(node: &'a Arc<Node>, plugged: Vec<Attachment>) -> Self {
        Self { node, plugged: Some(plugged) }
    }

    /// Makes it durable: the ADD has succeeded. What is plugged stays ours to undo until then, as the caller may go while we
    /// wait for our turn.
    ///
    /// # Errors
    /// If a DEL came meanwhile, somebody changed what was plugged, or the store fails; then it is undone.
    pub(super) async fn commit(mut self, key: &Key, phases: &Phases) -> Result<Vec<Attachment>, VerbError> {
        let plugged = self.plugged.clone().ok_or(VerbError::Lost)?;
        let commit = move |node: &Node, phases: &Phases| {
            // A DEL may have come meanwhile.
            let is_there = plugged.iter().all(|it| node.registry.get(&it.key).as_ref() == Some(it));
            if !is_there {
                return Err(VerbError::Overtaken);
            }
            // The healer looks at what is attached, and this was not: nobody has looked at it since it was plugged.
            if let Err(error) = node.is_as_plugged(&plugged) {
                node.undo(&plugged, phases);
                return Err(error);
            }
            node.commit(plugged, phases).map(Added::Now)
        };
        let committed = self.node.work(key, phases, commit, Node::undo_add).await;
        self.plugged = None;
        match committed? {
            Added::Now(attachments) | Added::Before(attachments) => Ok(attachments),
        }
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        let Some(plugged) = self.plugged.take() else { return };
        let Some(key) = plugged.first().map(Attachment::runtime_key) else { return };
        let node = Arc::clone(self.node);
        // The call's own is given back only after this; so the agent does not stop before it is done.
        let admitted = node.admit();
        tokio::spawn(async move {
            let _admitted = admitted;
            let undo = move |node: &Node, phases: &Phases| {
                let still: Vec<_> = plugged
                    .into_iter()
                    .filter(|it| node.registry.get(&it.key).as_ref() == Some(it))
                    .collect();
                node.undo(&still, phases);
                Ok(())
            };
            // What it cannot do, it has said.
            let _ = node.work(&key, &Phases::untold(), undo, |_, _| {}).await;
        });
    }
}
