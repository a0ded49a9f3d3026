//! The test harness: nodes, pods and runtimes made of namespaces.
//!
//! A [`node::Node`] is the thread that it runs on, in a network namespace and a mount namespace of its own, with its
//! own `/run` and its own BPF file system. Whatever is made on a node is gone with its last process, also if a
//! test is killed: the kernel takes it down. Real runtimes run in a [`cage::Cage`] on it, and leave no daemons behind.

pub mod apiserver;
pub mod cage;
pub mod chain;
pub mod cluster;
pub mod containerd;
pub mod cri;
pub mod dist;
pub mod host;
pub mod image;
pub mod node;
pub mod observe;
pub mod packet;
pub mod pod;
pub mod podman;
pub mod probe;
pub mod program;
pub mod runtime;
pub mod sys;
pub mod traffic;
