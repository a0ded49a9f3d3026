//! `ferrulectl attachments`.

use std::{collections::BTreeMap, path::Path};

use ferrule_proto::agent::{Attachment, Counters, ListAttachmentsRequest, attachment::State};
use serde::Serialize;

use crate::{Output, client};

/// An attachment as it is printed in JSON: the protocol's own names.
#[derive(Serialize)]
struct Shown<'a> {
    network: &'a str,
    container_id: &'a str,
    ifname: &'a str,
    pod_namespace: &'a str,
    pod_name: &'a str,
    pod_uid: &'a str,
    netns: &'a str,
    netns_dev: u64,
    netns_ino: u64,
    host_ifname: &'a str,
    host_ifindex: u32,
    mac: &'a str,
    mtu: u32,
    addresses: &'a [String],
    state: String,
    created_at_ms: u64,
    counters: Option<ShownCounters<'a>>,
}

#[derive(Serialize)]
struct ShownCounters<'a> {
    egress_packets: u64,
    egress_bytes: u64,
    ingress_packets: u64,
    ingress_bytes: u64,
    drops: BTreeMap<&'a str, u64>,
}

/// As much of a container's ID as people compare.
pub(crate) const SHORT_ID: usize = 12;

/// Asks for all attachments.
pub(crate) async fn ask(socket: &Path, output: Output) -> anyhow::Result<String> {
    let answer = client::connect(socket).await?.list_attachments(ListAttachmentsRequest {}).await?;
    let attachments = answer.into_inner().attachments;
    match output {
        Output::Table => Ok(table(&attachments)),
        Output::Json => {
            Ok(serde_json::to_string_pretty(&attachments.iter().map(Shown::of).collect::<Vec<_>>())?)
        }
    }
}

// === impl Shown ===

impl<'a> Shown<'a> {
    fn of(attachment: &'a Attachment) -> Self {
        Self {
            network: &attachment.network,
            container_id: &attachment.container_id,
            ifname: &attachment.ifname,
            pod_namespace: &attachment.pod_namespace,
            pod_name: &attachment.pod_name,
            pod_uid: &attachment.pod_uid,
            netns: &attachment.netns,
            netns_dev: attachment.netns_dev,
            netns_ino: attachment.netns_ino,
            host_ifname: &attachment.host_ifname,
            host_ifindex: attachment.host_ifindex,
            mac: &attachment.mac,
            mtu: attachment.mtu,
            addresses: &attachment.addresses,
            state: state(attachment),
            created_at_ms: attachment.created_at_ms,
            counters: attachment.counters.as_ref().map(ShownCounters::of),
        }
    }
}

impl<'a> ShownCounters<'a> {
    fn of(counters: &'a Counters) -> Self {
        Self {
            egress_packets: counters.egress_packets,
            egress_bytes: counters.egress_bytes,
            ingress_packets: counters.ingress_packets,
            ingress_bytes: counters.ingress_bytes,
            drops: counters.drops.iter().map(|drop| (drop.reason.as_str(), drop.packets)).collect(),
        }
    }
}

fn table(attachments: &[Attachment]) -> String {
    let header = ["POD", "CONTAINER", "IF", "HOST IF", "STATE", "ADDRESSES", "OUT PKTS", "IN PKTS", "DROPS"];
    let rows = attachments.iter().map(|attachment| {
        let counters = attachment.counters.as_ref();
        let count =
            |of: fn(&Counters) -> u64| counters.map_or_else(|| "-".to_owned(), |it| of(it).to_string());
        [
            pod(&attachment.pod_namespace, &attachment.pod_name),
            attachment.container_id.chars().take(SHORT_ID).collect(),
            attachment.ifname.clone(),
            format!("{} ({})", attachment.host_ifname, attachment.host_ifindex),
            state(attachment),
            attachment.addresses.join(" "),
            count(|it| it.egress_packets),
            count(|it| it.ingress_packets),
            counters.map_or_else(|| "-".to_owned(), drops),
        ]
    });
    align(std::iter::once(header.map(str::to_owned)).chain(rows))
}

/// A pod as people name it.
pub(crate) fn pod(namespace: &str, name: &str) -> String {
    match (namespace, name) {
        (_, "") => "-".to_owned(),
        ("", name) => name.to_owned(),
        (namespace, name) => format!("{namespace}/{name}"),
    }
}

fn state(attachment: &Attachment) -> String {
    match attachment.state() {
        State::Unspecified => "?",
        State::Reserved => "reserved",
        State::Plugged => "plugged",
        State::Attached => "attached",
        State::Unplugging => "unplugging",
    }
    .to_owned()
}

fn drops(counters: &Counters) -> String {
    if counters.drops.is_empty() {
        return "0".to_owned();
    }
    let each = counters.drops.iter().map(|drop| format!("{}={}", drop.reason, drop.packets));
    each.collect::<Vec<_>>().join(" ")
}

/// A table with its columns under each other.
pub(crate) fn align<const N: usize>(rows: impl Iterator<Item = [String; N]>) -> String {
    let rows: Vec<_> = rows.collect();
    let widths: Vec<usize> = (0..N)
        .map(|column| rows.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or(0))
        .collect();
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}", width = *width));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use ferrule_proto::agent::Drop;

    use super::*;

    #[test]
    fn a_table_names_the_pod_the_interface_and_what_was_dropped() {
        let attachment = Attachment {
            container_id: "0123456789abcdef".to_owned(),
            ifname: "eth0".to_owned(),
            pod_namespace: "default".to_owned(),
            pod_name: "web-0".to_owned(),
            host_ifname: "frabc".to_owned(),
            host_ifindex: 7,
            addresses: vec!["10.0.0.2".to_owned(), "fd00::2".to_owned()],
            state: State::Attached.into(),
            counters: Some(Counters {
                egress_packets: 3,
                drops: vec![Drop { reason: "spoofed_mac".to_owned(), packets: 2 }],
                ..Default::default()
            }),
            ..Default::default()
        };
        let expected = "\
POD            CONTAINER     IF    HOST IF    STATE     ADDRESSES         OUT PKTS  IN PKTS  DROPS
default/web-0  0123456789ab  eth0  frabc (7)  attached  10.0.0.2 fd00::2  3         0        spoofed_mac=2";
        assert_eq!(table(&[attachment]), expected);
    }

    #[test]
    fn a_table_of_nothing_is_its_header() {
        assert!(table(&[]).starts_with("POD  CONTAINER"));
    }
}
