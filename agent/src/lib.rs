//! The Ferrule agent: gives pods their network interfaces and carries their packets in eBPF.
//!
//! `docs/architecture.md` is the map of this house.

pub mod app;
mod chain;
pub mod cni;
pub mod config;
mod crash;
pub mod dataplane;
pub mod events;
mod follow;
pub mod heal;
pub mod health;
pub mod install;
pub mod metrics;
pub mod observe;
pub mod plug;
pub mod reconcile;
pub mod registry;
pub mod server;
pub mod trace;
pub mod vif;
pub mod watch;
