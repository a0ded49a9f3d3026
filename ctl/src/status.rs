//! `ferrulectl status`.

use std::{
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::Context as _;
use ferrule_proto::agent::{Component, GetStatusRequest, GetStatusResponse, component::State};
use jiff::Timestamp;
use serde::Serialize;

use crate::{Answer, Output, attachments::align, client};

/// A status as it is printed in JSON: the protocol's own names.
#[derive(Serialize)]
struct Shown<'a> {
    ready: bool,
    node: &'a str,
    version: &'a str,
    components: Vec<ShownComponent<'a>>,
}

#[derive(Serialize)]
struct ShownComponent<'a> {
    name: &'a str,
    state: &'static str,
    reason: &'a str,
    since_ms: u64,
    needed_for_add: bool,
    needed_by_pods: bool,
}

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// Asks how the agent is. One that is not ready is complained about.
pub(crate) async fn ask(socket: &Path, output: Output) -> anyhow::Result<Answer> {
    let answer = client::connect(socket).await?.get_status(GetStatusRequest {}).await;
    let status =
        answer.context("cannot get the agent's status; is the agent of another release?")?.into_inner();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let text = match output {
        Output::Table => table(&status, now.as_secs()),
        Output::Json => serde_json::to_string_pretty(&Shown::of(&status))?,
    };
    Ok(Answer { text, complaints: complaint(&status).into_iter().collect() })
}

// === impl Shown ===

impl<'a> Shown<'a> {
    fn of(status: &'a GetStatusResponse) -> Self {
        let components = status.components.iter().map(|it| ShownComponent {
            name: &it.name,
            state: state(it),
            reason: &it.reason,
            since_ms: it.since_ms,
            needed_for_add: it.needed_for_add,
            needed_by_pods: it.needed_by_pods,
        });
        Self {
            ready: status.ready,
            node: &status.node,
            version: &status.version,
            components: components.collect(),
        }
    }
}

fn table(status: &GetStatusResponse, now: u64) -> String {
    let of = if status.node.is_empty() { "this node" } else { &status.node };
    let ready = if status.ready { "ready" } else { "not ready" };
    let header = ["COMPONENT", "STATE", "SINCE", "WHY"];
    let rows = status.components.iter().map(|component| {
        [
            component.name.clone(),
            state(component).to_owned(),
            since(component.since_ms, now),
            component.reason.clone(),
        ]
    });
    let components = align(std::iter::once(header.map(str::to_owned)).chain(rows));
    format!("{of}: {ready} (ferrule-agent {})\n\n{components}", status.version)
}

/// What keeps pods from being reached, if an ADD could be served.
fn complaint(status: &GetStatusResponse) -> Option<String> {
    if status.ready {
        let broken =
            status.components.iter().find(|it| it.needed_by_pods && it.state() == State::Unhealthy)?;
        return Some(format!("pods on this node may be cut off: {}: {}", broken.name, broken.reason));
    }
    let missing = status.components.iter().filter(|it| it.needed_for_add && it.state() != State::Healthy);
    let missing: Vec<_> = missing.map(|it| it.name.as_str()).collect();
    Some(format!("the agent is not ready: ADD needs what is not healthy: {}", missing.join(", ")))
}

fn state(component: &Component) -> &'static str {
    match component.state() {
        State::Unspecified => "?",
        State::Starting => "starting",
        State::Healthy => "healthy",
        State::Unhealthy => "unhealthy",
    }
}

/// How long ago, and when: `3m12s ago (2026-01-02T03:04:05Z)`.
fn since(since_ms: u64, now: u64) -> String {
    let seconds = since_ms / 1000;
    let time = i64::try_from(seconds).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    let time = time.map_or_else(|| "?".to_owned(), |time| time.to_string());
    format!("{} ago ({time})", duration(now.saturating_sub(seconds)))
}

/// The two largest units.
fn duration(seconds: u64) -> String {
    match seconds {
        0..MINUTE => format!("{seconds}s"),
        MINUTE..HOUR => format!("{}m{}s", seconds / MINUTE, seconds % MINUTE),
        HOUR..DAY => format!("{}h{}m", seconds / HOUR, seconds % HOUR / MINUTE),
        _ => format!("{}d{}h", seconds / DAY, seconds % DAY / HOUR),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-01-02T03:04:05Z.
    const TIME: u64 = 1_767_323_045;

    fn component(name: &str, state: State, needed: bool, reason: &str) -> Component {
        Component {
            name: name.to_owned(),
            state: state.into(),
            reason: reason.to_owned(),
            since_ms: TIME * 1000 + 789,
            needed_for_add: needed,
            needed_by_pods: false,
        }
    }

    fn status(ready: bool) -> GetStatusResponse {
        let vifs = if ready { State::Healthy } else { State::Starting };
        GetStatusResponse {
            ready,
            components: vec![
                component("pods", State::Unhealthy, false, "connection refused"),
                component("vifs", vifs, true, "the node's pods have not been listed yet"),
            ],
            version: "0.1.0".to_owned(),
            node: "node-1".to_owned(),
        }
    }

    #[test]
    fn a_status_begins_with_whether_the_agent_is_ready() {
        let expected = "\
node-1: not ready (ferrule-agent 0.1.0)

COMPONENT  STATE      SINCE                             WHY
pods       unhealthy  3m12s ago (2026-01-02T03:04:05Z)  connection refused
vifs       starting   3m12s ago (2026-01-02T03:04:05Z)  the node's pods have not been listed yet";
        assert_eq!(table(&status(false), TIME + 192), expected);
        let standalone = GetStatusResponse { node: String::new(), ..status(true) };
        assert!(table(&standalone, TIME).starts_with("this node: ready (ferrule-agent 0.1.0)\n"));
    }

    #[test]
    fn an_agent_that_is_not_ready_is_a_failure_that_names_what_is_missing() {
        assert_eq!(complaint(&status(true)), None);
        let complaint = complaint(&status(false)).unwrap();
        assert!(complaint.ends_with(": vifs"), "what ADD does not need is no reason: {complaint}");
    }

    #[test]
    fn json_has_the_names_of_the_protocol() {
        let json = serde_json::to_value(Shown::of(&status(true))).unwrap();
        assert_eq!(json["ready"], true);
        let expected = serde_json::json!({
            "name": "pods", "state": "unhealthy", "reason": "connection refused",
            "since_ms": TIME * 1000 + 789, "needed_for_add": false, "needed_by_pods": false,
        });
        assert_eq!(json["components"][0], expected);
    }

    #[test]
    fn durations_have_their_two_largest_units() {
        for (seconds, text) in
            [(0, "0s"), (59, "59s"), (192, "3m12s"), (3 * HOUR + 61, "3h1m"), (50 * HOUR + 1, "2d2h")]
        {
            assert_eq!(duration(seconds), text);
        }
        assert!(since(u64::MAX, TIME).starts_with("0s ago ("), "a clock that was set back");
    }

    #[test]
    fn who_cannot_reach_the_agent_is_told_what_to_look_at() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let asked = runtime.block_on(ask(Path::new("/nowhere/agent.sock"), Output::Table));
        let Err(error) = asked else { panic!("who answered?") };
        let text = format!("{error:#}");
        assert!(text.contains("/nowhere/agent.sock") && text.contains("does ferrule-agent run"), "{text}");
    }
}
