//! Policies: whether a pod may send or receive a packet.

mod rows;
