//! The test API server, over real HTTP.

#[cfg(test)] // so that clippy knows it for what it is
mod client;
mod faults;
mod lists;
mod watches;
mod writes;
