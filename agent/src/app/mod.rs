//! The agent's life cycle: wires up the components, supervises them, and shuts down gracefully.

mod api_server;
mod grpc;
mod install;
mod ipam;
mod local_network;
mod parts;
mod ranges;
mod scrape;
mod signals;
mod single_node;
mod tasks;
mod uninstall;
mod unjudged;
mod usable;

use std::{net::IpAddr, sync::Arc, time::Duration};

use anyhow::Context as _;
use ipnet::IpNet;
use tokio::{
    sync::watch::{self, Receiver},
    task::spawn_blocking,
    time::timeout,
};

use self::{
    api_server::{ApiServer, dead},
    grpc::Grpc,
    ipam::IpamReport,
    parts::Parts,
    signals::StopSignals,
    tasks::Tasks,
};
use crate::{
    attach::Engine,
    chain::chain,
    cluster::PodChange,
    cni::{Calls, CniService},
    config::{Config, Switch},
    crash::{self, Step},
    decide::{IgnoredBandwidths, LateAnnotations, VifSource},
    desired::Inspector,
    heal::Healer,
    health::{Health, Reporter},
    ipam::Pressure,
    log,
    masquerade::Masquerade,
    memory,
    metrics::Metrics,
    monitor::{self, Endings, History, KnownPods, ObserverService, Recorder},
    nodes::{Keeper, Nodes, Outside},
    observe::{
        AgentService, Verifier,
        facts::Facts,
        http::{self, Observed},
        liveness::Liveness,
    },
    plug::{default_route::DefaultRoute, host, reaper::reap_now},
    policy::Feed,
    reconcile::{Collector, Queue, Reconciler},
    registry::Registry,
    server::{self, NodeLock},
    trace::Tracer,
    watch::Watches,
};

pub use uninstall::uninstall;
pub use usable::UnusableRange;

/// The health components that every ADD needs.
struct Needed {
    dataplane: Reporter,
    registry: Reporter,
    /// Healthy last, so that readiness implies a listening socket.
    socket: Reporter,
}

/// The outcome of a graceful shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// All work in flight is finished or rolled back.
    Clean,
    /// The next agent has to roll back unfinished work.
    LeftWork,
}

/// The deadline for the rollback of abandoned calls.
const UNDO: Duration = Duration::from_secs(3);
/// The deadline for stopping the watches, for the last run of the reaper, and for stopping the keeper of the
/// routes to other nodes.
const LAST: Duration = Duration::from_secs(3);
/// The wait, after [`run`], for blocking calls that have outlived the drain; the next agent rolls back the
/// others.
pub const LAST_CALLS: Duration = Duration::from_secs(3);

