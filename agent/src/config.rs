//! The configuration: flags override the environment, which overrides the file; validated once.

mod command;
mod dataplane_settings;
mod deprecated;
mod error;
mod file;
mod manual;
mod metrics_settings;
mod places;
mod run;
#[cfg(test)]
mod tests;
mod validate;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use clap::{Parser, ValueEnum};
use http::Uri;
use ipnet::IpNet;
use serde::Deserialize;

use crate::{
    dataplane::{self, Flows, LogLevel},
    decide::VifSource,
    ipam::PodCidrs,
    log, masquerade, nodes, policy, reconcile, watch,
};

pub use deprecated::Deprecated;
pub use error::ConfigError;

/// The validated configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// `None` in standalone mode.
    pub kubernetes: Option<Kubernetes>,
    /// The ranges of the IPAM. `None` with Kubernetes: use the Node's `spec.podCIDRs`; otherwise the cluster
    /// has this node only.
    pub pod_cidrs: Option<PodCidrs>,
    /// The source of pods' VIFs.
    pub vif_source: VifSource,
    /// How long an ADD waits for a VIF.
    pub vif_timeout: Duration,
    /// The ranges that VIFs of annotations and KuryrPorts must lie in; empty: `pod_cidrs`.
    pub vif_cidrs: Vec<IpNet>,
    /// Periods of the garbage collection of orphaned attachments.
    pub reconcile: reconcile::Settings,
    /// Whether deviations are repaired, or only reported.
    pub self_heal: Switch,
    /// Which packets of pods get an address of the node.
    pub masquerade: masquerade::Settings,
    /// How the ranges of other nodes are reached.
    pub nodes: nodes::Settings,
    /// Whether the cluster's policies are enforced.
    pub policy: policy::Mode,
    /// What becomes of new pods while the cluster's policies have never been listed.
    pub policy_unlisted: policy::Unlisted,
    /// The ranges of Services, which no node's range may overlap.
    pub service_cidrs: Vec<IpNet>,
    pub socket: PathBuf,
    /// The directory of the durable stores.
    pub state_dir: PathBuf,
    /// The parent of the directory of pinned maps, on a BPF file system.
    pub bpf_dir: PathBuf,
    /// Log level and map capacities of the dataplane.
    pub dataplane: dataplane::Settings,
    /// The address of metrics and probes.
    pub http: SocketAddr,
    /// Where clients beyond the node get metrics, if anywhere.
    pub metrics: Option<MetricsListener>,
    /// The trace collector, if any.
    pub otlp_endpoint: Option<Uri>,
    /// Where to install the CNI plugin and its configuration; `None`: do not install them.
    pub install: Option<InstallDirs>,
    pub log: LogSettings,
    /// The settings in use that a later release drops.
    pub deprecated: Vec<Deprecated>,
}

/// The server of metrics beyond the node, which needs Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricsListener {
    pub address: SocketAddr,
    /// Files of the certificate's chain and its key, in PEM; `None`: a certificate that no authority has
    /// signed.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

/// The agent's own log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSettings {
    pub filter: log::Filter,
    pub format: log::Format,
}

/// The settings of a node in a Kubernetes cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kubernetes {
    pub node_name: String,
    /// `None`: use the pod's service account.
    pub kubeconfig: Option<PathBuf>,
    pub watch: watch::Settings,
}

/// A switch that is on by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Switch {
    #[default]
    On,
    Off,
}

/// The container runtime's directories on the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstallDirs {
    pub bin: PathBuf,
    pub conf: PathBuf,
}

/// The Ferrule agent: a CNI daemon that plugs pods' network interfaces and forwards their packets in eBPF.
#[derive(Debug, Parser)]
#[command(version, about)]
pub struct Args {
    #[command(subcommand)]
    command: Option<command::Command>,
    /// Configuration file (TOML). Its keys are the long flags, with `_` instead of `-`.
    #[arg(long, env = "FERRULE_CONFIG", default_value = DEFAULT_FILE)]
    config: PathBuf,
    #[command(flatten)]
    settings: Settings,
    #[arg(skip = DEPRECATED)]
    deprecated: &'static [deprecated::Entry<Settings>],
}

/// Where an agent leaves files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    pub install: Option<InstallDirs>,
    pub socket: PathBuf,
    pub state_dir: PathBuf,
    pub bpf_dir: PathBuf,
    pub log: LogSettings,
}

