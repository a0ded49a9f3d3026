//! STATUS: the components that keep ADD from being served, as text in `message` and as JSON in `details`.

use std::{collections::BTreeMap, time::Duration};

use ferrule_proto::cni::{Error, error::Code};
use jiff::Timestamp;
use serde::Serialize;

use tokio::time::timeout;

use crate::health::{Component, Health, State};

/// `details`, documented in `docs/monitor.md`. Keys are stable; more may be added.
#[derive(Serialize)]
struct Details<'a> {
    components: Vec<Shown<'a>>,
}

#[derive(Serialize)]
struct Shown<'a> {
    name: &'a str,
    state: &'static str,
    /// RFC 3339, in UTC.
    since: String,
    reason: &'a str,
    affects: &'static str,
}

/// How long a STATUS waits for components that have just been started; the shim waits for 20 s. The shims
/// that waited for this agent ask in the moment in which its socket appears.
const SETTLE: Duration = Duration::from_secs(3);

/// The troubles of an agent, without those of its first seconds.
pub(super) async fn settled(health: &Health) -> BTreeMap<&'static str, Component> {
    let troubles = health.troubles();
    if !is_starting(&troubles) {
        return troubles;
    }
    // Either way, the troubles are those of now.
    let _ = timeout(SETTLE, health.until_ready()).await;
    health.troubles()
}

/// Whether only components that have never been healthy block ADD.
fn is_starting(troubles: &BTreeMap<&'static str, Component>) -> bool {
    let mut blocking = troubles.values().filter(|it| it.blocks_add()).peekable();
    blocking.peek().is_some() && blocking.all(|it| it.state == State::Starting)
}

/// The error of a STATUS, or `None` if an ADD can be served, as the CNI specification demands. A lost default
/// route alone does not fail STATUS: the node would turn NotReady and its pods would be evicted, although
/// perhaps only one IP family or a temporary route change is affected.
///
/// Code 51 (limited connectivity) means that no ADD can be served and that running pods may be cut off too.
pub(super) fn error(troubles: &BTreeMap<&'static str, Component>) -> Option<Error> {
    let listed = |of: fn(&Component) -> bool| {
        let lines = troubles.iter().filter(|(_, it)| of(it)).map(|(name, it)| format!("{name}: {}", it.why));
        lines.collect::<Vec<_>>().join("; ")
    };
    let (of_pods, of_add) = (listed(Component::cuts_pods_off), listed(Component::blocks_add));
    let (code, why) = match (of_pods.is_empty(), of_add.is_empty()) {
        (_, true) => return None,
        (true, false) => (Code::PluginNotAvailable, format!("the agent cannot serve an ADD yet: {of_add}")),
        (false, false) => (
            Code::LimitedConnectivity,
            format!(
                "the agent cannot serve an ADD yet: {of_add}; and the pods of this node may be cut off: {of_pods}"
            ),
        ),
    };
    let components = troubles.iter().map(|(name, it)| Shown::of(name, it)).collect();
    let details = Details { components };
    // Serializing plain strings cannot fail.
    let details = serde_json::to_string(&details).unwrap_or_default();
    Some(Error { code: code.into(), message: format!("STATUS failed: {why}"), details, api: None })
}

// === impl Shown ===

impl<'a> Shown<'a> {
    fn of(name: &'a str, component: &'a Component) -> Self {
        let since = i64::try_from(component.since_ms).ok();
        let since = since.and_then(|since| Timestamp::from_millisecond(since).ok());
        Self {
            name,
            state: component.state.as_str(),
            since: since.map(|since| since.to_string()).unwrap_or_default(),
            reason: &component.why,
            affects: component.affects.as_str(),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, sleep};

    use super::*;
    use crate::health::Affects;

    fn component(state: State, affects: Affects, why: &str) -> Component {
        Component { state, why: why.to_owned(), since_ms: 1_767_323_045_678, affects }
    }

    #[test]
    fn details_are_one_line_of_json_with_every_component_that_blocks_add() {
        let ranges = component(State::Starting, Affects::NewPods, "waiting for \"spec.podCIDRs\"");
        let error = error(&[("ranges", ranges)].into()).unwrap();
        assert_eq!(error.code(), Code::PluginNotAvailable);
        let expected = concat!(
            r#"{"components":[{"name":"ranges","state":"starting","since":"2026-01-02T03:04:05.678Z","#,
            r#""reason":"waiting for \"spec.podCIDRs\"","affects":"new-pods"}]}"#
        );
        assert_eq!(error.details, expected);
        let message =
            "STATUS failed: the agent cannot serve an ADD yet: ranges: waiting for \"spec.podCIDRs\"";
        assert_eq!(error.message, message);
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_that_has_just_started_is_given_three_seconds() {
        let (health, began) = (Health::default(), Instant::now());
        let ranges = health.component("ranges", true, "waiting");
        assert_eq!(settled(&health).await.len(), 1, "still starting");
        assert_eq!(began.elapsed().as_secs(), 3);
        let starting = async {
            sleep(Duration::from_secs(1)).await;
            ranges.healthy("10.244.0.0/24");
        };
        let (troubles, ()) = tokio::join!(settled(&health), starting);
        assert!(troubles.is_empty(), "{troubles:?}");
        assert_eq!(began.elapsed().as_secs(), 4);
        ranges.unhealthy("the Node is gone");
        let _socket = health.component("socket", true, "not yet");
        assert_eq!(settled(&health).await.len(), 2, "a failure is reported at once");
        assert_eq!(began.elapsed().as_secs(), 4);
    }

    #[test]
    fn status_is_51_only_if_pods_may_be_cut_off_and_no_add_can_be_served() {
        assert_eq!(error(&BTreeMap::new()), None);
        let default_route = component(State::Unhealthy, Affects::AllPods, "uplink is down");
        let ranges = component(State::Starting, Affects::NewPods, "waiting");
        assert_eq!(error(&[("default-route", default_route.clone())].into()), None, "an ADD can be served");
        let both = error(&[("default-route", default_route), ("ranges", ranges)].into()).unwrap();
        assert_eq!(both.code(), Code::LimitedConnectivity);
        for expected in
            ["cannot serve an ADD yet: ranges: waiting", "may be cut off: default-route: uplink is down"]
        {
            assert!(both.message.contains(expected), "{}", both.message);
        }
    }
}
