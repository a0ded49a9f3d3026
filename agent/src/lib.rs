//! The Ferrule agent: gives pods their network interfaces and carries their packets in eBPF.
//!
//! `docs/architecture.md` is the map of this house.

pub mod app;
pub mod attach;
mod chain;
pub mod cni;
pub mod config;
mod crash;
pub mod dataplane;
pub mod decide;
pub mod events;
mod follow;
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
