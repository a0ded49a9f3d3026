//! The connection to the API server: client, credentials and errors.

mod client;
mod error;
mod exec_plugin;
#[cfg(test)]
mod tests;
mod transport;

pub use client::Api;
pub use error::{ApiError, Status};
