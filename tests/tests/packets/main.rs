//! Verdicts of the programs: tables of packets, and properties of random packets.
//!
//! A row of a table is a packet and its expected result: verdict, packet that comes out, counters. A model
//! computes the expected result of a random packet.

mod arp;
mod budget;
mod checksum;
mod events;
mod flow_stats;
mod frames;
mod ipv4;
mod ipv6;
mod model;
mod neighbours;
mod node_tunnel;
mod oracle;
mod policy;
mod random;
mod remote;
mod siblings;
mod stack;
mod stack_flows;
mod table;
mod to_pod;
mod to_uplink;
mod tx_ring;
mod uplink;
mod vxlan;
mod wire;
