//! The agent's life cycle: wires up the components, supervises them, and shuts down gracefully.

mod grpc;
mod install;
mod ranges;
mod tasks;

use std::{net::IpAddr, sync::Arc, time::Duration};

use anyhow::{Context as _, anyhow};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    task::spawn_blocking,
    time::{sleep, timeout},
};

use self::{grpc::Grpc, tasks::Tasks};
use crate::{
    api::Api,
    attach::Engine,
    chain::chain,
    cluster::{self, InitialSync, KURYR_PORTS, Pods},
    cni::{Calls, CniService},
    config::{Config, Kubernetes, SelfHeal},
    crash::{self, Step},
    dataplane::Dataplane,
    decide::{Decider, VifSource},
    desired::Inspector,
    events::{Events, Recorder},
    heal::Healer,
    health::{Health, Reporter},
    metrics::Metrics,
    observe::{
        AgentService, Verifier,
        http::{self, Observed},
        liveness::Liveness,
        store_health,
    },
    plug::{
        default_route::DefaultRoute,
        host,
        reaper::{Reaper, reap_now},
        uplink::Uplink,
    },
    reconcile::{DeferredDels, Queue, Reconciler, Recovery},
    registry::Registry,
    server::{self, NodeLock},
    trace::Tracer,
    watch::{CheckpointDb, Watches},
};

/// The health components that every ADD needs.
struct Needed {
    dataplane: Reporter,
    registry: Reporter,
    /// Healthy last, so that readiness implies a listening socket.
    socket: Reporter,
}

/// The signals that stop the agent.
struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

/// The outcome of a graceful shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// All work in flight is finished or rolled back.
    Clean,
    /// The next agent has to roll back unfinished work.
    LeftWork,
}

/// The API server's client and settings.
struct Cluster<'a> {
    config: &'a Kubernetes,
    api: Arc<Api>,
}

/// The deadline for the rollback of abandoned calls.
const UNDO: Duration = Duration::from_secs(3);
/// The deadline for stopping the watches, and for the last run of the reaper.
const LAST: Duration = Duration::from_secs(3);
/// How often the watches are checked.
const LOOK: Duration = Duration::from_secs(1);

