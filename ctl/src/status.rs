//! `ferrulectl status`.

use std::path::Path;

use anyhow::Context as _;
use ferrule_proto::agent::{GetStatusRequest, GetStatusResponse, Link, component::State};

use crate::{
    client,
    output::{Output, Report},
    paint,
    table::table,
    time::{now, since},
};

/// An agent that is not ready is a failure, and so are pods that may lack connectivity.
pub(crate) async fn run(socket: &Path, output: Output) -> anyhow::Result<Report> {
    let response = client::connect(socket).await?.get_status(GetStatusRequest {}).await;
    let status = response.context("cannot get the status from the agent")?.into_inner();
    let text = output.show(&status, |it| render(it, now()))?;
    Ok(Report::new(text, failure(&status)))
}

fn render(status: &GetStatusResponse, now: u64) -> String {
    let node = if status.node.is_empty() { "this node" } else { &status.node };
    let ready = if status.ready { paint::good("ready") } else { paint::bad("not ready") };
    let rows = status.components.iter().map(|component| {
        [
            component.name.clone(),
            state(component.state()),
            since(component.since_ms, now),
            component.reason.clone(),
        ]
    });
    let components = table(["COMPONENT", "STATE", "SINCE", "REASON"], rows);
    let mut text = format!("{node}: {ready} (ferrule-agent {})\n\n{components}", status.version);
    if !status.links.is_empty() {
        text.push_str("\n\n");
        text.push_str(&links(&status.links));
    }
    text
}

fn state(state: State) -> String {
    match state {
        State::Healthy => paint::good(state.name()),
        State::Unhealthy => paint::bad(state.name()),
        State::Starting | State::Unspecified => paint::warn(state.name()),
    }
}

/// The tunnel device and the uplinks.
fn links(links: &[Link]) -> String {
    let rows = links.iter().map(|link| {
        let drops = link.drops.iter().map(|drop| format!("{}={}", drop.reason, drop.packets));
        let drops = drops.collect::<Vec<_>>().join(" ");
        let drops = if drops.is_empty() { "0".to_owned() } else { drops };
        [link.interface.clone(), link.packets.to_string(), link.bytes.to_string(), drops, fast_path(link)]
    });
    table(["LINK", "IN PKTS", "IN BYTES", "DROPS", "FAST PATH"], rows)
}

fn fast_path(link: &Link) -> String {
    let state = if link.fast_path { "on" } else { "off" };
    if link.slow_because.is_empty() { state.to_owned() } else { format!("{state}: {}", link.slow_because) }
}

fn failure(status: &GetStatusResponse) -> Option<String> {
    if status.ready {
        let mut components = status.components.iter();
        let failed = components.find(|it| it.needed_by_pods && it.state() == State::Unhealthy)?;
        return Some(format!(
            "pods on this node may lack connectivity: {} is unhealthy: {}",
            failed.name, failed.reason
        ));
    }
    let blocking = status.components.iter().filter(|it| it.needed_for_add && it.state() != State::Healthy);
    let blocking: Vec<_> = blocking.map(|it| it.name.as_str()).collect();
    Some(format!("the agent is not ready for ADD; not healthy: {}", blocking.join(", ")))
}

#[cfg(test)]
mod tests {
    use ferrule_proto::agent::{Component, Drop};

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
            links: Vec::new(),
        }
    }

    #[test]
    fn table_starts_with_readiness() {
        let expected = "\
node-1: not ready (ferrule-agent 0.1.0)

COMPONENT  STATE      SINCE                             REASON
pods       unhealthy  3m12s ago (2026-01-02T03:04:05Z)  connection refused
vifs       starting   3m12s ago (2026-01-02T03:04:05Z)  the node's pods have not been listed yet";
        assert_eq!(render(&status(false), TIME + 192), expected);
        let standalone = GetStatusResponse { node: String::new(), ..status(true) };
        assert!(render(&standalone, TIME).starts_with("this node: ready (ferrule-agent 0.1.0)\n"));
    }

    #[test]
    fn links_follow_with_what_passed_and_what_was_dropped() {
        let drops = vec![
            Drop { reason: "tunnel_outer".to_owned(), packets: 7 },
            Drop { reason: "tunnel_inner".to_owned(), packets: 1 },
        ];
        let link = |interface: &str, drops, fast_path, why: &str| Link {
            interface: interface.to_owned(),
            packets: 3,
            bytes: 300,
            drops,
            fast_path,
            slow_because: why.to_owned(),
        };
        let links = vec![
            link("ferrule", drops, true, "not to 1 of 2 ranges: why"),
            link("eth0", Vec::new(), true, ""),
            link("wg0", Vec::new(), false, "its packets have no Ethernet header"),
        ];
        let text = render(&GetStatusResponse { links, ..status(true) }, TIME);
        let (_, shown) = text.rsplit_once("\n\n").unwrap();
        let expected = "\
LINK     IN PKTS  IN BYTES  DROPS                          FAST PATH
ferrule  3        300       tunnel_outer=7 tunnel_inner=1  on: not to 1 of 2 ranges: why
eth0     3        300       0                              on
wg0      3        300       0                              off: its packets have no Ethernet header";
        assert_eq!(shown, expected);
    }

    #[test]
    fn not_ready_is_a_failure_that_names_the_components_that_add_needs() {
        assert_eq!(failure(&status(true)), None);
        let failure = failure(&status(false)).unwrap();
        assert!(failure.ends_with(": vifs"), "{failure}");
    }

    #[test]
    fn lost_connectivity_of_pods_is_a_failure_of_a_ready_agent() {
        let mut status = status(true);
        status.components[0].needed_by_pods = true;
        let expected = "pods on this node may lack connectivity: pods is unhealthy: connection refused";
        assert_eq!(failure(&status).unwrap(), expected);
    }

    #[test]
    fn json_has_the_field_names_of_the_protocol() {
        let json = serde_json::to_value(status(true)).unwrap();
        assert_eq!((&json["ready"], &json["node"]), (&true.into(), &"node-1".into()));
        assert_eq!(json["version"], "0.1.0");
        let expected = serde_json::json!({
            "name": "pods", "state": "unhealthy", "reason": "connection refused",
            "since_ms": TIME * 1000 + 789, "needed_for_add": false, "needed_by_pods": false,
        });
        assert_eq!(json["components"][0], expected);
    }

    #[test]
    fn unreachable_agent_is_an_error_with_socket_and_remedy() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let result = runtime.block_on(run(Path::new("/nowhere/agent.sock"), Output::Table));
        let Err(error) = result else { panic!("an agent runs on /nowhere/agent.sock") };
        let text = format!("{error:#}");
        assert_eq!(
            text,
            "cannot connect to the agent on /nowhere/agent.sock: No such file or directory (os error 2); check that \
             ferrule-agent runs, that this is its --socket, and that you are root"
        );
    }
}