/// The settings of one origin: flags and environment, or the file.
#[derive(Debug, Default, clap::Args, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Settings {
    /// Run without Kubernetes: addresses come from `--pod-cidr`, or from annotations in the runtime's calls.
    #[arg(long, env = "FERRULE_STANDALONE", num_args = 0..=1, default_missing_value = "true")]
    standalone: Option<bool>,
    /// Name of this node's Node object [default: the host name in lower case].
    #[arg(long, env = "FERRULE_NODE_NAME", value_name = "NAME")]
    node_name: Option<String>,
    /// Kubeconfig of the API server [default: the pod's service account].
    #[arg(long, env = "FERRULE_KUBECONFIG", value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Source of pods' VIFs [default: auto].
    #[arg(long, env = "FERRULE_VIF_SOURCE", value_enum, value_name = "SOURCE")]
    vif_source: Option<VifSource>,
    /// Deadline of an ADD that waits for its pod's VIF [default: 60].
    #[arg(long, env = "FERRULE_VIF_TIMEOUT", value_name = "SECONDS")]
    vif_timeout: Option<u64>,
    /// Range that addresses in annotations must lie in; repeatable [default: the pod CIDRs].
    #[arg(long = "vif-cidr", env = "FERRULE_VIF_CIDR", value_delimiter = ',', value_name = "CIDR")]
    #[serde(rename = "vif_cidr")]
    vif_cidrs: Vec<String>,
    /// Time after which a failing watch becomes unhealthy; the watch keeps retrying [default: 60].
    #[arg(long, env = "FERRULE_WATCH_RETRY_TIMEOUT", value_name = "SECONDS")]
    watch_retry_timeout: Option<u64>,
    /// Time without events or bookmarks after which a watch is reopened [default: 90].
    #[arg(long, env = "FERRULE_WATCH_READ_TIMEOUT", value_name = "SECONDS")]
    watch_read_timeout: Option<u64>,
    /// Longest backoff between two attempts to watch [default: 30].
    #[arg(long, env = "FERRULE_WATCH_MAX_BACKOFF", value_name = "SECONDS")]
    watch_max_backoff: Option<u64>,
    /// Period of the garbage collection of orphaned attachments [default: 120].
    #[arg(long, env = "FERRULE_RECONCILE_PERIOD", value_name = "SECONDS")]
    reconcile_period: Option<u64>,
    /// Repair deviations of pods' interfaces, or only report and count them [default: on].
    #[arg(long, env = "FERRULE_SELF_HEAL", value_enum, value_name = "SWITCH")]
    self_heal: Option<Switch>,
    /// Give packets from pods to the world an address of the node; `auto`: those from IPv4 and unique local
    /// IPv6 addresses, `on`: also those from global IPv6 addresses [default: auto].
    #[arg(long, env = "FERRULE_MASQUERADE", value_enum, value_name = "SWITCH")]
    masquerade: Option<masquerade::Mode>,
    /// Destinations that see pods' own addresses, such as the pod CIDRs of the cluster; repeatable. The
    /// node's own ranges and `--vif-cidr` are such, too.
    #[arg(
        long = "non-masquerade-cidr",
        env = "FERRULE_NON_MASQUERADE_CIDR",
        value_delimiter = ',',
        value_name = "CIDR"
    )]
    #[serde(rename = "non_masquerade_cidr")]
    non_masquerade_cidrs: Vec<String>,
    /// Configuration file of ip-masq-agent with further such destinations; the file may be missing, and
    /// changes take effect at once [default: none].
    #[arg(long, env = "FERRULE_IP_MASQ_AGENT_CONFIG", value_name = "FILE")]
    ip_masq_agent_config: Option<PathBuf>,
    /// Ports of the node for masqueraded flows, without NodePorts and hostPorts [default: 32768-65535].
    #[arg(long, env = "FERRULE_MASQUERADE_PORTS", value_name = "FIRST-LAST")]
    masquerade_ports: Option<String>,
    /// How pods of other nodes are reached. `auto`: directly on the same network, by VXLAN else; `direct`: by
    /// the way to the node, which routes its pods; `vxlan`: always; `off`: others route [default: auto].
    #[arg(long, env = "FERRULE_NODE_ROUTES", value_enum, value_name = "HOW")]
    node_routes: Option<nodes::Mode>,
    /// Whether packets between pods of two nodes bypass the host's stack and its firewall [default: on].
    #[arg(long, env = "FERRULE_NODE_FAST_PATH", value_enum, value_name = "SWITCH")]
    node_fast_path: Option<Switch>,
    /// UDP port of the tunnels between nodes, the same on every node [default: 4789].
    #[arg(long, env = "FERRULE_TUNNEL_PORT", value_name = "PORT")]
    tunnel_port: Option<u16>,
    /// Range of Services' addresses, which no node's pod CIDR may overlap, beside the cluster's ServiceCIDRs;
    /// repeatable.
    #[arg(long = "service-cidr", env = "FERRULE_SERVICE_CIDR", value_delimiter = ',', value_name = "CIDR")]
    #[serde(rename = "service_cidr")]
    service_cidrs: Vec<String>,
    /// Address to serve metrics and probes on [default: 127.0.0.1:9469].
    #[arg(long, env = "FERRULE_HTTP", value_name = "ADDR")]
    http: Option<SocketAddr>,
    /// Address to serve metrics on beyond the node, such as `0.0.0.0:9470`, by HTTPS, to clients that the API
    /// server authenticates and allows to `get` /metrics; needs Kubernetes [default: none].
    #[arg(long, env = "FERRULE_METRICS_LISTEN", value_name = "ADDR")]
    metrics_listen: Option<SocketAddr>,
    /// Certificate for --metrics-listen, in PEM; changes take effect at once [default: one that no authority
    /// has signed].
    #[arg(long, env = "FERRULE_METRICS_CERT", value_name = "FILE")]
    metrics_cert: Option<PathBuf>,
    /// Private key of --metrics-cert, in PEM.
    #[arg(long, env = "FERRULE_METRICS_KEY", value_name = "FILE")]
    metrics_key: Option<PathBuf>,
    /// Trace collector for CNI calls, OTLP over gRPC, such as http://127.0.0.1:4317 [default: no tracing].
    #[arg(long, env = "FERRULE_OTLP_ENDPOINT", value_name = "URL")]
    otlp_endpoint: Option<String>,
    /// Directory to install the CNI plugin in; needs --cni-conf-dir [default: do not install].
    #[arg(long, env = "FERRULE_CNI_BIN_DIR", value_name = "DIR")]
    cni_bin_dir: Option<PathBuf>,
    /// Directory to write the CNI configuration to, once the agent is ready; needs --cni-bin-dir.
    #[arg(long, env = "FERRULE_CNI_CONF_DIR", value_name = "DIR")]
    cni_conf_dir: Option<PathBuf>,
    /// Range to allocate pods' addresses from; repeatable, with Kubernetes only together with
    /// --single-node [default with Kubernetes: the node's spec.podCIDRs].
    #[arg(long = "pod-cidr", env = "FERRULE_POD_CIDR", value_delimiter = ',', value_name = "CIDR")]
    #[serde(rename = "pod_cidr")]
    pod_cidrs: Vec<String>,
    /// The cluster has this node only, so that --pod-cidr gives no other node the same addresses.
    #[arg(long, env = "FERRULE_SINGLE_NODE", num_args = 0..=1, default_missing_value = "true")]
    single_node: Option<bool>,
    /// Unix socket to listen on, in a directory of its own [default: /run/ferrule/agent.sock].
    #[arg(long, env = "FERRULE_SOCKET", value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Directory of the durable stores [default: /run/ferrule].
    #[arg(long, env = "FERRULE_STATE_DIR", value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Directory of pinned maps, on a BPF file system [default: /sys/fs/bpf/ferrule].
    #[arg(long, env = "FERRULE_BPF_DIR", value_name = "DIR")]
    bpf_dir: Option<PathBuf>,
    /// Filter of the agent's log: levels, and targets with levels, such as `warn,ferrule_agent::watch=debug`
    /// [default: info].
    #[arg(long, env = "FERRULE_LOG", value_name = "FILTER")]
    log: Option<String>,
    /// Form of the agent's log; `auto`: text on a terminal, JSON otherwise [default: auto].
    #[arg(long, env = "FERRULE_LOG_FORMAT", value_enum, value_name = "FORMAT")]
    log_format: Option<log::Format>,
    /// Log level of the eBPF programs; every level but `off` slows down each packet [default: off].
    #[arg(long, env = "FERRULE_EBPF_LOG", value_enum, value_name = "LEVEL")]
    ebpf_log: Option<LogLevel>,
    /// Capacity of the eBPF map VIFS: the most pod interfaces on this node [default: 4096].
    #[arg(long, env = "FERRULE_MAX_VIFS", value_name = "ENTRIES")]
    max_vifs: Option<u32>,
    /// Capacity of the eBPF map ENDPOINTS: the most pod addresses on this node [default: 16384].
    #[arg(long, env = "FERRULE_MAX_ENDPOINTS", value_name = "ENTRIES")]
    max_endpoints: Option<u32>,
    /// Capacity of the eBPF map STACK_FLOWS: flows between pods of this node that the host translates; each
    /// pod can fill a 16th of it, and then evicts its own flows [default: 65536].
    #[arg(long, env = "FERRULE_MAX_STACK_FLOWS", value_name = "ENTRIES")]
    max_stack_flows: Option<u32>,
    /// Capacity of the eBPF map NODES: the most ranges and addresses of all nodes; four for a node with two
    /// address families [default: 16384].
    #[arg(long, env = "FERRULE_MAX_NODE_ENTRIES", value_name = "ENTRIES")]
    max_node_entries: Option<u32>,
    /// Whether NetworkPolicies and ClusterNetworkPolicies are enforced. `off`: pods may send and receive
    /// everything [default: enforce].
    #[arg(long, env = "FERRULE_POLICY", value_enum, value_name = "MODE")]
    policy: Option<policy::Mode>,
    /// What becomes of new pods while the cluster's policies have never been listed: they `wait`, and their
    /// ADD fails at the VIF timeout; or they are `open` once that has passed since the agent's start, until
    /// the first list. Pods that policies judge go on to be judged [default: wait].
    #[arg(long, env = "FERRULE_POLICY_UNLISTED", value_enum, value_name = "HOW")]
    policy_unlisted: Option<policy::Unlisted>,
    /// Capacity of the eBPF map PEERS: addresses that policies know; two for each address of the cluster's
    /// pods and nodes, because a restart writes all rows once more [default: 262144].
    #[arg(long, env = "FERRULE_MAX_POLICY_PEERS", value_name = "ENTRIES")]
    max_policy_peers: Option<u32>,
    /// Capacity of the eBPF map RULES: twice what the policies of this node's pods need, and four times what
    /// those need that change at once, because old and new rows exist until the pods are switched; NAMED has
    /// half of it, BLOCKS a quarter, PORTS an eighth, RULESETS a 32nd [default: 131072].
    #[arg(long, env = "FERRULE_MAX_POLICY_RULES", value_name = "ENTRIES")]
    max_policy_rules: Option<u32>,
    /// Capacity of the eBPF map POLICY_FLOWS: answered flows of pods that policies judge; POLICY_PENDING, of
    /// flows without an answer, has a quarter of it [default: 131072].
    #[arg(long, env = "FERRULE_MAX_POLICY_FLOWS", value_name = "ENTRIES")]
    max_policy_flows: Option<u32>,
    /// Let pods serve DHCP: otherwise, answers of DHCP servers from pods are dropped.
    #[arg(long, env = "FERRULE_ALLOW_DHCP_SERVERS", num_args = 0..=1, default_missing_value = "true")]
    allow_dhcp_servers: Option<bool>,
    /// Count and record flows of pods: `on`; `off` until `ferrulectl flows --sampling` switches; `never`
    /// [default: off].
    #[arg(long, env = "FERRULE_FLOWS", value_enum, value_name = "WHEN")]
    flows: Option<Flows>,
}