/// Runs the agent until a signal stops it. Pods' packets keep flowing afterwards.
///
/// # Errors
/// If a component that the agent needs cannot start, or ends.
pub async fn run(config: Config, object: &[u8]) -> anyhow::Result<Stopped> {
    // First: two agents must not access the same network namespace or state.
    let _node = NodeLock::take()?;
    // Early, so that a signal during start-up does not interrupt it.
    let mut stop = Stop::new().context("cannot handle signals")?;
    let (health, metrics, mut tasks) = (Health::default(), Metrics::default(), Tasks::default());
    let needed = Needed::new(&health);
    let liveness = Liveness::new(|| host::probe().map_err(|error| chain(&error)));
    let listener = http::listen(config.http).await?;
    let observed = Observed { health: health.clone(), metrics: metrics.clone(), liveness: liveness.clone() };
    tasks.spawn("http", http::serve(listener, observed));

    let cluster = config.kubernetes.as_ref().map(Cluster::new);
    let (engine, pods, deferred) =
        take_over(&config, object, cluster.as_ref(), &needed, &metrics, &mut tasks).await?;
    let (trouble, kept) = (engine.registry.store_trouble(), Arc::clone(&engine));
    tasks.spawn("store", store_health::follow(trouble, move || kept.registry.try_store(), needed.registry));
    tasks.spawn("reaper", engine.reaper.clone().run());
    let uplink = health.component("uplink", false, "not monitored yet");
    let default_route = health.component_of_all_pods("default-route", "the default route is not known yet");
    let families = Arc::clone(&engine);
    let default_route = DefaultRoute::new(default_route, move || families.registry.families());
    let owner = Arc::clone(&engine);
    let own = move |addresses: &[IpAddr]| owner.registry.exclude(addresses);
    tasks.spawn("uplink", engine.uplink.clone().follow(uplink, default_route, own));
    let api = cluster.as_ref().map(|_| health.clone());
    let reconciler = Reconciler::new(
        Arc::clone(&engine),
        Arc::clone(&engine.registry),
        pods.clone(),
        api,
        config.reconcile,
        metrics.reconcile.clone(),
    );
    let (queue, collector) = (reconciler.queue(), reconciler.collector());
    tasks.spawn("reconcile", reconciler.run());
    let watches = match cluster {
        Some(cluster) => {
            Some(watch(&config, cluster, (&engine, pods), queue, (&health, &metrics), &mut tasks)?)
        }
        None => None,
    };
    let node_name = config.kubernetes.as_ref().map(|it| it.node_name.clone()).unwrap_or_default();
    let repairs = config.self_heal == SelfHeal::On;
    let inspector =
        Inspector { registry: Arc::clone(&engine.registry), dataplane: Arc::clone(&engine.dataplane) };
    let verifier = Verifier::new(inspector.clone(), repairs);
    let reaper = engine.reaper.clone();
    let healer = Healer::new(Arc::clone(&engine), inspector, reaper, repairs, metrics.heal.clone());
    let healer = Arc::new(healer);
    let agent = AgentService {
        registry: Arc::clone(&engine.registry),
        dataplane: Arc::clone(&engine.dataplane),
        health: health.clone(),
        collector,
        verifier,
        node_name,
    };
    let _installed = install::install(&config, &health, &mut tasks).await?;
    let tracer = tracer(&config, &health, &metrics, &mut tasks);
    let calls = Calls { metrics: metrics.cni.clone(), tracer: tracer.clone() };
    let cni = CniService {
        engine: Arc::clone(&engine),
        registry: Arc::clone(&engine.registry),
        health: health.clone(),
        calls,
    };
    let mut grpc = Grpc::start(&config.socket, cni, agent, &mut tasks).await?;
    crash::point(Step::StartServing);
    deferred.end();
    crash::point(Step::StartDone);
    let heal = health.component("heal", false, "deviations are not monitored yet");
    tasks.spawn("heal", healer.run(config.reconcile.period, heal));
    needed.socket.healthy(format!("listening on {}", config.socket.display()));

    let outcome = tokio::select! {
        signal = stop.signal() => Ok(signal),
        error = tasks.failure() => Err(error.into()),
        error = dead(watches.as_ref()) => Err(error),
        error = grpc.ended() => Err(error),
        error = server::displaced(&config.socket) => Err(error.into()),
    };
    // First, so that readiness ends before any service does.
    let _stopping = health.component("shutdown", true, "the agent is stopping");
    crash::point(Step::StopBegun);
    match &outcome {
        Ok(signal) => tracing::info!(signal, "shutting down; pods' packets keep flowing"),
        Err(error) => {
            tracing::error!(
                error = format!("{error:#}"),
                "shutting down after a failure; pods' packets keep flowing"
            );
            liveness.ended(&format!("{error:#}"));
        }
    }
    engine.stop();
    let drained = grpc.drain().await;
    let undone = timeout(UNDO, engine.drained()).await.is_ok();
    if !undone {
        tracing::warn!("abandoned calls are not rolled back yet; the next agent rolls them back");
    }
    crash::point(Step::StopDrained);
    let unwatched = match &watches {
        Some(watches) => timeout(LAST, watches.stop()).await.is_ok(),
        None => true,
    };
    tracer.flush().await;
    // Deletes the interfaces that the last calls retired.
    let reaped = timeout(LAST, spawn_blocking(reap_now)).await;
    crash::point(Step::StopReaped);
    outcome?;
    let drained = drained?;
    let reaped = match reaped {
        Ok(reaped) => reaped?.map(|()| true)?,
        Err(_) => false,
    };
    if !unwatched || !reaped {
        tracing::warn!(
            "the kernel or the disk did not respond in time; the next agent finishes the shutdown's work"
        );
    }
    Ok(if drained && undone && unwatched && reaped { Stopped::Clean } else { Stopped::LeftWork })
}