/// Runs the agent until a signal stops it. Pods' packets keep flowing afterwards.
///
/// # Errors
/// If a component that the agent needs cannot start, or ends.
pub async fn run(config: Config, object: &[u8], log: log::Control) -> anyhow::Result<Stopped> {
    // First: two agents must not access the same network namespace or state.
    let _node = NodeLock::take()?;
    // Early, so that a signal during start-up does not interrupt it.
    let mut signals = StopSignals::new().context("cannot handle signals")?;
    let (health, metrics, mut tasks) = (Health::default(), Metrics::default(), Tasks::default());
    let source = health.clone();
    metrics.health.read_from(move || vec![source.clone()]);
    let needed = Needed::new(&health);
    tasks.spawn("log", signals::switch_log(log.clone())?);
    let liveness = Liveness::new(|| host::probe().map_err(|error| chain(&error)));
    let listener = http::listen(config.http).await?;
    let observed = Observed { health: health.clone(), metrics: metrics.clone(), liveness: liveness.clone() };
    tasks.spawn("http", http::serve(listener, observed));

    let api = config.kubernetes.as_ref().map(ApiServer::new);
    scrape::start(&config, api.as_ref(), &health, &metrics)?;
    let masquerade = health.component("masquerade", false, "waiting for the node's pod CIDRs");
    let masquerade = Arc::new(Masquerade::new(config.masquerade.clone(), masquerade));
    let with = (&health, &needed.dataplane, Arc::clone(&masquerade));
    let parts = Parts::take_over(&config, object, api.as_ref(), with, &metrics, &mut tasks).await?;
    let counted = Arc::clone(&parts.registry);
    metrics.attachments.read_from(move || counted.states());
    tasks.spawn("store", Arc::clone(&parts.registry).keep_store(needed.registry));
    tasks.spawn("reaper", parts.reaper.clone().run());
    let feed = config.watches_policies().then(|| {
        let health = health.component("policy-feed", true, "the cluster's policies are not listed yet");
        Feed::new(Arc::clone(&parts.enforcer), parts.events.clone(), Arc::clone(&parts.reporters), health)
    });
    follow_uplink(&parts, feed.clone(), &health, &mut tasks);
    report_addresses(&config, &parts, &health, &metrics, &mut tasks);
    let (queue, collector) = reconcile(&config, &parts, &health, &metrics, &mut tasks);
    let watched = match api {
        Some(api) => {
            let (registry, pods) = (Arc::clone(&parts.registry), parts.pods.clone());
            let ignored = IgnoredBandwidths::new(Arc::clone(&registry), pods.clone(), parts.events.clone());
            let late = LateAnnotations::new(config.vif_source, registry, pods, parts.events.clone());
            let on_change = move |PodChange { key, is_end }| {
                late.look(&key);
                ignored.look(&key);
                if is_end {
                    queue.add(key);
                }
            };
            let targets = (&parts.registry, &parts.network, parts.pods.clone(), parts.events.clone());
            Some(api.watch(&config, targets, feed.as_ref(), on_change, (&health, &metrics), &mut tasks)?)
        }
        None => None,
    };
    let (watches, nodes, announcer) = match watched {
        Some((watches, nodes, announcer)) => (Some(watches), Some(nodes), Some(announcer)),
        None => (None, None, None),
    };
    let is_healing = config.self_heal == Switch::On;
    let keeper = keep_nodes(&config, &parts, nodes, (&health, &metrics), &mut tasks);
    tasks.spawn("unjudged", unjudged::follow(keeper.decisions(), Arc::clone(&parts.enforcer)));
    if let Some(announcer) = announcer {
        tasks.spawn("announce", announcer.run(health.readiness(), keeper.obstacle()));
    }
    tasks.spawn("path-mtu", Arc::clone(&parts.engine).follow_path_mtu());
    let inspector = Inspector {
        registry: Arc::clone(&parts.registry),
        dataplane: Arc::clone(&parts.dataplane),
        masquerade,
        nodes: Arc::clone(&keeper),
        enforcer: Arc::clone(&parts.enforcer),
        ports: Arc::clone(&parts.ports),
    };
    let pins = Arc::new(health.component("pins", false, "not checked yet"));
    parts.dataplane.report_pins(&pins);
    let node_name = config.kubernetes.as_ref().map(|it| it.node_name.clone()).unwrap_or_default();
    let (history, observer) = monitor(&parts, &node_name, &health, &metrics, &mut tasks);
    let agent = AgentService {
        registry: Arc::clone(&parts.registry),
        dataplane: Arc::clone(&parts.dataplane),
        health: health.clone(),
        pins: Arc::clone(&pins),
        collector,
        verifier: Verifier::new(inspector.clone(), is_healing),
        keeper: Arc::clone(&keeper),
        enforcer: Arc::clone(&parts.enforcer),
        journal: parts.engine.journal(),
        history: Arc::clone(&history),
        pods: config.kubernetes.is_some().then(|| parts.pods.clone()),
        // No setting is a secret: kubeconfigs are named, and the collector's URL has no credentials.
        facts: Facts { config: format!("{config:#?}\n"), metrics: metrics.clone(), log: log.clone() },
        node_name,
        also_allowed: needs_ranges(&config).then(|| config.vif_cidrs.clone()),
        log: log.clone(),
        benches: tokio::sync::Semaphore::new(1),
    };
    let _installed = install::install(&config, &health, &metrics.install, &mut tasks).await?;
    let tracer = tracer(&config, &health, &metrics, &mut tasks);
    let cni = CniService {
        engine: Arc::clone(&parts.engine),
        registry: Arc::clone(&parts.registry),
        health: health.clone(),
        calls: Calls {
            metrics: metrics.cni.clone(),
            tracer: tracer.clone(),
            journal: parts.engine.journal(),
        },
    };
    let mut grpc = Grpc::start(&config.socket, cni, (agent, observer), &mut tasks).await?;
    crash::point(Step::StartServing);
    parts.deferred.end();
    crash::point(Step::StartDone);
    let (engine, reaper) = (Arc::clone(&parts.engine), parts.reaper);
    let healer = Arc::new(Healer::new(engine, inspector, reaper, is_healing, metrics.heal.clone(), pins));
    let heal = health.component("heal", false, "deviations are not monitored yet");
    tasks.spawn("heal", healer.run(config.reconcile.period, heal));
    memory::release_at_once();
    tasks.spawn("memory", memory::release_in_background());
    needed.socket.healthy(format!("listening on {}", config.socket.display()));

    let outcome = tokio::select! {
        signal = signals.next() => Ok(signal),
        error = tasks.failure() => Err(error.into()),
        error = dead(watches.as_deref()) => Err(error),
        error = grpc.ended() => Err(error),
        error = server::displaced(&config.socket) => Err(error.into()),
    };
    // First, so that STATUS sends shims to the next agent instead of reporting the lost readiness.
    parts.engine.stop();
    // Clients that follow would keep the server from draining.
    history.close();
    // Readiness ends before any service does.
    let _stopping = health.component("shutdown", true, "the agent is stopping");
    crash::point(Step::StopBegun);
    match &outcome {
        Ok(signal) => tracing::info!(signal, "shutting down; pods' packets keep flowing"),
        Err(error) => {
            let error = format!("{error:#}");
            tracing::error!(error, "shutting down after a failure; pods' packets keep flowing");
            liveness.ended(&error);
        }
    }
    let stopped = shut_down(outcome.map(drop), &parts.engine, grpc, watches.as_deref(), &tracer).await;
    // Last: until here, the agent follows the kernel's routes.
    let _ = timeout(LAST, spawn_blocking(move || keeper.stop())).await;
    stopped
}

