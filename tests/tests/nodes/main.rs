//! Pods of several nodes reach each other, whatever happens to nodes, agents and the network between them.

mod by_hand;
mod fixture;
mod hosts;
mod paths;
mod proxy;
mod services;
