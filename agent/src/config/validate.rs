//! From merged settings to a configuration: each is checked once, and by itself as far as possible.

use std::{ops::RangeInclusive, path::PathBuf, time::Duration};

use http::Uri;
use ipnet::IpNet;

use super::{Config, ConfigError, HTTP, Kubernetes, LogSettings, Places, Settings, Switch, deprecated};
use crate::{
    dataplane::LogLevel,
    decide::VifSource,
    ipam::{self, PodCidrs},
    log, masquerade, nodes, reconcile, watch,
};

// === impl Settings ===

impl Settings {
    /// `is_in_pod`: the API server is known without a kubeconfig.
    pub(super) fn validate(
        self,
        is_in_pod: bool,
        deprecated: &[deprecated::Entry<Settings>],
    ) -> Result<Config, ConfigError> {
        let deprecated = deprecated::used(deprecated, &self);
        let kubernetes = self.kubernetes(is_in_pod)?;
        let dataplane = self.dataplane()?;
        let masquerade = self.masquerade()?;
        let nodes = self.nodes()?;
        let metrics = self.metrics()?;
        let vif_source = self.vif_source.unwrap_or_default();
        let vif_cidrs = cidrs("--vif-cidr", &self.vif_cidrs)?;
        let pod_cidrs = self.pod_cidrs()?;
        match &pod_cidrs {
            Some(pod_cidrs) if !self.is_only_node() => {
                return Err(ConfigError::SharedPodCidr(pod_cidrs.clone()));
            }
            None if kubernetes.is_none() && (vif_source != VifSource::Annotation || vif_cidrs.is_empty()) => {
                return Err(ConfigError::NoPodCidr);
            }
            _ => {}
        }
        let Places { install, socket, state_dir, bpf_dir, log } = self.places(dataplane.log)?;
        Ok(Config {
            kubernetes,
            pod_cidrs,
            vif_source,
            // Below the shim's deadline of 90 s.
            vif_timeout: seconds("--vif-timeout", self.vif_timeout, 60, 1..=80)?,
            vif_cidrs,
            reconcile: reconcile::Settings::every(seconds(
                "--reconcile-period",
                self.reconcile_period,
                reconcile::PERIOD.as_secs(),
                1..=3600,
            )?),
            self_heal: self.self_heal.unwrap_or_default(),
            masquerade,
            nodes,
            policy: self.policy.unwrap_or_default(),
            policy_unlisted: self.policy_unlisted.unwrap_or_default(),
            service_cidrs: cidrs("--service-cidr", &self.service_cidrs)?,
            socket,
            state_dir,
            bpf_dir,
            dataplane,
            http: self.http.unwrap_or(HTTP),
            metrics,
            otlp_endpoint: self.otlp_endpoint.as_deref().map(collector).transpose()?,
            install,
            log,
            deprecated,
        })
    }

    pub(super) fn log(&self, programs: LogLevel) -> Result<LogSettings, ConfigError> {
        let filter = self.log.as_deref().map(log::Filter::new).transpose()?.flatten();
        let default = || log::Filter::default_with(programs != LogLevel::Off);
        Ok(LogSettings {
            filter: filter.unwrap_or_else(default),
            format: self.log_format.unwrap_or_default(),
        })
    }

    fn pod_cidrs(&self) -> Result<Option<PodCidrs>, ConfigError> {
        let setting = "--pod-cidr";
        let given = cidrs(setting, &self.pod_cidrs)?;
        if given.is_empty() {
            return Ok(None);
        }
        PodCidrs::new(given).map(Some).map_err(|source| ConfigError::Range { setting, source })
    }

    /// Whether no other node has pods of the same network.
    fn is_only_node(&self) -> bool {
        self.standalone.unwrap_or_default() || self.single_node.unwrap_or_default()
    }

    fn masquerade(&self) -> Result<masquerade::Settings, ConfigError> {
        let mut kept = cidrs("--vif-cidr", &self.vif_cidrs)?;
        kept.extend(cidrs("--non-masquerade-cidr", &self.non_masquerade_cidrs)?);
        let file = self.ip_masq_agent_config.clone();
        let mode = self.masquerade.unwrap_or_default();
        let ports = self.masquerade_ports.as_deref().map(str::parse::<masquerade::Ports>).transpose()?;
        let ports = ports.unwrap_or_default();
        let tunnel_port = self.nodes()?.tunnel_port();
        let has_tunnel = mode != masquerade::Mode::Off && !self.standalone.unwrap_or_default();
        if let Some(port) = tunnel_port.filter(|port| has_tunnel && ports.contain(*port)) {
            return Err(ConfigError::MasqueradedTunnel { port, ports });
        }
        Ok(masquerade::Settings {
            mode,
            kept,
            file: file.map(|file| absolute("--ip-masq-agent-config", Some(file), "")).transpose()?,
            ports,
            tunnel_port,
        })
    }

