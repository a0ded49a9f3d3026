//! Policies are enforced, by a cluster's API server, agent and programs together.

mod fixture;
mod healing;
mod restart;
mod waiting;
