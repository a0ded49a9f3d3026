//! Pods of several nodes reach each other, whatever happens to nodes, agents and the network between them.

mod broken;
mod changes;
mod containers;
mod fast_path;
mod fixture;
mod forgers;
mod healing;
mod hosts;
mod limits;
mod many;
mod migrate;
mod other_routes;
mod paths;
mod proxy;
mod services;
mod shared_ports;
mod shown;
mod uninstall;
mod untracked;
mod uplinks;
mod ways;
