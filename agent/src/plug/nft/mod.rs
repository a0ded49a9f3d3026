//! nftables: the agent's table, what changes it, and others' chains that drop pods' packets.

mod expression;
pub mod firewall;
pub mod masquerade_changes;
pub mod masquerade_table;
mod nfnetlink;
mod numbers;
mod sets;
