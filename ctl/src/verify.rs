//! `ferrulectl verify`.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use ferrule_proto::agent::{Deviation, VerifyRequest, VerifyResponse};

use crate::{
    client,
    filter::Filter,
    output::{Output, Report},
    paint,
    table::{interface, pod, short_id, table},
};

/// Commands shown for each kind of deviation.
const COMMANDS: usize = 3;

/// Any deviation is a failure.
pub(crate) async fn run(filter: &Filter, socket: &Path, output: Output) -> anyhow::Result<Report> {
    let mut response = client::connect(socket).await?.verify(VerifyRequest {}).await?.into_inner();
    retain(&mut response, filter);
    let text = output.show(&response, render)?;
    Ok(Report::new(text, failure(&response)))
}

/// Leaves what concerns the chosen pods. Deviations of no pod concern all.
fn retain(response: &mut VerifyResponse, filter: &Filter) {
    let is_chosen = |namespace: &str, name: &str| {
        filter.is_empty() || (name.is_empty() && namespace.is_empty()) || filter.matches(namespace, name)
    };
    response.deviations.retain(|it| is_chosen(&it.pod_namespace, &it.pod_name));
    response.foreign.retain(|it| is_chosen(&it.pod_namespace, &it.pod_name));
}

fn failure(response: &VerifyResponse) -> Option<String> {
    let next = if response.self_heal {
        "the agent repairs what it can and logs every repair that fails"
    } else {
        "the agent does not repair: self-healing is disabled (--self-heal off)"
    };
    let count = response.deviations.len();
    (count > 0).then(|| format!("{} found; {next}", plural(count, "deviation")))
}

/// A summary, then one line for each deviation and each foreign object, and what the deviations mean.
fn render(response: &VerifyResponse) -> String {
    let deviations = response.deviations.iter().map(|it| {
        [
            pod(&it.pod_namespace, &it.pod_name),
            short_id(&it.container_id),
            it.ifname.clone(),
            interface(&it.host_ifname, it.host_ifindex),
            paint::bad(&it.kind),
            it.what.clone(),
        ]
    });
    let foreign = response.foreign.iter().map(|it| {
        [
            pod(&it.pod_namespace, &it.pod_name),
            short_id(&it.container_id),
            it.ifname.clone(),
            interface(&it.host_ifname, it.host_ifindex),
            "(foreign)".to_owned(),
            it.what.clone(),
        ]
    });
    let mut rows = deviations.chain(foreign).peekable();
    let summary = summary(response);
    if rows.peek().is_none() {
        return summary;
    }
    let table = table(["POD", "CONTAINER", "IF", "HOST IF", "KIND", "FOUND"], rows);
    format!("{summary}\n\n{table}{}", advice(&response.deviations))
}

/// The consequences and commands of each kind, once.
fn advice(deviations: &[Deviation]) -> String {
    let mut kinds = BTreeMap::<_, BTreeSet<_>>::new();
    // An agent of an earlier build sends none.
    for it in deviations.iter().filter(|it| !it.means.is_empty()) {
        kinds.entry((&it.kind, &it.means, it.repairable)).or_default().insert(&it.command);
    }
    let mut text = String::new();
    for ((kind, means, repairable), commands) in kinds {
        let by = if repairable { "the agent repairs this" } else { "the agent does not repair this" };
        text += &format!("\n\n{kind}: {means}; {by}");
        text.extend(commands.iter().take(COMMANDS).map(|command| format!("\n  {command}")));
        if commands.len() > COMMANDS {
            text += &format!("\n  and {} more like these", commands.len() - COMMANDS);
        }
    }
    text
}

fn summary(response: &VerifyResponse) -> String {
    let deviations = match response.deviations.len() {
        0 => paint::good("no deviations"),
        count => paint::bad(&plural(count, "deviation")),
    };
    let attachments = plural(response.attachments as usize, "attachment");
    let mut summary = format!("{deviations} in {attachments}");
    if !response.foreign.is_empty() {
        summary += &format!("; {} of other software", plural(response.foreign.len(), "object"));
    }
    if response.in_work > 0 {
        summary += &format!("; {} not verified (call in flight), retry", response.in_work);
    }
    summary
}