/// Monitors the uplink: its MTU, the default route, and the node's own addresses.
fn follow_uplink(parts: &Parts, feed: Option<Arc<Feed>>, health: &Health, tasks: &mut Tasks) {
    let uplink = health.component("uplink", false, "not monitored yet");
    let default_route = health.component_of_all_pods("default-route", "the default route is not known yet");
    let registry = Arc::clone(&parts.registry);
    let default_route = DefaultRoute::new(default_route, move || registry.families());
    let registry = Arc::clone(&parts.registry);
    let note_own = move |addresses: &[IpAddr]| {
        registry.exclude(addresses);
        if let Some(feed) = &feed {
            feed.set_own_addresses(addresses);
        }
    };
    tasks.spawn("uplink", parts.uplink.clone().follow(uplink, default_route, note_own));
}

/// Keeps the routes to other nodes, and the filters of the interfaces that lead to them.
fn keep_nodes(
    config: &Config,
    parts: &Parts,
    nodes: Option<Receiver<Arc<Nodes>>>,
    (health, metrics): (&Health, &Metrics),
    tasks: &mut Tasks,
) -> Arc<Keeper> {
    let nodes = match &config.pod_cidrs {
        // The cluster has this node only.
        Some(ranges) => watch::channel(Arc::new(Nodes::only(ranges.nets()))).1,
        None => nodes.unwrap_or_else(|| watch::channel(Arc::new(Nodes::only(&[]))).1),
    };
    tasks.spawn("network", Arc::clone(&parts.network).follow(nodes.clone()));
    let keeper = Arc::new(Keeper::new(
        config.nodes,
        Arc::clone(&parts.dataplane),
        parts.uplink.clone(),
        outside(config, Arc::clone(&parts.registry)),
        config.self_heal == Switch::On,
        (
            health.component_of_all_pods("node-routes", "waiting for the list of Nodes"),
            health.component("node-list", true, "the nodes of the cluster are not known yet"),
        ),
        metrics.nodes.clone(),
    ));
    tasks.spawn("node-routes", Arc::clone(&keeper).run(nodes, config.reconcile.period));
    keeper
}

