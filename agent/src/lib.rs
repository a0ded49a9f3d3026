//! The Ferrule agent: gives pods their network interfaces and carries their packets in eBPF.
//!
//! `docs/architecture.md` is the map of this house.

mod api;
pub mod app;
pub mod attach;
mod backoff;
mod chain;
pub mod cluster;
pub mod cni;
pub mod config;
mod crash;
pub mod dataplane;
pub mod decide;
mod durable;
pub mod events;
pub mod heal;
pub mod health;
pub mod install;
pub mod ipam;
pub mod metrics;
pub mod observe;
pub mod plug;
pub mod reconcile;
pub mod registry;
pub mod server;
pub mod trace;
pub mod watch;
