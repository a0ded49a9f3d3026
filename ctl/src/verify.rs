//! `ferrulectl verify`.

use std::path::Path;

use ferrule_proto::agent::{Deviation, Foreign, VerifyRequest, VerifyResponse};
use serde::Serialize;

use crate::{
    Answer, Output,
    attachments::{SHORT_ID, align, pod},
    client,
};

/// The answer as it is printed in JSON: the protocol's own names.
#[derive(Serialize)]
struct Shown<'a> {
    deviations: Vec<ShownDeviation<'a>>,
    foreign: Vec<ShownForeign<'a>>,
    attachments: u32,
    in_work: u32,
    self_heal: bool,
}

#[derive(Serialize)]
struct ShownDeviation<'a> {
    kind: &'a str,
    what: &'a str,
    network: &'a str,
    container_id: &'a str,
    ifname: &'a str,
    pod_namespace: &'a str,
    pod_name: &'a str,
    host_ifname: &'a str,
    host_ifindex: u32,
}

#[derive(Serialize)]
struct ShownForeign<'a> {
    network: &'a str,
    container_id: &'a str,
    ifname: &'a str,
    pod_namespace: &'a str,
    pod_name: &'a str,
    host_ifname: &'a str,
    host_ifindex: u32,
    what: &'a str,
}

/// Asks what is not as it should be. Each deviation makes for a failure.
pub(crate) async fn ask(socket: &Path, output: Output) -> anyhow::Result<Answer> {
    let found = client::connect(socket).await?.verify(VerifyRequest {}).await?.into_inner();
    let text = match output {
        Output::Table => table(&found),
        Output::Json => serde_json::to_string_pretty(&Shown::of(&found))?,
    };
    Ok(Answer { text, complaints: complaint(&found).into_iter().collect() })
}

// === impl Shown ===

impl<'a> Shown<'a> {
    fn of(found: &'a VerifyResponse) -> Self {
        let deviation = |it: &'a Deviation| ShownDeviation {
            kind: &it.kind,
            what: &it.what,
            network: &it.network,
            container_id: &it.container_id,
            ifname: &it.ifname,
            pod_namespace: &it.pod_namespace,
            pod_name: &it.pod_name,
            host_ifname: &it.host_ifname,
            host_ifindex: it.host_ifindex,
        };
        let foreign = |it: &'a Foreign| ShownForeign {
            network: &it.network,
            container_id: &it.container_id,
            ifname: &it.ifname,
            pod_namespace: &it.pod_namespace,
            pod_name: &it.pod_name,
            host_ifname: &it.host_ifname,
            host_ifindex: it.host_ifindex,
            what: &it.what,
        };
        Self {
            deviations: found.deviations.iter().map(deviation).collect(),
            foreign: found.foreign.iter().map(foreign).collect(),
            attachments: found.attachments,
            in_work: found.in_work,
            self_heal: found.self_heal,
        }
    }
}

fn complaint(found: &VerifyResponse) -> Option<String> {
    let next = if found.self_heal {
        "the agent puts right what it can, and says in its log what it cannot"
    } else {
        "the agent was told to leave it (--self-heal off)"
    };
    let count = found.deviations.len();
    (count > 0).then(|| format!("not as it should be: {count}; {next}"))
}

/// How much was looked at, and a line for each deviation and for what others have put there.
fn table(found: &VerifyResponse) -> String {
    let header = ["POD", "CONTAINER", "IF", "HOST IF", "KIND", "WHAT"].map(str::to_owned);
    let short = |id: &str| id.chars().take(SHORT_ID).collect::<String>();
    let link = |name: &str, index: u32| match (name, index) {
        (_, 0) => "-".to_owned(),
        ("", index) => format!("({index})"),
        (name, index) => format!("{name} ({index})"),
    };
    let deviations = found.deviations.iter().map(|it| {
        let pod = pod(&it.pod_namespace, &it.pod_name);
        let host = link(&it.host_ifname, it.host_ifindex);
        [pod, short(&it.container_id), it.ifname.clone(), host, it.kind.clone(), it.what.clone()]
    });
    let foreign = found.foreign.iter().map(|it| {
        let pod = pod(&it.pod_namespace, &it.pod_name);
        let host = link(&it.host_ifname, it.host_ifindex);
        [pod, short(&it.container_id), it.ifname.clone(), host, "(foreign)".to_owned(), it.what.clone()]
    });
    let rows: Vec<_> = deviations.chain(foreign).collect();
    let in_work =
        if found.in_work > 0 { format!("; {} in work, ask again", found.in_work) } else { String::new() };
    let summary = match found.deviations.len() {
        0 => format!("all as it should be: attachments {}{in_work}", found.attachments),
        count => format!("deviations {count}, of attachments {}{in_work}", found.attachments),
    };
    if rows.is_empty() {
        summary
    } else {
        format!("{summary}\n\n{}", align(std::iter::once(header).chain(rows)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found() -> VerifyResponse {
        let deviation = Deviation {
            kind: "link-down".to_owned(),
            what: "frabc is down".to_owned(),
            container_id: "0123456789abcdef".to_owned(),
            ifname: "eth0".to_owned(),
            pod_namespace: "default".to_owned(),
            pod_name: "web-0".to_owned(),
            host_ifname: "frabc".to_owned(),
            host_ifindex: 7,
            ..Default::default()
        };
        let stray =
            Deviation { kind: "stray-map-entry".to_owned(), what: "VIFS 9".to_owned(), ..Default::default() };
        VerifyResponse { deviations: vec![deviation, stray], attachments: 2, ..Default::default() }
    }

    #[test]
    fn a_table_has_a_line_for_each_deviation() {
        let expected = "\
deviations 2, of attachments 2

POD            CONTAINER     IF    HOST IF    KIND             WHAT
default/web-0  0123456789ab  eth0  frabc (7)  link-down        frabc is down
-                                  -          stray-map-entry  VIFS 9";
        assert_eq!(table(&found()), expected);
        assert!(complaint(&found()).unwrap().contains("--self-heal off"));
    }

    #[test]
    fn what_others_put_there_is_shown_and_is_no_failure() {
        let foreign = Foreign { what: "an XDP program 3".to_owned(), ..Default::default() };
        let found = VerifyResponse { foreign: vec![foreign], in_work: 1, ..Default::default() };
        let table = table(&found);
        assert!(table.starts_with("all as it should be: attachments 0; 1 in work, ask again\n"), "{table}");
        assert!(table.contains("(foreign)  an XDP program 3"), "{table}");
        assert_eq!(complaint(&found), None);
    }

    #[test]
    fn json_has_the_names_of_the_protocol() {
        let json = serde_json::to_value(Shown::of(&found())).unwrap();
        assert_eq!(json["deviations"][0]["kind"], "link-down");
        assert_eq!((&json["attachments"], &json["self_heal"]), (&2.into(), &false.into()));
    }
}