/// Recovers from the state that an earlier agent left. Shims cannot defer DELs until [`DeferredDels::end`].
async fn take_over(
    config: &Config,
    object: &[u8],
    cluster: Option<&Cluster<'_>>,
    needed: &Needed,
    metrics: &Metrics,
    tasks: &mut Tasks,
) -> anyhow::Result<(Arc<Engine>, Pods, DeferredDels)> {
    let registry = Registry::open(&config.state_dir)?;
    crash::point(Step::StartRegistryRead);
    let uplink = Uplink::detect().context("cannot read the MTU of the node's uplink")?;
    let dataplane = Dataplane::load(object, &config.bpf_dir, &config.dataplane, &metrics.maps)?;
    crash::point(Step::StartMapsTakenOver);
    let pins = dataplane.pins().display().to_string();
    tracing::info!(pins, "dataplane loaded");
    needed.dataplane.healthy(format!("loaded; maps pinned in {pins}"));

    let pods = Pods::default();
    let events = events(cluster, &pods, metrics, tasks);
    let (registry, dataplane) = (Arc::new(registry), Arc::new(dataplane));
    let decider = Decider::new(
        config.vif_source,
        config.vif_timeout,
        config.vif_cidrs.clone(),
        Arc::clone(&registry),
        pods.clone(),
        events.clone(),
    );
    let engine = Arc::new(Engine::new(registry, dataplane, uplink, Reaper::default(), decider, events));
    let (at_start, ranges, socket) = (Arc::clone(&engine), config.pod_cidrs.clone(), config.socket.clone());
    let recovery = Recovery {
        engine: Arc::clone(&engine),
        registry: Arc::clone(&engine.registry),
        dataplane: Arc::clone(&engine.dataplane),
        metrics: metrics.registry_store.clone(),
    };
    let deferred = spawn_blocking(move || {
        if !ranges.is_empty() {
            ranges::use_ranges(&at_start, &ranges).context("invalid pod CIDRs in the configuration")?;
        }
        crash::point(Step::StartRanges);
        server::close_directory(&socket)?;
        let deferred = DeferredDels::read(&socket)?;
        crash::point(Step::StartNotesRead);
        recovery.run(&deferred).context("cannot recover the state of the previous agent")?;
        deferred.remove_applied(&recovery.registry.list());
        crash::point(Step::StartNotesSettled);
        anyhow::Ok(deferred)
    })
    .await??;
    Ok((engine, pods, deferred))
}

/// The queue of Kubernetes Events.
fn events(cluster: Option<&Cluster<'_>>, pods: &Pods, metrics: &Metrics, tasks: &mut Tasks) -> Events {
    let metrics = metrics.events.clone();
    let Some(Cluster { config, api }) = cluster else { return Events::disabled(metrics) };
    let recorder = Recorder::new(Arc::clone(api), &config.node_name, metrics.clone());
    let (events, notes) = Events::channel(metrics, pods.clone());
    tasks.spawn("recorder", recorder.run(notes));
    events
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

/// Starts the watches.
fn watch(
    config: &Config,
    cluster: Cluster<'_>,
    (engine, pods): (&Arc<Engine>, Pods),
    queue: Queue,
    (health, metrics): (&Health, &Metrics),
    tasks: &mut Tasks,
) -> anyhow::Result<Watches> {
    let Cluster { config: cluster, api } = cluster;
    let cache =
        CheckpointDb::open(&config.state_dir).context("cannot open the checkpoint store of the watches")?;
    let watches = Watches::new(api, Arc::new(cache), cluster.watch, metrics.watch.clone(), health.clone());
    let source = config.vif_source;
    // With `auto`, the runtime passes the pod's annotations in the call.
    let needs_pods = matches!(source, VifSource::Annotation | VifSource::Kuryr);
    let is_kuryr = source == VifSource::Kuryr;
    let initial_sync = needs_pods.then(|| {
        let sources: &[_] = if is_kuryr { &[Pods::WATCH, KURYR_PORTS] } else { &[Pods::WATCH] };
        let health = health.component("vifs", true, "the node's pods have not been listed yet");
        InitialSync::new(sources, health)
    });
    let needs_ranges = match source {
        VifSource::Auto | VifSource::Ipam => true,
        VifSource::Annotation => config.vif_cidrs.is_empty(),
        // KuryrPorts need no ranges.
        VifSource::Kuryr => false,
    };
    let ranges = config.pod_cidrs.is_empty().then(|| {
        let waiting = "waiting for the Node object's spec.podCIDRs";
        health.component("ranges", needs_ranges, waiting)
    });
    let name = &cluster.node_name;
    cluster::watch_pods(&watches, name, pods.clone(), move |key| queue.add(key), initial_sync.clone());
    if is_kuryr {
        cluster::watch_kuryr_ports(&watches, name, pods, initial_sync);
    }
    if let Some(health) = ranges {
        let health = Arc::new(health);
        let changes = cluster::watch_own_node(&watches, name, Arc::clone(&health));
        tasks.spawn("ranges", ranges::follow_ranges(Arc::clone(engine), changes, health));
    }
    Ok(watches)
}

/// Waits until a watch ends unexpectedly.
async fn dead(watches: Option<&Watches>) -> anyhow::Error {
    loop {
        if let Some(source) = watches.and_then(Watches::dead) {
            return anyhow!("the watch of {source} ended unexpectedly: please report this defect");
        }
        sleep(LOOK).await;
    }
}

// === impl Stop ===

impl Stop {
    fn new() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn signal(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
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

// === impl Cluster ===

impl<'a> Cluster<'a> {
    fn new(config: &'a Kubernetes) -> Self {
        Self { config, api: Arc::new(Api::new(config.kubeconfig.clone())) }
    }
}
