//! Foreign objects that see pods' packets: shown by `ferrulectl verify`, not deviations.

use std::collections::HashMap;

use super::inventory::Inventory;
use crate::{
    nodes::Ahead,
    plug::{filter::Hook, host_inventory::HostLinkState, sysctl},
    registry::{Attachment, HostLink, Key},
};

/// A foreign filter or program on an interface, or what concerns all pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Foreign {
    /// The attachment whose host interface has it.
    pub of: Option<Key>,
    pub link: Option<HostLink>,
    /// A description in one line.
    pub what: String,
}

const BEFORE: &str = "which runs before the agent's filters";

/// Foreign tc filters, XDP programs and tcx programs (by hook, in the order of [`Hook::ALL`]) of an
/// attachment.
pub fn foreign(it: &Attachment, actual: &Inventory, tcx: &[Vec<u32>; 2]) -> Vec<Foreign> {
    let Some(host) = it.host.device() else { return Vec::new() };
    let (filters, link) = (actual.host.filters.get(&host.ifindex), actual.host.links.get(&host.ifindex));
    let filters = filters.into_iter().flatten().filter(|filter| !filter.is_ours);
    let filters = filters.map(|filter| filter.describe(&format!("on {}", direction(filter.hook))));
    let xdp = link.into_iter().flat_map(|link| &link.xdp);
    let xdp = xdp.map(|id| format!("an XDP program {id}, {BEFORE}"));
    let tcx = Hook::ALL.into_iter().zip(tcx).flat_map(|((hook, _), ids)| {
        let direction = direction(hook);
        ids.iter().map(move |id| format!("a tcx program {id} on {direction}, {BEFORE}"))
    });
    let all = filters.chain(xdp).chain(tcx);
    all.map(|what| Foreign { of: Some(it.key.clone()), link: Some(host.clone()), what }).collect()
}

/// XDP programs of others on these links, which are no pods', and what else runs there before the agent's
/// filters.
pub fn on_links(links: &[u32], states: &HashMap<u32, HostLinkState>, ahead: &[Ahead]) -> Vec<Foreign> {
    let mut found = Vec::new();
    for &ifindex in links {
        let Some(state) = states.get(&ifindex) else { continue };
        let link = HostLink { ifname: state.name.clone(), ifindex };
        let xdp = state.xdp.iter().map(|id| format!("an XDP program {id}"));
        let all = xdp.chain(ahead.iter().filter(|it| it.ifindex == ifindex).map(|it| it.what.clone()));
        found.extend(all.map(|what| Foreign {
            of: None,
            link: Some(link.clone()),
            what: format!("{what}, {BEFORE} and may keep packets from them"),
        }));
    }
    found
}

/// A setting by which conntrack refuses TCP connections whose begin it has not seen.
pub(super) fn strict_conntrack(has_fast: bool) -> Option<String> {
    let is_strict = has_fast && sysctl::get("netfilter/nf_conntrack_tcp_loose").as_deref() == Some("0");
    is_strict.then(|| {
        "net.netfilter.nf_conntrack_tcp_loose is 0: a connection between pods of two nodes is invalid to \
         conntrack once it leaves the fast path, and kube-proxy's rules drop it; set 1, the default"
            .to_owned()
    })
}

/// The direction of the pod's packets.
fn direction(hook: Hook) -> &'static str {
    match hook {
        Hook::FromPod => "egress (the hook ingress)",
        Hook::ToPod => "ingress (the hook egress)",
    }
}
