//! nftables: the agent's tables, what changes them, flows that conntrack remembers, and others' chains that
//! drop pods' packets.

pub mod changes;
pub mod conntrack;
mod expression;
pub mod firewall;
pub mod host_ports_table;
pub mod listing;
pub mod masquerade_table;
mod nfnetlink;
mod numbers;
mod own_port;
mod sets;
mod table;
