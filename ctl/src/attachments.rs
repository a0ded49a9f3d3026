//! `ferrulectl attachments`.

use std::path::Path;

use ferrule_proto::agent::{Attachment, Counters, Drop, ListAttachmentsRequest, attachment::State};

use crate::{
    client,
    filter::Filter,
    output::Output,
    paint,
    table::{columns, interface, pod, short_id},
    time::{duration, now},
    wishes,
};

pub(crate) async fn run(filter: &Filter, socket: &Path, output: Output) -> anyhow::Result<String> {
    let response = client::connect(socket).await?.list_attachments(ListAttachmentsRequest {}).await?;
    let mut attachments = response.into_inner().attachments;
    attachments.retain(|it| filter.is_empty() || filter.matches(&it.pod_namespace, &it.pod_name));
    output.show(&attachments, |it| render(it, output.is_wide().then(now)))
}

/// `wide`: the time, for a table with all columns.
fn render(attachments: &[Attachment], wide: Option<u64>) -> String {
    const NARROW: usize = 9;
    let header = [
        "POD",
        "CONTAINER",
        "IF",
        "HOST IF",
        "STATE",
        "ADDRESSES",
        "OUT PKTS",
        "IN PKTS",
        "DROPS",
        "OUT BYTES",
        "IN BYTES",
        "MAC",
        "MTU",
        "AGE",
        "UID",
        "NETNS",
        "HOST PORTS",
        "LIMITS",
    ];
    let shown = if wide.is_some() { &header[..] } else { &header[..NARROW] };
    let rows = attachments.iter().map(|attachment| {
        let count = |count: fn(&Counters) -> String| {
            attachment.counters.as_ref().map_or_else(|| "-".to_owned(), count)
        };
        let state = attachment.state();
        let state =
            if state == State::Attached { state.name().to_owned() } else { paint::warn(state.name()) };
        let narrow = [
            pod(&attachment.pod_namespace, &attachment.pod_name),
            short_id(&attachment.container_id),
            attachment.ifname.clone(),
            interface(&attachment.host_ifname, attachment.host_ifindex),
            state,
            attachment.addresses.join(" "),
            count(|counters| counters.egress_packets.to_string()),
            count(|counters| counters.ingress_packets.to_string()),
            count(drops),
        ];
        let more = wide.map(|now| {
            [
                count(|counters| counters.egress_bytes.to_string()),
                count(|counters| counters.ingress_bytes.to_string()),
                attachment.mac.clone(),
                attachment.mtu.to_string(),
                duration(now.saturating_sub(attachment.created_at_ms / 1000)),
                attachment.pod_uid.clone(),
                attachment.netns.clone(),
                wishes::ports(attachment),
                wishes::limits(attachment),
            ]
        });
        narrow.into_iter().chain(more.into_iter().flatten()).collect()
    });
    columns(shown, rows)
}

/// By direction and reason; `0` without any.
pub(crate) fn drops(counters: &Counters) -> String {
    let of = |direction: &str, drops: &[Drop]| {
        drops.iter().map(|drop| format!("{direction}:{}={}", drop.reason, drop.packets)).collect::<Vec<_>>()
    };
    let drops = [of("out", &counters.egress_drops), of("in", &counters.ingress_drops)].concat();
    if drops.is_empty() { "0".to_owned() } else { drops.join(" ") }
}

#[cfg(test)]
mod tests {
    use ferrule_proto::agent::{HostPort, RateLimit};

    use super::*;

    fn attachment() -> Attachment {
        Attachment {
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
                egress_drops: vec![Drop { reason: "spoofed_mac".to_owned(), packets: 2 }],
                ingress_drops: vec![Drop { reason: "not_for_pod".to_owned(), packets: 1 }],
                ..Default::default()
            }),
            host_ports: vec![HostPort {
                protocol: "TCP".to_owned(),
                port: 8080,
                pod_port: 80,
                ..Default::default()
            }],
            ingress_limit: Some(RateLimit { bits_per_second: 10_000_000, burst_bytes: 65_536 }),
            ..Default::default()
        }
    }

    #[test]
    fn table_names_pod_interface_and_drop_reasons() {
        let expected = "\
POD            CONTAINER     IF    HOST IF    STATE     ADDRESSES         OUT PKTS  IN PKTS  DROPS
default/web-0  0123456789ab  eth0  frabc (7)  attached  10.0.0.2 fd00::2  3         0        out:spoofed_mac=2 in:not_for_pod=1";
        assert_eq!(render(&[attachment()], None), expected);
        let wide = render(&[attachment()], Some(192));
        let header = "DROPS                               OUT BYTES  IN BYTES  MAC  MTU  AGE    UID  NETNS  HOST PORTS     LIMITS\n";
        assert!(
            wide.contains(header) && wide.ends_with("3m12s              TCP 8080 > 80  in 10 Mbit/s"),
            "{wide}"
        );
    }

    #[test]
    fn table_without_attachments_is_the_header() {
        assert!(render(&[], None).starts_with("POD  CONTAINER"));
    }

    #[test]
    fn json_has_the_field_names_of_the_protocol() {
        let json = serde_json::to_value([attachment()]).unwrap();
        let counters = serde_json::json!({
            "egress_packets": 3, "egress_bytes": 0, "ingress_packets": 0, "ingress_bytes": 0,
            "egress_drops": {"spoofed_mac": 2}, "ingress_drops": {"not_for_pod": 1},
        });
        let expected = serde_json::json!([{
            "network": "", "container_id": "0123456789abcdef", "ifname": "eth0", "pod_namespace": "default",
            "pod_name": "web-0", "pod_uid": "", "netns": "", "netns_dev": 0, "netns_ino": 0,
            "host_ifname": "frabc", "host_ifindex": 7, "mac": "", "mtu": 0, "addresses": ["10.0.0.2", "fd00::2"],
            "state": "attached", "created_at_ms": 0, "counters": counters,
            "host_ports": [{"protocol": "TCP", "host_ip": "", "port": 8080, "pod_port": 80}],
            "ingress_limit": {"bits_per_second": 10_000_000, "burst_bytes": 65_536}, "egress_limit": null,
        }]);
        assert_eq!(json, expected);
        assert_eq!(serde_json::to_value(Attachment::default()).unwrap()["counters"], serde_json::Value::Null);
    }
}