/// Where pods may have addresses, outside of the node's ranges.
fn outside(config: &Config, registry: Arc<Registry>) -> Outside {
    let networks = config.vif_cidrs.clone();
    // A KuryrPort's addresses are in Neutron's subnets.
    let is_anywhere = config.vif_source == VifSource::Kuryr && networks.is_empty();
    Box::new(move |ranges| {
        // Of attachments that are older than the node's ranges.
        let earlier = registry.addresses_outside(ranges).into_iter().map(IpNet::from);
        (!is_anywhere).then(|| networks.iter().copied().chain(earlier).collect())
    })
}

/// Whether pods' addresses must be in ranges. A KuryrPort's are in Neutron's subnets.
fn needs_ranges(config: &Config) -> bool {
    config.vif_source != VifSource::Kuryr || !config.vif_cidrs.is_empty()
}

/// Reports the use of the node's ranges.
fn report_addresses(config: &Config, parts: &Parts, health: &Health, metrics: &Metrics, tasks: &mut Tasks) {
    let has_ipam = matches!(config.vif_source, VifSource::Auto | VifSource::Ipam);
    let mut report = IpamReport {
        registry: Arc::clone(&parts.registry),
        also_allowed: config.vif_cidrs.clone(),
        metrics: metrics.ipam.clone(),
        ipam: has_ipam.then(|| health.component_of_room("ipam", "not counted yet")),
        addresses: needs_ranges(config).then(|| health.component("addresses", false, "not compared yet")),
        pressure: Pressure::default(),
    };
    report.update();
    tasks.spawn("ipam", report.run());
}

/// Starts garbage collection.
fn reconcile(
    config: &Config,
    parts: &Parts,
    health: &Health,
    metrics: &Metrics,
    tasks: &mut Tasks,
) -> (Queue, Arc<Collector>) {
    let reconciler = Reconciler::new(
        Arc::clone(&parts.engine),
        (Arc::clone(&parts.registry), Arc::clone(&parts.ports)),
        parts.pods.clone(),
        config.kubernetes.as_ref().map(|_| health.clone()),
        config.reconcile,
        metrics.reconcile.clone(),
        metrics.registry_store.clone(),
    );
    let (queue, collector) = (reconciler.queue(), reconciler.collector());
    tasks.spawn("reconcile", reconciler.run());
    (queue, collector)
}

