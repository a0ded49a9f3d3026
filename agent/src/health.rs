//! The state of each of the agent's components, since when, and why.
//!
//! Readiness means that an ADD could be served. The API server's reachability does not affect it: an agent
//! with a synced inventory of pods serves without. Neither does the connectivity of attached pods: a new pod
//! can still reach those on its node.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use tokio::sync::watch;

/// The components of one agent. Clones share them.
#[derive(Debug, Clone)]
pub struct Health(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    components: Mutex<BTreeMap<&'static str, Component>>,
    ready: watch::Sender<bool>,
}

/// The current state of a component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Component {
    pub state: State,
    /// One line.
    pub why: String,
    /// When the component entered this state, in milliseconds since the Unix epoch.
    pub since_ms: u64,
    pub affects: Affects,
}

/// The pods that an unhealthy component affects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Affects {
    Nothing,
    /// ADD fails.
    NewPods,
    /// ADD fails while the node has no room for another pod; the agent itself works.
    NewPodsWhileFull,
    /// ADD succeeds, but pods lack connectivity, attached ones included.
    AllPods,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Never healthy so far.
    Starting,
    Healthy,
    /// Failing, and retrying.
    Unhealthy,
}

/// The handle by which a component reports its state. Dropping it removes the component.
#[derive(Debug)]
pub struct Reporter {
    health: Health,
    name: &'static str,
}

// === impl Health ===

impl Default for Health {
    fn default() -> Self {
        Self(Arc::new(Inner { components: Mutex::default(), ready: watch::Sender::new(true) }))
    }
}

impl Health {
    /// Adds a component in the state *starting*. `needed`: ADD fails without it.
    pub fn component(&self, name: &'static str, needed: bool, why: &str) -> Reporter {
        self.add(name, if needed { Affects::NewPods } else { Affects::Nothing }, why)
    }

    /// Adds a component in the state *starting* that all pods need for connectivity, but ADD does not need.
    pub fn component_of_all_pods(&self, name: &'static str, why: &str) -> Reporter {
        self.add(name, Affects::AllPods, why)
    }

    /// Adds a component in the state *starting* that ADD needs, and that is unhealthy while the node is full.
    pub fn component_of_room(&self, name: &'static str, why: &str) -> Reporter {
        self.add(name, Affects::NewPodsWhileFull, why)
    }

    fn add(&self, name: &'static str, affects: Affects, why: &str) -> Reporter {
        let component =
            Component { state: State::Starting, why: why.to_owned(), since_ms: now_ms(), affects };
        self.change(|components| {
            components.insert(name, component);
        });
        Reporter { health: self.clone(), name }
    }

    /// Whether an ADD could be served: all components that ADD needs are healthy.
    pub fn is_ready(&self) -> bool {
        *self.0.ready.borrow()
    }

    /// Whether the agent does its part: [`Self::is_ready`], or only room for another pod is missing. A full
    /// node must not hold up the roll-out of the agents of all other nodes.
    pub fn is_serving(&self) -> bool {
        !self.lock().values().any(|it| it.blocks_add() && it.affects != Affects::NewPodsWhileFull)
    }

    /// Waits until [`Self::is_ready`].
    pub async fn until_ready(&self) {
        // Cannot fail: `self` owns the sender.
        let _ = self.0.ready.subscribe().wait_for(|ready| *ready).await;
    }

    /// Subscribes to changes of [`Self::is_ready`].
    pub fn readiness(&self) -> watch::Receiver<bool> {
        self.0.ready.subscribe()
    }

    /// All components, by name.
    pub fn components(&self) -> BTreeMap<&'static str, Component> {
        self.lock().clone()
    }

    /// The reasons why ADD fails, one line for each component; empty when ready.
    pub fn obstacles(&self) -> Vec<String> {
        let components = self.lock();
        let obstacles = components.iter().filter(|(_, it)| it.blocks_add());
        obstacles.map(|(name, it)| format!("{name}: {}", it.why)).collect()
    }

    /// The components that block ADD or cut pods off, by name.
    pub fn troubles(&self) -> BTreeMap<&'static str, Component> {
        let mut components = self.components();
        components.retain(|_, it| it.blocks_add() || it.cuts_pods_off());
        components
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<&'static str, Component>)) {
        let mut components = self.lock();
        change(&mut components);
        let ready = !components.values().any(Component::blocks_add);
        self.0.ready.send_if_modified(|before| std::mem::replace(before, ready) != ready);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, Component>> {
        self.0.components.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Component ===

impl Component {
    /// Whether ADD fails because of this component.
    pub fn blocks_add(&self) -> bool {
        self.is_needed_for_add() && self.state != State::Healthy
    }

    pub fn is_needed_for_add(&self) -> bool {
        matches!(self.affects, Affects::NewPods | Affects::NewPodsWhileFull)
    }

    /// Whether attached pods may lack connectivity. A starting component is not known to be broken.
    pub fn cuts_pods_off(&self) -> bool {
        self.affects == Affects::AllPods && self.state == State::Unhealthy
    }
}

// === impl Affects ===

impl Affects {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::NewPods | Self::NewPodsWhileFull => "new-pods",
            Self::AllPods => "all-pods",
        }
    }
}

