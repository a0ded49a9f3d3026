//! Pods of several nodes reach each other, whatever happens to nodes, agents and the network between them.

mod changes;
mod fixture;
mod healing;
mod hosts;
mod paths;
mod proxy;
mod services;
