//! What the kernel has for other nodes: routes to their ranges, the tunnel device, and the rules by which
//! pods' packets to other nodes take the tunnel.

pub mod advertisements;
pub mod areas;
pub mod changes;
pub mod foreign;
pub mod others;
pub mod reach;
pub mod route;
pub mod rp_filter;
pub mod rule;
pub mod setting;
pub mod tunnel;
pub mod uplink_filter;
mod vni;
pub mod xfrm;
