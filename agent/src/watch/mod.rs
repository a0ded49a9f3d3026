//! List+watch loops that resume: the changes of API objects, in order, across interruptions and restarts.
//!
//! [`Watches`] owns one loop per source (see [`reflector`]), generic over the object type. A loop passes each
//! change to its [`Sink`], and checkpoints the objects and the position in a [`CheckpointStore`], from which
//! a restarted agent resumes. It calls the sink directly: a slow sink delays the stream, and nothing queues
//! up.

mod checkpoint;
mod checkpoint_log;
mod checkpoint_writer;
mod counters;
mod error;
mod failures;
mod inventory;
mod liveness;
mod object;
mod pages;
mod reflector;
mod scope;
mod settings;
mod sink;
mod stream;
mod unconfirmed;
mod watches;
mod wire;

pub use checkpoint::{Checkpoint, CheckpointStore, Entry, Json, SaveError, Update};
pub use checkpoint_log::CheckpointLogs;
pub use object::{Object, ObjectKey};
pub use scope::Scope;
pub use settings::Settings;
pub use sink::{Change, Sink};
pub use watches::Watches;

#[cfg(test)]
mod tests;