fn plural(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

#[cfg(test)]
mod tests {
    use ferrule_proto::agent::Foreign;
    use serde_json::json;

    use super::*;

    fn response() -> VerifyResponse {
        let deviation = Deviation {
            kind: "link-down".to_owned(),
            what: "frabc is down".to_owned(),
            container_id: "0123456789abcdef".to_owned(),
            ifname: "eth0".to_owned(),
            pod_namespace: "default".to_owned(),
            pod_name: "web-0".to_owned(),
            host_ifname: "frabc".to_owned(),
            host_ifindex: 7,
            means: "the pod has no network".to_owned(),
            command: "ip link set dev frabc up".to_owned(),
            repairable: true,
            ..Default::default()
        };
        let stray =
            Deviation { kind: "stray-map-entry".to_owned(), what: "VIFS 9".to_owned(), ..Default::default() };
        VerifyResponse { deviations: vec![deviation, stray], attachments: 2, ..Default::default() }
    }

    #[test]
    fn table_has_a_line_for_each_deviation() {
        let expected = "\
2 deviations in 2 attachments

POD            CONTAINER     IF    HOST IF    KIND             FOUND
default/web-0  0123456789ab  eth0  frabc (7)  link-down        frabc is down
-                                  -          stray-map-entry  VIFS 9

link-down: the pod has no network; the agent repairs this
  ip link set dev frabc up";
        assert_eq!(render(&response()), expected);
        let failure = failure(&response()).unwrap();
        assert!(failure.starts_with("2 deviations found; ") && failure.contains("--self-heal off"));
    }

    #[test]
    fn each_kind_is_explained_once_with_some_of_its_commands() {
        let of = |number| Deviation {
            kind: "link-stamp".to_owned(),
            means: "packets flow".to_owned(),
            command: format!("ip link set dev fr{number} alias x"),
            ..Default::default()
        };
        let deviations: Vec<_> = [2, 1, 2, 3, 4, 5].map(of).into();
        let expected = "

link-stamp: packets flow; the agent does not repair this
  ip link set dev fr1 alias x
  ip link set dev fr2 alias x
  ip link set dev fr3 alias x
  and 2 more like these";
        assert_eq!(advice(&deviations), expected);
    }

    #[test]
    fn foreign_objects_are_listed_and_are_no_failure() {
        let foreign = Foreign { what: "an XDP program 3".to_owned(), ..Default::default() };
        let response = VerifyResponse { foreign: vec![foreign], in_work: 1, ..Default::default() };
        let table = render(&response);
        let summary = "no deviations in 0 attachments; 1 object of other software; 1 not verified (call in flight), retry\n";
        assert!(table.starts_with(summary), "{table}");
        assert!(table.contains("(foreign)  an XDP program 3"), "{table}");
        assert_eq!(failure(&response), None);
    }

    #[test]
    fn a_chosen_pod_leaves_its_own_deviations_and_those_of_the_node() {
        for (pod, left) in [("web", 2), ("db", 1)] {
            let mut response = response();
            retain(&mut response, &Filter { pod: Some(pod.to_owned()), namespace: None });
            assert_eq!(response.deviations.len(), left, "{pod}");
        }
    }

    #[test]
    fn json_has_the_field_names_of_the_protocol() {
        let foreign = Foreign { what: "an XDP program 3".to_owned(), host_ifindex: 7, ..Default::default() };
        let mut response = VerifyResponse { foreign: vec![foreign], ..response() };
        response.deviations.truncate(1);
        let expected = json!({
            "deviations": [{
                "kind": "link-down", "what": "frabc is down", "network": "", "container_id": "0123456789abcdef",
                "ifname": "eth0", "pod_namespace": "default", "pod_name": "web-0", "host_ifname": "frabc",
                "host_ifindex": 7, "means": "the pod has no network", "command": "ip link set dev frabc up",
                "repairable": true,
            }],
            "foreign": [{
                "network": "", "container_id": "", "ifname": "", "pod_namespace": "", "pod_name": "",
                "host_ifname": "", "host_ifindex": 7, "what": "an XDP program 3",
            }],
            "attachments": 2, "in_work": 0, "self_heal": false,
        });
        assert_eq!(serde_json::to_value(&response).unwrap(), expected);
    }
}
