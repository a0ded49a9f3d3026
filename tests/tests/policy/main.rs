//! Policies are enforced, by a cluster's API server, agent and programs together.

mod changes;
mod engine;
mod first;
mod fixture;
mod healing;
mod nodes;
mod restart;
mod scene;
mod seen;
mod sockets;
mod traffic;
mod waiting;
