//! Attachments as `ferrulectl` shows them.

use agent_common::Counters as Counted;
use ferrule_proto::agent::{
    Attachment as Shown, Counters, HostPort as ShownPort, RateLimit, attachment::State as ShownState,
};

use super::drops;
use crate::{
    dataplane::Dataplane,
    registry::{Attachment, HostPort, Rate, State},
};

/// With the counters of the dataplane.
pub(super) fn show(dataplane: &Dataplane, attachment: Attachment) -> Shown {
    let Attachment { key, state, pod, netns, netns_id, vif, host, created_at_ms, wishes, .. } = attachment;
    let counters = host.ifindex().map(|ifindex| dataplane.counters(ifindex));
    let counters = match counters {
        Some(Ok(counters)) => counters.map(show_counters),
        Some(Err(error)) => {
            tracing::warn!(%key, %error, "cannot read the counters of an attachment");
            None
        }
        None => None,
    };
    let (host_ifname, host_ifindex) =
        host.device().map(|device| (device.ifname.clone(), device.ifindex)).unwrap_or_default();
    Shown {
        network: key.network.to_string(),
        container_id: key.container_id.to_string(),
        ifname: key.ifname.to_string(),
        pod_namespace: pod.namespace,
        pod_name: pod.name,
        pod_uid: pod.uid,
        netns: netns.to_string_lossy().into_owned(),
        netns_dev: netns_id.dev,
        netns_ino: netns_id.ino,
        host_ifname,
        host_ifindex,
        mac: vif.mac.to_string(),
        mtu: vif.mtu,
        addresses: vif.by_preference().map(|address| address.to_string()).collect(),
        state: show_state(state).into(),
        created_at_ms,
        counters,
        host_ports: wishes.host_ports.iter().map(show_port).collect(),
        ingress_limit: wishes.ingress.map(show_limit),
        egress_limit: wishes.egress.map(show_limit),
    }
}

fn show_port(HostPort { protocol, address, port, pod_port }: &HostPort) -> ShownPort {
    ShownPort {
        protocol: protocol.to_string(),
        host_ip: address.map(|it| it.to_string()).unwrap_or_default(),
        port: (*port).into(),
        pod_port: (*pod_port).into(),
    }
}

fn show_limit(rate: Rate) -> RateLimit {
    RateLimit { bits_per_second: rate.bits, burst_bytes: rate.burst_bytes().into() }
}

fn show_state(state: State) -> ShownState {
    match state {
        State::Reserved => ShownState::Reserved,
        State::Plugged => ShownState::Plugged,
        State::Attached => ShownState::Attached,
        State::Unplugging => ShownState::Unplugging,
    }
}

fn show_counters(counted: Counted) -> Counters {
    Counters {
        egress_packets: counted.egress.packets,
        egress_bytes: counted.egress.bytes,
        ingress_packets: counted.ingress.packets,
        ingress_bytes: counted.ingress.bytes,
        egress_drops: drops::show(&counted.egress.drops),
        ingress_drops: drops::show(&counted.ingress.drops),
    }
}
