//! How each part of the agent is, since when and why.
//!
//! Ready means that an ADD could be served. Whether the API server can be reached is another question: an agent that knows
//! its pods serves without it. Yet another one is whether the pods that are there can reach anybody: while they cannot, a
//! new one is plugged all the same, and talks with those on the node.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use tokio::sync::watch;

/// The components of one agent.
#[derive(Debug, Clone)]
pub struct Health(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    components: Mutex<BTreeMap<&'static str, Component>>,
    ready: watch::Sender<bool>,
}

/// One component as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Component {
    pub state: State,
    /// One line.
    pub why: String,
    /// When it came into this state, in milliseconds since the Unix epoch.
    pub since_ms: u64,
    /// Whom it matters to.
    pub affects: Affects,
}

/// What it means for pods that a component is not healthy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Affects {
    /// Nothing.
    Nothing,
    /// An ADD cannot be served.
    NewPods,
    /// An ADD can be served, but neither new pods nor those that are there can reach all that they should.
    AllPods,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Not ready yet, for the first time.
    Starting,
    Healthy,
    /// It does not work, and goes on trying.
    Unhealthy,
}

/// A component's own handle: how it says how it is. When the last one is dropped, the component is no more.
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
    /// Adds a component, which is starting. `needed` is whether an ADD cannot be served without it.
    pub fn component(&self, name: &'static str, needed: bool, why: &str) -> Reporter {
        self.add(name, if needed { Affects::NewPods } else { Affects::Nothing }, why)
    }

    /// Adds a component, which is starting. All pods need it, those that are there already included; an ADD does not.
    pub fn component_of_all_pods(&self, name: &'static str, why: &str) -> Reporter {
        self.add(name, Affects::AllPods, why)
    }

    fn add(&self, name: &'static str, affects: Affects, why: &str) -> Reporter {
        let component =
            Component { state: State::Starting, why: why.to_owned(), since_ms: now_ms(), affects };
        self.change(|components| {
            components.insert(name, component);
        });
        Reporter { health: self.clone(), name }
    }

    /// Whether an ADD could be served: all components that it needs are healthy.
    pub fn is_ready(&self) -> bool {
        *self.0.ready.borrow()
    }

    /// Waits until [`Self::is_ready`].
    pub async fn until_ready(&self) {
        // The sender is ours, so that there is no end to wait for.
        let _ = self.0.ready.subscribe().wait_for(|ready| *ready).await;
    }

    /// Whether it is ready, now and after each change.
    pub fn readiness(&self) -> watch::Receiver<bool> {
        self.0.ready.subscribe()
    }

    /// All components, by name.
    pub fn components(&self) -> BTreeMap<&'static str, Component> {
        self.lock().clone()
    }

    /// What keeps ADD from being served, one line for each component; empty when ready.
    pub fn obstacles(&self) -> Vec<String> {
        let components = self.lock();
        let obstacles = components.iter().filter(|(_, it)| it.hinders_add());
        obstacles.map(|(name, it)| format!("{name}: {}", it.why)).collect()
    }

    /// The components that keep ADD from being served or pods from being reached, by name.
    pub fn troubles(&self) -> BTreeMap<&'static str, Component> {
        let mut components = self.components();
        components.retain(|_, it| it.hinders_add() || it.cuts_pods_off());
        components
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<&'static str, Component>)) {
        let mut components = self.lock();
        change(&mut components);
        let ready = !components.values().any(Component::hinders_add);
        self.0.ready.send_if_modified(|before| std::mem::replace(before, ready) != ready);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, Component>> {
        self.0.components.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Component ===

impl Component {
    /// Whether it keeps ADD from being served.
    pub fn hinders_add(&self) -> bool {
        self.affects == Affects::NewPods && self.state != State::Healthy
    }

    /// Whether pods that are there already may not reach all that they should. What is only starting is not known to be
    /// broken.
    pub fn cuts_pods_off(&self) -> bool {
        self.affects == Affects::AllPods && self.state == State::Unhealthy
    }
}

// === impl Affects ===

impl Affects {
    /// In a word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::NewPods => "new-pods",
            Self::AllPods => "all-pods",
        }
    }
}

// === impl State ===

impl State {
    /// In a word.
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
    /// It works.
    pub fn healthy(&self, why: impl Into<String>) {
        self.report(State::Healthy, why.into());
    }

    /// It does not work, and goes on trying.
    pub fn unhealthy(&self, why: impl Into<String>) {
        self.report(State::Unhealthy, why.into());
    }

    /// It is not ready yet; unless it has been already: then what it waits for is of no interest.
    pub fn starting(&self, why: impl Into<String>) {
        if self.state() == Some(State::Starting) {
            self.report(State::Starting, why.into());
        }
    }

    /// As it was reported last.
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
                    State::Unhealthy => tracing::warn!(component = self.name, why, "unhealthy"),
                    State::Healthy if component.state == State::Unhealthy => {
                        tracing::info!(component = self.name, why, "healthy again");
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
    fn ready_means_that_all_that_add_needs_is_healthy() {
        let health = Health::default();
        assert!(health.is_ready(), "nothing is needed");
        let ranges = health.component("ranges", true, "waiting for the node");
        let api = health.component("api", false, "connecting");
        assert!(!health.is_ready());
        assert_eq!(health.obstacles(), ["ranges: waiting for the node"]);
        ranges.healthy("10.0.0.0/24");
        assert!(health.is_ready(), "an API server that is away keeps no pod from being plugged");
        api.unhealthy("connection refused");
        assert!(health.is_ready() && health.obstacles().is_empty());
        drop(ranges);
        assert_eq!(health.components().len(), 1);
    }

    #[test]
    fn what_cuts_pods_off_keeps_no_pod_from_being_plugged() {
        let health = Health::default();
        let egress = health.component_of_all_pods("egress", "not looked at yet");
        assert!(health.is_ready() && health.troubles().is_empty(), "it may be well");
        egress.unhealthy("uplink is down");
        assert!(health.is_ready() && health.obstacles().is_empty());
        assert_eq!(health.troubles()["egress"].why, "uplink is down");
        egress.healthy("");
        assert!(health.troubles().is_empty());
    }

    #[test]
    fn since_is_when_the_state_changed_not_when_it_was_last_told() {
        let health = Health::default();
        let api = health.component("api", false, "");
        api.unhealthy("refused");
        let since = health.components()["api"].since_ms;
        std::thread::sleep(std::time::Duration::from_millis(3));
        api.unhealthy("refused again");
        api.starting("of no interest now");
        let now = health.components()["api"].clone();
        assert_eq!((now.since_ms, now.why.as_str()), (since, "refused again"));
    }

    #[tokio::test]
    async fn who_waits_for_ready_is_woken() {
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
