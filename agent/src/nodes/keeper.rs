//! Keeps kernel and map as the plan says.
//!
//! ```text
//!  nodes of the API ──┐
//!  the kernel's ways ─┴▶ plan ─▶ uplinks ─▶ tunnel device ─▶ map NODES ─▶ routes, new ones first ─▶ rules
//!                          │
//!        desired, heal: compared with the kernel, and made so again
//! ```
//!
//! Each pass compares kernel and map with the plan before it changes anything, so that a pass over an
//! unchanged node changes nothing. The comparison includes the objects of an earlier agent.

mod underlay;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use agent_common::{NodeEntry, NodeKey};
use ipnet::IpNet;
use tokio::sync::watch::{Receiver, Sender, channel};

use super::{
    Nodes, Settings,
    ahead::{Ahead, ahead},
    plan::Plan,
    report::{Counts, Report},
};
use crate::{
    chain::chain,
    dataplane::{Dataplane, MapFailure},
    health::Reporter,
    metrics::{NodeMetrics, count},
    plug::{
        netlink::{NetlinkError, Socket},
        nft::conntrack,
        nodes::{
            advertisements,
            others::OtherRoutes,
            route::{self, Routes},
            rp_filter, rule,
            setting::SettingError,
            tunnel::{self, TunnelError},
            uplink_filter::{self, Bare},
        },
        uplink::Uplink,
    },
};

/// Networks with all addresses that pods have, or may get, outside of the node's ranges; `None` for any
/// network.
pub type Outside = Box<dyn Fn(&[IpNet]) -> Option<Vec<IpNet>> + Send + Sync>;

/// Keeps the routes to other nodes.
pub struct Keeper {
    settings: Settings,
    dataplane: Arc<Dataplane>,
    uplink: Uplink,
    outside: Outside,
    health: Reporter,
    /// Healthy after the first pass: before, a new pod may not reach the pods of other nodes.
    ready: Reporter,
    /// Whether what others change is changed back.
    repairs: bool,
    metrics: NodeMetrics,
    /// Why this node's part of the network does not work.
    obstacle: Sender<Option<String>>,
    /// Of the last pass. Readers wait for no pass.
    decided: Sender<Arc<Report>>,
    /// Whether routes of other programs may have changed that a pass need not read again otherwise.
    others_changed: AtomicBool,
    /// Locked during a pass, and while kernel and plan are compared.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    nodes: Arc<Nodes>,
    /// `None` until the nodes are known.
    plan: Option<Arc<Plan>>,
    bare: Bare,
    /// `None` until they are read.
    other_routes: Option<OtherRoutes>,
    has_failed: bool,
    /// The agent stops: nothing is changed any more.
    is_stopped: bool,
}

