//! What the programs `from_pod` and `to_pod` make of a packet: tables of packets, and properties.
//!
//! A row of a table is a packet, and all that is to come of it: verdict, packet, counters.

mod arp;
mod budget;
mod checksum;
mod frames;
mod ipv4;
mod ipv6;
mod model;
mod nat;
mod neighbours;
mod random;
mod table;
mod to_pod;
mod wire;
