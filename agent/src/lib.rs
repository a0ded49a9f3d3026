//! The Ferrule agent: gives pods their network interfaces and carries their packets in eBPF.
//!
//! `docs/architecture.md` is the map of this house.

pub mod app;
pub mod cni;
pub mod config;
pub mod dataplane;
pub mod observe;
pub mod plug;
pub mod reconcile;
pub mod registry;
pub mod server;
pub mod vif;
