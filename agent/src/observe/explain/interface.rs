//! One interface of a pod: the VIF, both ends, rows and differences.

use std::{fmt::Display, time::Duration};

use ferrule_proto::agent::{AddTimes, ExplainedInterface, Filter, HostEnd, MapRow, PhaseTime, PodEnd};
use ferrule_vif::{PodRoute, VifKind};

use crate::{
    attach::Journal,
    chain::chain,
    dataplane::{Dataplane, ShownRow, shown_subject},
    desired::{About, Inspector},
    observe::{attachments, verify},
    plug::{
        GATEWAY,
        filter::Hook,
        netlink::{NetlinkError, Socket},
        pod_end::PodEndState,
    },
    registry::Attachment,
};

/// `outside_ranges`: the interface's addresses that are in no range of the node.
///
/// # Errors
/// If the kernel refuses a dump.
pub(super) fn explain(
    it: &Attachment,
    inspector: &Inspector,
    journal: &Journal,
    outside_ranges: String,
) -> Result<ExplainedInterface, NetlinkError> {
    let about = inspector.about(&mut Socket::open()?, it)?;
    let story = journal.story(&it.runtime_key());
    let (pod_end, no_pod_end_because) = match &about.pod_end {
        Ok(state) => (Some(show_pod_end(state)), String::new()),
        Err(why) => (None, why.clone()),
    };
    let of = std::slice::from_ref(it);
    let deviations = about.deviations.iter().flatten();
    Ok(ExplainedInterface {
        attachment: Some(attachments::show(&inspector.dataplane, it.clone())),
        source: story.as_ref().map(|story| story.source.clone()).unwrap_or_default(),
        kind: match it.vif.kind {
            VifKind::Veth => "veth".to_owned(),
        },
        routes: it.vif.all_routes(GATEWAY).iter().map(route).collect(),
        generation: it.generation(),
        netns_exists: about.netns_exists,
        outside_ranges,
        lost_ports: inspector.ports.lost(it),
        host_end: host_end(it, &about, &inspector.dataplane),
        pod_end,
        no_pod_end_because,
        rows: rows(it, &about, &inspector.dataplane),
        deviations: deviations.map(|deviation| verify::show_deviation(deviation, of)).collect(),
        in_work: about.deviations.is_none(),
        foreign: about.foreign.iter().map(|foreign| verify::show_foreign(foreign, of)).collect(),
        add: story.and_then(|story| story.times).map(|times| AddTimes {
            began_ms: times.began_ms,
            total_us: micros(times.total),
            phases: times
                .phases
                .into_iter()
                .map(|(phase, took)| PhaseTime { phase: phase.to_owned(), took_us: micros(took) })
                .collect(),
        }),
    })
}

fn host_end(it: &Attachment, about: &About, dataplane: &Dataplane) -> Option<HostEnd> {
    let index = it.host.ifindex()?;
    let host = &about.actual.host;
    let link = host.links.get(&index)?;
    let routes = host.routes.iter().filter(|(on, _)| *on == index).map(|(_, address)| *address);
    let neighbours =
        host.neighbours.iter().filter(|((on, _), (_, is_permanent))| *on == index && *is_permanent);
    let neighbours = neighbours.map(|((_, address), (mac, _))| format!("{address} {mac}"));
    let (own, tags) = (dataplane.program_ids(), dataplane.program_tags());
    let filters = host.filters.get(&index).into_iter().flatten().map(|it| {
        let program = it.program.unwrap_or_default();
        let tag = own.iter().position(|id| *id == program).and_then(|at| tags.get(at)).cloned();
        Filter {
            direction: match it.hook {
                Hook::FromPod => "egress".to_owned(),
                Hook::ToPod => "ingress".to_owned(),
            },
            name: it.name.clone().unwrap_or_else(|| it.kind.clone()),
            program,
            own: it.is_ours && tag.is_some(),
            tag: tag.unwrap_or_default(),
        }
    });
    Some(HostEnd {
        name: link.name.clone(),
        index,
        up: link.up,
        mac: link.mac.map(|it| it.to_string()).unwrap_or_default(),
        mtu: link.mtu,
        routes: sorted(routes),
        neighbours: sorted(neighbours),
        filters: filters.collect(),
    })
}

fn show_pod_end(state: &PodEndState) -> PodEnd {
    let neighbours = state.neighbours.iter().filter(|(address, _)| !address.is_multicast());
    PodEnd {
        up: state.up,
        mac: state.mac.map(|it| it.to_string()).unwrap_or_default(),
        mtu: state.mtu,
        addresses: sorted(state.addresses.iter()),
        routes: state.routes.iter().map(route).collect(),
        neighbours: sorted(neighbours.map(|(address, mac)| format!("{address} {mac}"))),
    }
}

fn rows(it: &Attachment, about: &About, dataplane: &Dataplane) -> Vec<MapRow> {
    let Some(index) = it.host.ifindex() else { return Vec::new() };
    let mut rows = about.actual.entries.shown(index, it.vif.addresses);
    match dataplane.subject(index) {
        Ok(subject) => rows.push(shown_subject(index, subject)),
        Err(error) => tracing::warn!(error = chain(&error), "cannot read what judges a pod"),
    }
    let show =
        |ShownRow { map, key, value }| MapRow { map: map.to_owned(), key, value: value.unwrap_or_default() };
    rows.into_iter().map(show).collect()
}

fn route(PodRoute { dst, gateway, mtu, advmss, priority }: &PodRoute) -> String {
    let dst = if dst.prefix_len() == 0 { "default".to_owned() } else { dst.to_string() };
    let facts = [("mtu", mtu), ("advmss", advmss), ("priority", priority)];
    let facts = facts.into_iter().filter_map(|(name, value)| Some(format!(" {name} {}", (*value)?)));
    format!("{dst} via {gateway}{}", facts.collect::<String>())
}

fn sorted(all: impl Iterator<Item = impl Display>) -> Vec<String> {
    let mut all: Vec<_> = all.map(|it| it.to_string()).collect();
    all.sort();
    all
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