/// Why the node is not as the plan says.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    #[error("cannot read or change the routes to other nodes")]
    Netlink(#[from] NetlinkError),
    #[error("cannot change some of the routes to other nodes")]
    SomeRoutes(#[source] NetlinkError),
    #[error("cannot count what passes the tunnel and the uplinks")]
    Counters(#[source] MapFailure),
    #[error("cannot make the node's uplinks accept router advertisements")]
    Advertisements(#[source] SettingError),
    #[error(
        "cannot make the node's uplinks accept packets that come by another one than replies take (rp_filter)"
    )]
    Strict(#[source] SettingError),
    #[error("cannot make the tunnel to other nodes")]
    Tunnel(#[from] TunnelError),
    #[error("cannot write the nodes' addresses to the map NODES")]
    Map(#[from] MapFailure),
    #[error(
        "cannot write the ways to some nodes to the map UNDERLAY: the tunnel device makes packets to them"
    )]
    Underlay(#[source] MapFailure),
}

/// Nodes and ranges that a message names.
const NAMED: usize = 3;

// === impl Keeper ===

impl Keeper {
    pub fn new(
        settings: Settings,
        dataplane: Arc<Dataplane>,
        uplink: Uplink,
        outside: Outside,
        repairs: bool,
        (health, ready): (Reporter, Reporter),
        metrics: NodeMetrics,
    ) -> Self {
        let (obstacle, _) = channel(Some("the nodes of the cluster are not known yet".to_owned()));
        let (decided, _) = channel(Arc::new(Report::nothing(settings)));
        let (others_changed, state) = (AtomicBool::new(true), Mutex::default());
        Self {
            settings,
            dataplane,
            uplink,
            outside,
            health,
            ready,
            repairs,
            metrics,
            obstacle,
            decided,
            others_changed,
            state,
        }
    }

    /// Makes the next pass read the routes of other programs again. Does not block.
    pub(super) fn read_other_routes_again(&self) {
        self.others_changed.store(true, Ordering::Relaxed);
    }

    /// Subscribes to the reason why this node's part of the network does not work: a failure of the last
    /// pass that would cut this node off from more than one other node. `None` while there is none.
    pub fn obstacle(&self) -> Receiver<Option<String>> {
        self.obstacle.subscribe()
    }

    /// What the last pass has decided: ways to other nodes' ranges, and where packets bypass the stack.
    pub fn decided(&self) -> Arc<Report> {
        Arc::clone(&self.decided.borrow())
    }

    /// Programs of others that run before the agent's on the tunnel device and the uplinks now. Blocks.
    ///
    /// # Errors
    /// If the kernel refuses a dump.
    pub fn ahead(&self, host: &mut Socket) -> Result<Vec<Ahead>, NetlinkError> {
        ahead(host, &self.dataplane, &self.decided().links())
    }

    /// Subscribes to [`Self::decided`].
    pub fn decisions(&self) -> Receiver<Arc<Report>> {
        self.decided.subscribe()
    }

    /// Compares nodes, kernel and map, changes what differs, and reports. Returns whether all is as it should
    /// be. Blocks.
    pub fn update(&self, nodes: Arc<Nodes>) -> bool {
        if !nodes.is_synced {
            self.health.starting("waiting for the list of Nodes");
            return true;
        }
        let mut state = self.state();
        state.nodes = nodes;
        let done = self.pass(&mut state);
        self.ready.healthy("the nodes of the cluster are known");
        match done {
            Ok(()) => {
                self.report(&state);
                true
            }
            Err(error) => {
                self.health.unhealthy(format!("{}; retrying", chain(&error)));
                false
            }
        }
    }

    /// What differs in the kernel and in the map from the plan, one line each.
    pub fn differences(&self) -> Vec<String> {
        let state = self.state();
        let Some(plan) = &state.plan else { return Vec::new() };
        self.compare(plan, &state.bare).unwrap_or_else(|error| {
            tracing::warn!(error = chain(&error), "cannot compare the routes to other nodes");
            Vec::new()
        })
    }

    /// Makes kernel and map as the plan says.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn restore(&self) -> Result<(), KeepError> {
        let mut state = self.state();
        if state.plan.is_none() { Ok(()) } else { self.pass(&mut state) }
    }

    /// Leaves kernel and map to the next agent. Meanwhile, the tunnel device follows the kernel's routes, and
    /// the programs do not. Blocks.
    pub fn stop(&self) {
        self.state().is_stopped = true;
        if let Err(error) = self.dataplane.set_underlay(&BTreeMap::new()) {
            let error = chain(&error);
            tracing::warn!(
                error,
                "packets to other nodes do not follow new routes until the next agent runs"
            );
        }
    }

    fn pass(&self, state: &mut State) -> Result<(), KeepError> {
        if state.is_stopped {
            return Ok(());
        }
        let done = self.try_pass(state);
        let obstacle = done.as_ref().err().filter(|error| error.cuts_off()).map(|error| chain(error));
        self.obstacle.send_if_modified(|before| {
            let is_new = *before != obstacle;
            *before = obstacle;
            is_new
        });
        done
    }

    fn try_pass(&self, state: &mut State) -> Result<(), KeepError> {
        let mut host = Socket::open()?;
        self.read_other_routes(&mut host, state)?;
        let other_routes = state.other_routes.clone().unwrap_or_default();
        let plan =
            Plan::new(self.settings, &state.nodes, &self.underlay(&mut host, &state.nodes, &other_routes)?);
        let is_new = state.plan.as_deref() != Some(&plan);
        if is_new {
            announce(state.plan.as_deref(), &plan);
        }
        // What others have changed, an agent that does not repair leaves so.
        let applied = if is_new || state.has_failed || self.repairs {
            self.apply(&mut host, &plan, &mut state.bare, is_new)
        } else {
            Ok(false)
        };
        if matches!(applied, Ok(true)) && !is_new && !state.has_failed {
            self.metrics.repaired();
        }
        state.has_failed = applied.is_err();
        self.uplink.set_nodes_mtu(plan.mtu);
        state.plan = Some(Arc::new(plan));
        let (nodes, bare) = (Arc::clone(&state.nodes), state.bare.clone());
        let tunnel = tunnel::index(&mut host)?;
        let (settings, plan, areas) = (self.settings, state.plan.clone(), other_routes.areas);
        let mut report = Report { nodes, settings, plan, tunnel, bare, ahead: Vec::new(), areas };
        match ahead(&mut host, &self.dataplane, &report.links()) {
            Ok(ahead) => report.ahead = ahead,
            Err(error) => {
                tracing::warn!(error = chain(&error), "cannot list the filters of uplinks and tunnel");
            }
        }
        let Counts { direct, vxlan, none } = report.counts();
        self.metrics.set([direct, vxlan, none].map(count), count(state.nodes.refused.len()));
        self.metrics.passed(host.received());
        self.decided.send_replace(Arc::new(report));
        applied.map(drop)
    }

    /// Goes on after a failure: a full map, for instance, takes no route away. Returns whether anything was
    /// changed.
    fn apply(
        &self,
        host: &mut Socket,
        plan: &Plan,
        bare: &mut Bare,
        is_new: bool,
    ) -> Result<bool, KeepError> {
        let loosened = rp_filter::loosen(host, &plan.sending);
        let advertised = advertisements::accept(host, &plan.listening());
        let filtered = uplink_filter::keep(host, &plan.uplinks, self.dataplane.uplink_filters());
        let filtered = filtered.map(|(found, attached)| {
            *bare = found;
            attached
        });
        let tunnel = self.keep_tunnel(host, plan, is_new);
        let index = tunnel.as_ref().ok().and_then(|(index, _)| *index);
        let counted = self.count_links(host, plan);
        let rows = self.keep_rows(plan, &plan.rows(index, bare), bare);
        let wanted = plan.routes(index);
        let mut changes = route::diff(&wanted, &route::list(host)?);
        if tunnel.is_err() {
            // The failure may pass, and packets still flow. A range with a new route loses its stale one,
            // which the kernel may prefer.
            changes.retain(|change| {
                matches!(change, route::Change::Set(..)) || wanted.contains_key(&change.place())
            });
        }
        let routed = route::apply(host, &changes).map_err(|error| judge(host, &wanted, error));
        let rules = rule::keep(host, &plan.sources);
        if !changes.is_empty() || matches!(rows, Ok(true)) || matches!(rules, Ok(true)) {
            tracing::info!(routes = changes.len(), "changed the routes to other nodes");
        }
        // Failures that cut this node off come first.
        let (_, tunnel_changed) = tunnel?;
        let changed = tunnel_changed | rows? | rules? | filtered? | !changes.is_empty();
        routed?;
        loosened.map_err(KeepError::Strict)?;
        advertised.map_err(KeepError::Advertisements)?;
        counted?;
        Ok(changed)
    }

    /// Returns whether anything was changed. Connections that no longer go through the stack leave
    /// conntrack's sight: it forgets them.
    fn keep_rows(
        &self,
        plan: &Plan,
        rows: &BTreeMap<NodeKey, NodeEntry>,
        bare: &Bare,
    ) -> Result<bool, KeepError> {
        // A failure costs time only.
        let packed = self.dataplane.set_underlay(&plan.underlay(rows, bare));
        let before = self.dataplane.set_nodes(rows)?;
        let faster = plan.faster(&before, rows);
        if !faster.is_empty() {
            forget_connections(plan, &faster);
        }
        packed.map_err(KeepError::Underlay)?;
        Ok(before != *rows)
    }

    /// The tunnel device counts while there is one, also one that is not as it should be.
    fn count_links(&self, host: &mut Socket, plan: &Plan) -> Result<(), KeepError> {
        let links = links(plan, tunnel::index(host)?);
        self.dataplane.count_links(&links).map_err(KeepError::Counters)
    }

    /// Returns the tunnel's index, if there is one, and whether anything was changed.
    fn keep_tunnel(
        &self,
        host: &mut Socket,
        plan: &Plan,
        is_new: bool,
    ) -> Result<(Option<u32>, bool), TunnelError> {
        let Some(wanted) = &plan.tunnel else { return tunnel::remove(host).map(|removed| (None, removed)) };
        match tunnel::keep(host, wanted, self.dataplane.tunnel_filters()) {
            Ok((ifindex, changed)) => {
                let is_changed = !changed.is_empty();
                if is_changed {
                    let changed = changed.join(", ");
                    tracing::info!(device = tunnel::NAME, changed, "changed the tunnel");
                }
                Ok((Some(ifindex), is_changed))
            }
            Err(error) if plan.has_tunnelled() => Err(error),
            // All nodes are on the same network.
            Err(error) => {
                if is_new {
                    tracing::warn!(
                        error = chain(&error),
                        "no tunnel, which no node needs at present; what other programs send to its port of other \
                         nodes is dropped: give them or --tunnel-port another port, or set --node-routes direct"
                    );
                }
                Ok((None, false))
            }
        }
    }

    fn compare(&self, plan: &Plan, bare: &Bare) -> Result<Vec<String>, KeepError> {
        let mut host = Socket::open()?;
        let mut found = Vec::new();
        let index = tunnel::index(&mut host)?;
        if let Some(tunnel) = plan.tunnel.as_ref().filter(|_| plan.has_tunnelled()) {
            let difference = tunnel::difference(&mut host, tunnel, self.dataplane.tunnel_filters())?;
            found.extend(difference.map(|it| format!("the tunnel device {} {it}", tunnel::NAME)));
        }
        let changes = route::diff(&plan.routes(index), &route::list(&mut host)?);
        found.extend(changes.iter().map(|change| match (change, change.place()) {
            (route::Change::Set(..), (_, to)) => format!("the route to {to} is missing or changed"),
            (route::Change::Delete(_, metric), (_, to)) => {
                format!("there is a route to {to} with metric {metric}, which should not be there")
            }
        }));
        found.extend(
            uplink_filter::missing(&mut host, &plan.uplinks, self.dataplane.uplink_filters())?
                .into_iter()
                .filter(|ifindex| !bare.contains_key(ifindex))
                .map(|ifindex| {
                    format!("the interface {ifindex} lacks the filter of uplinks, or runs another program")
                }),
        );
        let strict = rp_filter::strict(&mut host, &plan.sending)?;
        found.extend(strict.iter().map(|setting| format!("net.{} is strict", setting.replace('/', "."))));
        let ignored = advertisements::ignored(&mut host, &plan.listening())?;
        found.extend(ignored.iter().map(|setting| {
            format!("net.{} is 1, by which the node ignores routers", setting.replace('/', "."))
        }));
        if self.dataplane.links()?.keys().copied().collect::<BTreeSet<_>>() != links(plan, index) {
            found.push("the map LINK_COUNTERS has other interfaces".to_owned());
        }
        let (rules, wanted) = (rule::list(&mut host)?, rule::wanted(&plan.sources));
        let differ = rules.symmetric_difference(&wanted);
        found.extend(differ.map(|rule| format!("the routing rule of {rule} is missing or not needed")));
        let rows = plan.rows(index, bare);
        if self.dataplane.underlay()? != plan.underlay(&rows, bare) {
            found.push("the map UNDERLAY differs".to_owned());
        }
        if self.dataplane.nodes()? != rows {
            found.push("the map NODES differs".to_owned());
        }
        if !self.dataplane.are_indexed(&rows)? {
            found.push("the map NODE_PREFIXES or NODE_LENGTHS differs".to_owned());
        }
        Ok(found)
    }

    fn report(&self, state: &State) {
        let Some(plan) = &state.plan else { return };
        let failed: Vec<_> = plan.ranges().filter_map(|it| Some((it, it.way.as_ref().err()?))).collect();
        if failed.is_empty() {
            self.health.healthy(summary(plan));
            return;
        }
        let named = failed.iter().take(NAMED).map(|(it, why)| format!("{} of {}: {why}", it.range, it.node));
        let more = failed.len().saturating_sub(NAMED);
        let more = if more == 0 { String::new() } else { format!("; and {more} more") };
        let named = named.collect::<Vec<_>>().join("; ");
        self.health.unhealthy(format!("no way to {named}{more}"));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl KeepError ===

impl KeepError {
    /// Whether this node cannot take part in the network, whatever the other nodes are. A route that the
    /// kernel refuses may have its reason in another Node's addresses.
    fn cuts_off(&self) -> bool {
        match self {
            Self::Netlink(_) | Self::Tunnel(_) | Self::Map(_) => true,
            Self::SomeRoutes(_)
            | Self::Counters(_)
            | Self::Underlay(_)
            | Self::Advertisements(_)
            | Self::Strict(_) => false,
        }
    }
}

/// What a refused change of routes means, by the routes that there are.
fn judge(host: &mut Socket, wanted: &Routes, error: NetlinkError) -> KeepError {
    let Ok(present) = route::list(host) else { return KeepError::Netlink(error) };
    let mut found = wanted.iter().filter(|(place, route)| route::contain(&present, **place, route));
    if wanted.is_empty() || found.next().is_some() {
        KeepError::SomeRoutes(error)
    } else {
        KeepError::Netlink(error)
    }
}

/// The links that are counted.
fn links(plan: &Plan, tunnel: Option<u32>) -> BTreeSet<u32> {
    plan.uplinks.iter().copied().chain(tunnel).collect()
}

/// Makes conntrack forget the connections between this node's pods and these ranges.
fn forget_connections(plan: &Plan, faster: &BTreeSet<IpNet>) {
    let is_far = |address: IpAddr| {
        // The ranges have no address in common.
        faster.range(..=IpNet::from(address)).next_back().is_some_and(|it| it.contains(&address))
    };
    let is_near = |address: IpAddr| plan.own_ranges().iter().any(|it| it.contains(&address));
    let are_pods = |one, other| is_near(one) && is_far(other) || is_far(one) && is_near(other);
    match conntrack::forget_connections(are_pods) {
        Ok(connections) => {
            let ranges = faster.len();
            tracing::info!(ranges, connections, "packets to other nodes' pods bypass the stack again");
        }
        Err(error) => tracing::warn!(
            %error,
            "cannot make conntrack forget the connections that now bypass the stack: their packets may be \
             invalid to conntrack if they come back"
        ),
    }
}

/// Logs the ways that are new or have changed.
fn announce(before: Option<&Plan>, plan: &Plan) {
    // No two nodes have the same range.
    let known: HashMap<_, _> =
        before.iter().flat_map(|plan| plan.ranges()).map(|it| (it.range, it)).collect();
    // A cluster may have thousands, at a start.
    for it in plan.ranges().filter(|it| known.get(&it.range) != Some(it)).take(16) {
        match &it.way {
            Ok(way) => tracing::info!(node = it.node, range = %it.range, %way, "the way to a node"),
            Err(why) => tracing::warn!(node = it.node, range = %it.range, %why, "no way to a node"),
        }
    }
}

fn summary(plan: &Plan) -> String {
    let count = |is: fn(&super::way::Way) -> bool| {
        plan.ranges().filter_map(|it| it.way.as_ref().ok()).filter(|way| is(way)).count()
    };
    let direct = count(|it| matches!(it, super::way::Way::Direct { .. }));
    let vxlan = count(|it| matches!(it, super::way::Way::Vxlan { .. }));
    format!("ranges of other nodes: {direct} directly, {vxlan} by VXLAN")
}

#[cfg(test)]
mod tests;
