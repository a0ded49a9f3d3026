//! The durable half of the registry: one small file for each attachment, in `attachments/` of the state
//! directory.
//!
//! [`record`] is the content of a file, [`open`] judges the files of earlier agents, [`layout`] leads from
//! earlier layouts to this one, and [`files`] writes.

mod error;
mod files;
mod identity;
mod layout;
mod open;
mod record;
#[cfg(test)]
mod tests;

pub use error::StoreError;
pub use files::Store;
pub use identity::Identity;
pub use open::{Condition, Opened, open};
pub use record::{Kept, Released};
