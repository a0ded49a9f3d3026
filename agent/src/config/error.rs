//! What is wrong with a configuration.

use std::{io, path::PathBuf};

use crate::{
    ipam::{PodCidrs, RangeError},
    log::InvalidFilter,
    masquerade::{InvalidPorts, Ports},
};

/// An invalid configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read the configuration file {path:?}: {source}")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the configuration file {path:?} is invalid: {source}")]
    Parse {
        path: PathBuf,
        #[source]
        source: Box<toml::de::Error>,
    },
    #[error(
        "the configuration file {path:?} has unknown keys: {keys}; `ferrule-agent config default` lists all"
    )]
    UnknownKeys { path: PathBuf, keys: String },
    #[error("no API server is configured: set --kubeconfig, run in a pod, or set --standalone")]
    NoApiServer,
    #[error("{0} needs Kubernetes: remove it, or remove --standalone")]
    NotWithStandalone(&'static str),
    #[error("cannot use {setting}: {source}")]
    Range {
        setting: &'static str,
        #[source]
        source: RangeError,
    },
    #[error("no range for pods' addresses is configured: set --pod-cidr")]
    NoPodCidr,
    #[error(
        "with Kubernetes, --pod-cidr {0} would give the pods of every node with this configuration the same addresses: \
         remove it, so that each node uses its Node's spec.podCIDRs; or set --single-node if the cluster has this node \
         only"
    )]
    SharedPodCidr(PodCidrs),
    #[error("the host name is empty or not UTF-8: set --node-name")]
    NoNodeName,
    #[error("{0:?} is not a valid name of a Node object: set --node-name")]
    NodeName(String),
    #[error("{what} must be {least} to {most} seconds, not {given}")]
    Seconds { what: &'static str, least: u64, most: u64, given: u64 },
    #[error("{setting} must be from {least} to {most} entries, not {given}")]
    Capacity { setting: &'static str, least: u32, most: u32, given: u32 },
    #[error("--cni-bin-dir and --cni-conf-dir need each other: set both or none")]
    HalfInstalled,
    #[error(
        "--metrics-cert and --metrics-key need each other, and --metrics-listen: set all or none of them"
    )]
    HalfCertificate,
    #[error("--otlp-endpoint must be a URL such as http://127.0.0.1:4317, not {given:?}: {why}")]
    Collector { given: String, why: &'static str },
    #[error("--tunnel-port must be from 1 to 65535, not 0")]
    TunnelPort,
    #[error(
        "cannot use --tunnel-port {port}: masqueraded flows get the ports {ports}, and their answers would be taken \
         for the tunnel's packets. Choose a port outside of these, or other --masquerade-ports"
    )]
    MasqueradedTunnel { port: u16, ports: Ports },
    #[error("invalid --log or FERRULE_LOG: {0}")]
    Log(#[from] InvalidFilter),
    #[error("cannot use --masquerade-ports: {0}")]
    Ports(#[from] InvalidPorts),
    #[error("{what} must be an absolute path, not {path:?}")]
    Relative { what: &'static str, path: PathBuf },
}
