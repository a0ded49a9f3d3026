//! The Ferrule agent: a CNI daemon that plugs pods' network interfaces and forwards their packets in eBPF.
//!
//! `docs/architecture.md` describes the modules.

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
pub mod desired;
mod durable;
pub mod events;
pub mod heal;
pub mod health;
pub mod install;
pub mod ipam;
pub mod log;
pub mod masquerade;
pub mod memory;
pub mod metrics;
pub mod monitor;
pub mod nodes;
pub mod observe;
pub mod plug;
pub mod policy;
pub mod ports;
pub mod reconcile;
pub mod registry;
pub mod server;
pub mod trace;
pub mod watch;
