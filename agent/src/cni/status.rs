//! STATUS: what is in the way, for people in `message` and for programs in `details`.

use std::collections::BTreeMap;

use ferrule_proto::cni::{Error, error::Code};
use jiff::Timestamp;
use serde::Serialize;

use crate::health::Component;

/// `details`, of which `docs/operations.md` tells. Keys stay; more may come.
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

/// The error that tells of all that is in the way of an ADD; none if nothing is: the specification has it that STATUS succeeds
/// whenever an ADD can be served. A node that has lost its way out is for others to notice; were we to say that its network is
/// not ready, its pods would be evicted for what may be one family, or somebody's change of a route.
///
/// 51 is for an agent that cannot serve an ADD on a node whose pods are in trouble too.
pub(super) fn error(troubles: &BTreeMap<&'static str, Component>) -> Option<Error> {
    let told = |of: fn(&Component) -> bool| {
        let told = troubles.iter().filter(|(_, it)| of(it)).map(|(name, it)| format!("{name}: {}", it.why));
        told.collect::<Vec<_>>().join("; ")
    };
    let (of_pods, of_add) = (told(Component::cuts_pods_off), told(Component::hinders_add));
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
    // Texts alone cannot fail to become JSON.
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
    use super::*;
    use crate::health::{Affects, State};

    fn component(state: State, affects: Affects, why: &str) -> Component {
        Component { state, why: why.to_owned(), since_ms: 1_767_323_045_678, affects }
    }

    #[test]
    fn details_are_a_line_of_json_with_each_component_that_is_in_the_way() {
        let ranges = component(State::Starting, Affects::NewPods, "waiting for \"spec.podCIDRs\"");
        let error = error(&[("ranges", ranges)].into()).unwrap();
        assert_eq!(error.code(), Code::PluginNotAvailable);
        let expected = concat!(
            r#"{"components":[{"name":"ranges","state":"starting","since":"2026-01-02T03:04:05.678Z","#,
            r#""reason":"waiting for \"spec.podCIDRs\"","affects":"new-pods"}]}"#
        );
        assert_eq!(error.details, expected);
        let told = "STATUS failed: the agent cannot serve an ADD yet: ranges: waiting for \"spec.podCIDRs\"";
        assert_eq!(error.message, told);
    }

    #[test]
    fn what_cuts_pods_off_is_code_51_when_no_add_can_be_served_either() {
        assert_eq!(error(&BTreeMap::new()), None);
        let egress = component(State::Unhealthy, Affects::AllPods, "uplink is down");
        let ranges = component(State::Starting, Affects::NewPods, "waiting");
        assert_eq!(error(&[("egress", egress.clone())].into()), None, "an ADD can be served");
        let both = error(&[("egress", egress), ("ranges", ranges)].into()).unwrap();
        assert_eq!(both.code(), Code::LimitedConnectivity);
        for told in ["cannot serve an ADD yet: ranges: waiting", "may be cut off: egress: uplink is down"] {
            assert!(both.message.contains(told), "{}", both.message);
        }
    }
}
