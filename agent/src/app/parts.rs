//! The components that serve pods, after recovery from the state of an earlier agent.

use std::{net::Ipv6Addr, sync::Arc};

use anyhow::Context as _;
use tokio::task::spawn_blocking;

use super::{api_server::ApiServer, local_network::LocalNetwork, tasks::Tasks};
use crate::{
    attach::Engine,
    cluster::Pods,
    config::Config,
    crash::{self, Step},
    dataplane::{self, Dataplane},
    decide::Decider,
    events::{Events, Recorder},
    health::{Health, Reporter},
    masquerade::{self, Masquerade},
    metrics::Metrics,
    plug::{nodes::tunnel, reaper::Reaper, uplink::Uplink},
    policy::{Enforcer, Maps, Report, Reporters},
    ports::{HostPorts, OwnPort},
    reconcile::{DeferredDels, Recovery},
    registry::{Registry, Transport},
    server,
};

pub(super) struct Parts {
    pub registry: Arc<Registry>,
    pub network: Arc<LocalNetwork>,
    pub dataplane: Arc<Dataplane>,
    pub engine: Arc<Engine>,
    pub pods: Pods,
    pub uplink: Uplink,
    pub reaper: Reaper,
    pub events: Events,
    /// Who writes Events about policies.
    pub reporters: Arc<Reporters>,
    pub enforcer: Arc<Enforcer>,
    pub ports: Arc<HostPorts>,
    /// Applied, and still locked: shims cannot defer DELs until [`DeferredDels::end`].
    pub deferred: DeferredDels,
}

// === impl Parts ===

impl Parts {
    /// Opens the registry, loads the dataplane, and recovers from the state of an earlier agent.
    ///
    /// # Errors
    /// If a component cannot start, or the recovery fails.
    pub async fn take_over(
        config: &Config,
        object: &[u8],
        api: Option<&ApiServer<'_>>,
        (health, dataplane_health, masquerade): (&Health, &Reporter, Arc<Masquerade>),
        metrics: &Metrics,
        tasks: &mut Tasks,
    ) -> anyhow::Result<Self> {
        let registry = Arc::new(Registry::open(&config.state_dir)?);
        crash::point(Step::StartRegistryRead);
        let uplink = Uplink::detect().context("cannot read the MTU of the node's uplink")?;
        let tunnel_source_ports = tunnel::source_ports().unwrap_or(config.dataplane.tunnel_source_ports);
        let settings = dataplane::Settings { tunnel_source_ports, ..config.dataplane };
        let dataplane = Dataplane::load(object, &config.bpf_dir, &settings, &metrics.maps)?;
        crash::point(Step::StartMapsTakenOver);
        let dataplane = Arc::new(dataplane);

        let (pods, reaper) = (Pods::default(), Reaper::default());
        let events = events(api, &pods, metrics, tasks);
        let decider = Decider::new(
            config.vif_source,
            config.vif_timeout,
            config.vif_cidrs.clone(),
            config.kubernetes.is_some(),
            Arc::clone(&registry),
            pods.clone(),
            events.clone(),
        );
        let maps = Arc::clone(&dataplane) as Arc<dyn Maps>;
        let enforcer = Enforcer::new(maps, config.dataplane.capacities.of_policy(), pods.clone());
        let enforcer = Arc::new(enforcer);
        let own = config.kubernetes.as_ref().map_or("", |it| &it.node_name);
        let reporters = Arc::new(Reporters::new(own));
        let events_of_policies = (events.clone(), Arc::clone(&reporters));
        let report = Report::new(health, metrics.policy.clone(), events_of_policies);
        tasks.spawn("policy", enforcer.start(report).context("cannot start the thread of policies")?);
        let ports = Arc::new(HostPorts::new(own_ports(config), masqueraded_ports(config)));
        let engine = Engine::new(
            Arc::clone(&registry),
            Arc::clone(&dataplane),
            uplink.clone(),
            reaper.clone(),
            decider,
            (events.clone(), Arc::clone(&enforcer), Arc::clone(&ports)),
        );
        let engine = Arc::new(engine);
        let recovery = Recovery {
            engine: Arc::clone(&engine),
            registry: Arc::clone(&registry),
            dataplane: Arc::clone(&dataplane),
            ports: Arc::clone(&ports),
            has_policies: config.watches_policies(),
            metrics: metrics.registry_store.clone(),
        };
        let network = Arc::new(LocalNetwork::new(config, Arc::clone(&registry), masquerade));
        let deferred = recover(config, recovery, Arc::clone(&network)).await?;
        let (pins, kernel) = (dataplane.pins().display().to_string(), dataplane.kernel().to_string());
        tracing::info!(pins, kernel, "dataplane loaded");
        let warning = dataplane.kernel().warning();
        if let Some(warning) = warning {
            tracing::warn!(warning, "the kernel is not supported");
        }
        let warning = warning.map(|it| format!("; WARNING: {it}")).unwrap_or_default();
        dataplane_health.healthy(format!("programs and maps are loaded; {kernel}{warning}"));
        Ok(Self {
            registry,
            network,
            dataplane,
            enforcer,
            ports,
            engine,
            pods,
            uplink,
            reaper,
            events,
            reporters,
            deferred,
        })
    }
}

async fn recover(
    config: &Config,
    recovery: Recovery,
    network: Arc<LocalNetwork>,
) -> anyhow::Result<DeferredDels> {
    let (ranges, socket) = (config.pod_cidrs.clone(), config.socket.clone());
    spawn_blocking(move || {
        if let Some(ranges) = ranges {
            network.use_ranges(ranges).context("cannot use the configured pod CIDRs")?;
        }
        crash::point(Step::StartRanges);
        server::close_directory(&socket)?;
        let deferred = DeferredDels::read(&socket, &recovery.metrics);
        crash::point(Step::StartDeferredRead);
        recovery.run(&deferred)?;
        deferred.remove_applied(&recovery.registry.list());
        crash::point(Step::StartDeferredApplied);
        anyhow::Ok(deferred)
    })
    .await?
}

/// Where the agent listens on the node.
fn own_ports(config: &Config) -> Vec<OwnPort> {
    let tcp = |address, purpose| OwnPort { protocol: Transport::Tcp, address, purpose };
    let mut own = vec![tcp(config.http, "metrics and probes (--http)")];
    own.extend(
        config.metrics.as_ref().map(|it| tcp(it.address, "metrics beyond the node (--metrics-listen)")),
    );
    // A node alone has no tunnel.
    let tunnel = config.kubernetes.as_ref().and_then(|_| config.nodes.tunnel_port());
    own.extend(tunnel.map(|port| OwnPort {
        protocol: Transport::Udp,
        address: (Ipv6Addr::UNSPECIFIED, port).into(),
        purpose: "the tunnel between nodes (--tunnel-port)",
    }));
    own
}

/// The ports of the node's addresses that pods' flows may get.
fn masqueraded_ports(config: &Config) -> Option<(u16, u16)> {
    (config.masquerade.mode != masquerade::Mode::Off).then(|| config.masquerade.ports.edges())
}

/// The queue of Kubernetes Events.
fn events(api: Option<&ApiServer<'_>>, pods: &Pods, metrics: &Metrics, tasks: &mut Tasks) -> Events {
    let metrics = metrics.events.clone();
    let Some(ApiServer { config, client }) = api else { return Events::disabled(metrics) };
    let recorder = Recorder::new(Arc::clone(client), &config.node_name, metrics.clone());
    let (events, notes) = Events::channel(metrics, pods.clone());
    tasks.spawn("recorder", recorder.run(notes));
    events
}
