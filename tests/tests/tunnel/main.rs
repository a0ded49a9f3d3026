//! The tunnel between nodes: what another node sends arrives, and what a forger sends is refused and counted.

mod arrive;
mod elsewhere;
mod forged;
mod underlay;
