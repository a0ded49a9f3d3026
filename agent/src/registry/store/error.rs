//! Failures of the store.

use std::{io, path::PathBuf};

use crate::{durable::DirectoryError, registry::Key};

/// A store that cannot be opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot open the registry's store")]
    Directory(#[source] DirectoryError),
    /// A full or a read-only disk, most likely.
    #[error("cannot {operation} the registry's store {path:?}")]
    Access {
        operation: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the registry's store {path:?} was removed or replaced while the agent runs")]
    Displaced { path: PathBuf },
    #[error("cannot encode the record of attachment {key}")]
    Encode {
        key: Key,
        #[source]
        source: serde_json::Error,
    },
    #[error(
        "the file {path:?} of the registry's store has layout {found}, and this agent supports the layouts {oldest} to {newest}: \
         another version of the agent wrote the file. Nothing was changed. Start that version again; or move the directory away, and \
         this agent rebuilds the attachments from the kernel"
    )]
    Layout { path: PathBuf, found: u64, oldest: u64, newest: u64 },
    #[error(
        "the file {path:?} of the registry's store belongs to an agent in another network namespace ({recorded}; this agent's is \
         {own}), which holds the interfaces of its pods: all pods would seem gone. Nothing was changed. Start the agent in the node's \
         own network namespace, as a pod with `hostNetwork: true`; or if the other namespace has ended, move the directory away"
    )]
    OtherNetns { path: PathBuf, recorded: String, own: String },
    #[error(
        "the registry's store {path:?} is damaged ({why}) and cannot be quarantined: it is left as it is"
    )]
    Quarantine {
        path: PathBuf,
        why: String,
        #[source]
        source: io::Error,
    },
}