/// The changelog lists each of these under *Deprecated*.
const DEPRECATED: &[deprecated::Entry<Settings>] = &[];
const DEFAULT_FILE: &str = "/etc/ferrule/agent.toml";
const HTTP: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9469);

// === impl Config ===

impl Config {
    /// Whether policies come from an API server. Otherwise there are none.
    pub fn watches_policies(&self) -> bool {
        self.kubernetes.is_some() && self.policy == policy::Mode::Enforce
    }

    /// How long new pods wait for the first list of policies, before they are open.
    pub fn opens_unlisted_after(&self) -> Option<Duration> {
        (self.policy_unlisted == policy::Unlisted::Open).then_some(self.vif_timeout)
    }
}

// === impl Args ===

impl Args {
    /// Reads the file, merges and validates all settings.
    ///
    /// # Errors
    /// If the file cannot be read or parsed (a missing default file is empty), or a setting is invalid.
    pub fn into_config(self) -> Result<Config, ConfigError> {
        let file = Settings::read(&self.config)?;
        // The condition under which kube uses a service account.
        let is_in_pod = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
        self.settings.over(file).validate(is_in_pod, self.deprecated)
    }
}

// === impl Settings ===

impl Settings {
    /// Overrides the file. Clap has merged flags and environment already.
    fn over(self, file: Self) -> Self {
        Self {
            standalone: self.standalone.or(file.standalone),
            node_name: self.node_name.or(file.node_name),
            kubeconfig: self.kubeconfig.or(file.kubeconfig),
            vif_source: self.vif_source.or(file.vif_source),
            vif_timeout: self.vif_timeout.or(file.vif_timeout),
            vif_cidrs: if self.vif_cidrs.is_empty() { file.vif_cidrs } else { self.vif_cidrs },
            watch_retry_timeout: self.watch_retry_timeout.or(file.watch_retry_timeout),
            watch_read_timeout: self.watch_read_timeout.or(file.watch_read_timeout),
            watch_max_backoff: self.watch_max_backoff.or(file.watch_max_backoff),
            reconcile_period: self.reconcile_period.or(file.reconcile_period),
            self_heal: self.self_heal.or(file.self_heal),
            masquerade: self.masquerade.or(file.masquerade),
            non_masquerade_cidrs: if self.non_masquerade_cidrs.is_empty() {
                file.non_masquerade_cidrs
            } else {
                self.non_masquerade_cidrs
            },
            ip_masq_agent_config: self.ip_masq_agent_config.or(file.ip_masq_agent_config),
            masquerade_ports: self.masquerade_ports.or(file.masquerade_ports),
            node_routes: self.node_routes.or(file.node_routes),
            node_fast_path: self.node_fast_path.or(file.node_fast_path),
            tunnel_port: self.tunnel_port.or(file.tunnel_port),
            service_cidrs: if self.service_cidrs.is_empty() {
                file.service_cidrs
            } else {
                self.service_cidrs
            },
            http: self.http.or(file.http),
            metrics_listen: self.metrics_listen.or(file.metrics_listen),
            metrics_cert: self.metrics_cert.or(file.metrics_cert),
            metrics_key: self.metrics_key.or(file.metrics_key),
            otlp_endpoint: self.otlp_endpoint.or(file.otlp_endpoint),
            cni_bin_dir: self.cni_bin_dir.or(file.cni_bin_dir),
            cni_conf_dir: self.cni_conf_dir.or(file.cni_conf_dir),
            pod_cidrs: if self.pod_cidrs.is_empty() { file.pod_cidrs } else { self.pod_cidrs },
            single_node: self.single_node.or(file.single_node),
            socket: self.socket.or(file.socket),
            state_dir: self.state_dir.or(file.state_dir),
            bpf_dir: self.bpf_dir.or(file.bpf_dir),
            log: self.log.or(file.log),
            log_format: self.log_format.or(file.log_format),
            ebpf_log: self.ebpf_log.or(file.ebpf_log),
            max_vifs: self.max_vifs.or(file.max_vifs),
            allow_dhcp_servers: self.allow_dhcp_servers.or(file.allow_dhcp_servers),
            flows: self.flows.or(file.flows),
            max_endpoints: self.max_endpoints.or(file.max_endpoints),
            max_stack_flows: self.max_stack_flows.or(file.max_stack_flows),
            max_node_entries: self.max_node_entries.or(file.max_node_entries),
            policy: self.policy.or(file.policy),
            policy_unlisted: self.policy_unlisted.or(file.policy_unlisted),
            max_policy_peers: self.max_policy_peers.or(file.max_policy_peers),
            max_policy_rules: self.max_policy_rules.or(file.max_policy_rules),
            max_policy_flows: self.max_policy_flows.or(file.max_policy_flows),
        }
    }
}