// === impl State ===

impl State {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Healthy => "healthy",
            Self::Unhealthy => "unhealthy",
        }
    }
}

// === impl Reporter ===

impl Reporter {
    pub fn healthy(&self, why: impl Into<String>) {
        self.report(State::Healthy, why.into());
    }

    /// Reports a failure that the component retries.
    pub fn unhealthy(&self, why: impl Into<String>) {
        self.report(State::Unhealthy, why.into());
    }

    /// Updates the reason of a component that has never been healthy; otherwise does nothing.
    pub fn starting(&self, why: impl Into<String>) {
        if self.state() == Some(State::Starting) {
            self.report(State::Starting, why.into());
        }
    }

    /// The state reported last.
    pub fn state(&self) -> Option<State> {
        self.health.lock().get(self.name).map(|component| component.state)
    }

    fn report(&self, state: State, why: String) {
        let why = why.replace(char::is_control, " ");
        self.health.change(|components| {
            let Some(component) = components.get_mut(self.name) else { return };
            if component.state != state {
                component.since_ms = now_ms();
                match state {
                    State::Unhealthy => tracing::warn!(component = self.name, why, "component is unhealthy"),
                    State::Healthy if component.state == State::Unhealthy => {
                        tracing::info!(component = self.name, why, "component is healthy again");
                    }
                    _ => {}
                }
            }
            (component.state, component.why) = (state, why);
        });
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.health.change(|components| {
            components.remove(self.name);
        });
    }
}

fn now_ms() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_when_all_components_that_add_needs_are_healthy() {
        let health = Health::default();
        assert!(health.is_ready(), "no component is needed");
        let ranges = health.component("ranges", true, "waiting for the node");
        let api = health.component("api", false, "connecting");
        assert!(!health.is_ready());
        assert_eq!(health.obstacles(), ["ranges: waiting for the node"]);
        ranges.healthy("10.0.0.0/24");
        assert!(health.is_ready(), "ADD works without the API server");
        api.unhealthy("connection refused");
        assert!(health.is_ready() && health.obstacles().is_empty());
        drop(ranges);
        assert_eq!(health.components().len(), 1);
    }

    #[test]
    fn agent_of_a_full_node_serves_but_is_not_ready() {
        let health = Health::default();
        let (registry, room) = (health.component("registry", true, ""), health.component_of_room("ipam", ""));
        assert!(!health.is_serving());
        registry.healthy("");
        room.unhealthy("every IPv4 address is in use");
        assert!(health.is_serving() && !health.is_ready());
        assert_eq!(health.obstacles(), ["ipam: every IPv4 address is in use"]);
        registry.unhealthy("the disk is full");
        assert!(!health.is_serving());
    }

    #[test]
    fn lost_connectivity_does_not_block_add() {
        let health = Health::default();
        let route = health.component_of_all_pods("default-route", "not checked yet");
        assert!(health.is_ready() && health.troubles().is_empty(), "a starting component is not broken");
        route.unhealthy("uplink is down");
        assert!(health.is_ready() && health.obstacles().is_empty());
        assert_eq!(health.troubles()["default-route"].why, "uplink is down");
        route.healthy("");
        assert!(health.troubles().is_empty());
    }

    #[test]
    fn since_is_the_time_of_the_last_change_of_state() {
        let health = Health::default();
        let api = health.component("api", false, "");
        api.unhealthy("refused");
        let since = health.components()["api"].since_ms;
        std::thread::sleep(std::time::Duration::from_millis(3));
        api.unhealthy("refused again");
        api.starting("ignored");
        let now = health.components()["api"].clone();
        assert_eq!((now.since_ms, now.why.as_str()), (since, "refused again"));
    }

    #[tokio::test]
    async fn until_ready_returns_on_the_change() {
        let health = Health::default();
        let needed = health.component("needed", true, "");
        let waiting = tokio::spawn({
            let health = health.clone();
            async move { health.until_ready().await }
        });
        needed.healthy("");
        waiting.await.unwrap();
    }
}
