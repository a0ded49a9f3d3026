//! Failures of the store.

use std::path::PathBuf;

/// A store that cannot be opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot open the registry's store {path:?}")]
    Open {
        path: PathBuf,
        #[source]
        source: Box<redb::Error>,
    },
    /// A full or a read-only disk, most likely.
    #[error("cannot {operation} the registry's store {path:?}")]
    Access {
        operation: &'static str,
        path: PathBuf,
        #[source]
        source: Box<redb::Error>,
    },
    #[error("cannot encode the record of attachment {key} for the registry's store {path:?}")]
    Encode {
        path: PathBuf,
        key: String,
        #[source]
        source: serde_json::Error,
    },
    #[error(
        "the registry's store {path:?} has layout {found}, and this agent supports the layouts 1 to {newest}: a newer agent wrote \
         the file. Nothing was changed. Start the newer agent again; or move the file away, and this agent rebuilds the attachments \
         from the kernel"
    )]
    Layout { path: PathBuf, found: u64, newest: u64 },
    #[error(
        "the registry's store {path:?} belongs to an agent in another network namespace ({recorded}; this agent's is {own}), which \
         holds the interfaces of its pods: all pods would seem gone. Nothing was changed. Start the agent in the node's own network \
         namespace, as a pod with `hostNetwork: true`; or if the other namespace has ended, move the file away"
    )]
    OtherNetns { path: PathBuf, recorded: String, own: String },
    #[error(
        "the registry's store {path:?} is damaged ({why}) and cannot be quarantined: it is left as it is"
    )]
    Quarantine {
        path: PathBuf,
        why: String,
        #[source]
        source: Box<redb::Error>,
    },
}
