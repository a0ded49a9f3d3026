//! Files that survive the agent: written whole under a temporary name and renamed, and sealed with a
//! checksum.
//!
//! No write waits for a disk. The content is valid in the boot that wrote it only; the page cache outlives
//! the agent, and a power cut, which the page cache does not survive, ends the boot.

mod crc32c;
mod directory;
mod seal;

pub use directory::{Directory, DirectoryError};
pub use seal::{seal, unseal};
