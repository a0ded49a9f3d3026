//! The test harness: nodes, pods and runtimes made of namespaces.
//!
//! A [`node::Node`] is the thread that it runs on, in its own network and mount namespaces, with its own
//! `/run` and BPF file system. The kernel removes everything created on a node when the node's last process
//! ends, also if a test is killed. A [`fabric::Fabric`] is a cluster of three nodes and the network between
//! them. Real runtimes run in a [`pid_namespace::PidNamespace`], which kills their
//! daemons too.

pub mod apiserver;
pub mod capture;
pub mod chain;
pub mod churn;
pub mod cluster;
pub mod collector;
pub mod containerd;
pub mod cri;
pub mod dist;
pub mod fabric;
pub mod forge;
pub mod home;
pub mod host;
pub mod image;
pub mod node;
pub mod observe;
pub mod others;
pub mod packet;
pub mod pid_namespace;
pub mod pod;
pub mod podman;
pub mod probe;
pub mod program;
pub mod progress;
pub mod rules;
pub mod runtime;
pub mod sys;
pub mod traffic;
pub mod wire;
pub mod world;
