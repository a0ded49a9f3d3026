//! Reports healthy once several sources have been listed.

use std::sync::{Arc, Mutex, PoisonError};

use crate::health::Reporter;

/// The sources whose initial list is still missing. Clones share the state.
#[derive(Clone)]
pub struct InitialSync(Arc<Mutex<Inner>>);

struct Inner {
    missing: Vec<&'static str>,
    health: Reporter,
}

// === impl InitialSync ===

impl InitialSync {
    pub fn new(sources: &[&'static str], health: Reporter) -> Self {
        Self(Arc::new(Mutex::new(Inner { missing: sources.to_vec(), health })))
    }

    pub(super) fn listed(&self, source: &'static str) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.missing.retain(|other| *other != source);
        if inner.missing.is_empty() {
            inner.health.healthy("the node's pods and their VIFs have been listed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::{Health, State};

    #[test]
    fn healthy_once_each_source_is_listed_in_any_order() {
        let health = Health::default();
        let state = || health.components()["vifs"].state;
        let sync = InitialSync::new(&["pods", "kuryrports"], health.component("vifs", true, "listing"));
        sync.listed("kuryrports");
        sync.listed("kuryrports");
        assert_eq!((state(), health.is_ready()), (State::Starting, false));
        sync.clone().listed("pods");
        assert_eq!((state(), health.is_ready()), (State::Healthy, true));
    }
}