    pub(super) fn nodes(&self) -> Result<nodes::Settings, ConfigError> {
        let port = self.tunnel_port.unwrap_or(agent_common::TUNNEL_PORT);
        if port == 0 {
            return Err(ConfigError::TunnelPort);
        }
        let fast_path = self.node_fast_path.unwrap_or_default() == Switch::On;
        Ok(nodes::Settings { mode: self.node_routes.unwrap_or_default(), port, fast_path })
    }

    pub(super) fn kubernetes(&self, is_in_pod: bool) -> Result<Option<Kubernetes>, ConfigError> {
        if self.standalone.unwrap_or_default() {
            let given = [
                ("--kubeconfig", self.kubeconfig.is_some()),
                // The runtime hands over annotations, and no KuryrPorts.
                ("--vif-source kuryr", self.vif_source == Some(VifSource::Kuryr)),
                ("--metrics-listen", self.metrics_listen.is_some()),
            ];
            return match given.iter().find(|(_, given)| *given) {
                Some((name, _)) => Err(ConfigError::NotWithStandalone(name)),
                None => Ok(None),
            };
        }
        let kubeconfig =
            self.kubeconfig.clone().map(|path| absolute("--kubeconfig", Some(path), "")).transpose()?;
        if kubeconfig.is_none() && !is_in_pod {
            return Err(ConfigError::NoApiServer);
        }
        let node_name = match &self.node_name {
            Some(name) => name.clone(),
            None => {
                nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default()
            }
        };
        let node_name = node_name.to_lowercase();
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
        match node_name.as_str() {
            "" => return Err(ConfigError::NoNodeName),
            name if name.len() > 253 || !name.chars().all(is_name) => {
                return Err(ConfigError::NodeName(node_name));
            }
            _ => {}
        }
        let watch = watch::Settings {
            retry_timeout: seconds("--watch-retry-timeout", self.watch_retry_timeout, 60, 1..=3600)?,
            read_timeout: seconds("--watch-read-timeout", self.watch_read_timeout, 90, 2..=3600)?,
            max_backoff: seconds("--watch-max-backoff", self.watch_max_backoff, 30, 1..=600)?,
        };
        Ok(Some(Kubernetes { node_name, kubeconfig, watch }))
    }
}

fn seconds(
    what: &'static str,
    given: Option<u64>,
    default: u64,
    allowed: RangeInclusive<u64>,
) -> Result<Duration, ConfigError> {
    let given = given.unwrap_or(default);
    if allowed.contains(&given) {
        return Ok(Duration::from_secs(given));
    }
    Err(ConfigError::Seconds { what, least: *allowed.start(), most: *allowed.end(), given })
}

fn cidrs(setting: &'static str, given: &[String]) -> Result<Vec<IpNet>, ConfigError> {
    let parsed = given.iter().map(|text| ipam::parse_cidr(text.trim()));
    parsed.collect::<Result<_, _>>().map_err(|source| ConfigError::Range { setting, source })
}

fn collector(given: &str) -> Result<Uri, ConfigError> {
    let refuse = |why| Err(ConfigError::Collector { given: given.to_owned(), why });
    let Ok(uri) = given.parse::<Uri>() else { return refuse("not a URL") };
    let is_bare = uri.path_and_query().is_none_or(|rest| rest.as_str() == "/");
    match (uri.scheme_str(), uri.authority()) {
        (Some("https"), _) => refuse("TLS is not supported; export to a collector on the node"),
        (Some("http"), Some(to)) if to.as_str().contains('@') => refuse("credentials are not supported"),
        (Some("http"), Some(to)) if to.port_u16().is_none() => {
            refuse("the port is missing; the default of OTLP over gRPC is 4317")
        }
        (Some("http"), Some(_)) if !is_bare => refuse("OTLP over gRPC has no path"),
        (Some("http"), Some(_)) => Ok(uri),
        _ => refuse("the scheme must be http://"),
    }
}

pub(super) fn absolute(
    what: &'static str,
    path: Option<PathBuf>,
    default: &str,
) -> Result<PathBuf, ConfigError> {
    let path = path.unwrap_or_else(|| PathBuf::from(default));
    if path.is_absolute() { Ok(path) } else { Err(ConfigError::Relative { what, path }) }
}