/// Starts recording dropped packets and flows.
fn monitor(
    parts: &Parts,
    node_name: &str,
    health: &Health,
    metrics: &Metrics,
    tasks: &mut Tasks,
) -> (Arc<History>, ObserverService) {
    let (history, dataplane) = (Arc::new(History::default()), Arc::clone(&parts.dataplane));
    let reader = dataplane.events();
    let counted = (Arc::clone(&parts.registry), Arc::clone(&dataplane));
    metrics.pods.read_from(move || monitor::counters::read(&counted.0, &counted.1));
    let links = Arc::clone(&dataplane);
    metrics.links.read_from(move || monitor::counters::links(&links));
    let programs = Arc::clone(&dataplane);
    metrics.programs.read_from(move || programs.programs());
    let (denials, remote) = (Arc::clone(&parts.enforcer), Arc::clone(&parts.enforcer));
    let pods = KnownPods { registry: Arc::clone(&parts.registry), remote };
    let recorder = Recorder::new(pods.clone(), Arc::clone(&history), denials, metrics.monitor.clone());
    let monitor = health.component("monitor", false, "not recording yet");
    tasks.spawn("monitor", recorder.run(reader, monitor));
    let (flows, records) = (Arc::clone(&dataplane), Arc::clone(&history));
    let endings = Endings::new(flows, pods, records, metrics.monitor.clone());
    tasks.spawn("flow-endings", endings.run());
    let sampling = move || dataplane.flow_sampling();
    let observer = ObserverService::new(Arc::clone(&history), sampling, node_name.to_owned());
    (history, observer)
}

/// The tracer of CNI calls.
fn tracer(config: &Config, health: &Health, metrics: &Metrics, tasks: &mut Tasks) -> Tracer {
    let Some(collector) = &config.otlp_endpoint else { return Tracer::off() };
    let node_name = config.kubernetes.as_ref().map(|it| it.node_name.as_str());
    let traces = health.component("traces", false, &format!("no call exported to {collector} yet"));
    let (tracer, exporter) = Tracer::to(collector, node_name, metrics.trace.clone(), traces);
    tasks.spawn("traces", exporter.run());
    tracer
}

/// Drains calls, stops the watches and the tracer, and deletes the interfaces that the last calls retired.
async fn shut_down(
    outcome: anyhow::Result<()>,
    engine: &Engine,
    grpc: Grpc,
    watches: Option<&Watches>,
    tracer: &Tracer,
) -> anyhow::Result<Stopped> {
    let drained = grpc.drain().await;
    let undone = timeout(UNDO, engine.drained()).await.is_ok();
    if !undone {
        tracing::warn!("abandoned calls are not rolled back yet; the next agent rolls them back");
    }
    crash::point(Step::StopDrained);
    let unwatched = match watches {
        Some(watches) => timeout(LAST, watches.stop()).await.is_ok(),
        None => true,
    };
    tracer.flush().await;
    let reaped = timeout(LAST, spawn_blocking(reap_now)).await;
    crash::point(Step::StopReaped);
    outcome?;
    let drained = drained?;
    let reaped = match reaped {
        Ok(reaped) => reaped?.map(|()| true)?,
        Err(_) => false,
    };
    if !unwatched {
        tracing::warn!("stopping the watches exceeded {LAST:?}; the next agent may repeat some events");
    }
    if !reaped {
        tracing::warn!("deleting retired interfaces exceeded {LAST:?}; the next agent deletes them");
    }
    Ok(if drained && undone && unwatched && reaped { Stopped::Clean } else { Stopped::LeftWork })
}

// === impl Needed ===

impl Needed {
    fn new(health: &Health) -> Self {
        Self {
            dataplane: health.component("dataplane", true, "loading"),
            registry: health.component("registry", true, "comparing with the kernel"),
            socket: health.component("socket", true, "not listening yet"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;
    use crate::trace::FLUSH;

    #[test]
    fn service_managers_kill_no_agent_that_keeps_its_deadlines() {
        let longest = grpc::DRAIN + UNDO + 3 * LAST + FLUSH + LAST_CALLS;
        assert_eq!(longest, Duration::from_secs(32), "state it in the files below, too");
        for (file, setting) in [
            ("deploy/chart/templates/agent.yaml", "terminationGracePeriodSeconds: "),
            ("deploy/systemd/ferrule-agent.service", "TimeoutStopSec="),
        ] {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
            let text = fs::read_to_string(path).unwrap();
            let seconds = text.lines().find_map(|line| line.trim().strip_prefix(setting)).unwrap();
            assert!(Duration::from_secs(seconds.parse().unwrap()) > longest, "{file}: {seconds}");
        }
    }
}
