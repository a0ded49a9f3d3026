//! Foreign objects that see pods' packets: shown by `ferrulectl verify`, not deviations.

use super::inventory::Inventory;
use crate::{
    plug::{filter::Hook, sysctl},
    registry::{Attachment, HostLink, Key},
};

/// A foreign filter or program on an attachment's host interface, or what concerns all pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Foreign {
    pub of: Option<(Key, HostLink)>,
    /// A description in one line.
    pub what: String,
}

/// Foreign tc filters, XDP programs and tcx programs (by hook, in the order of [`Hook::ALL`]) of an
/// attachment.
pub fn foreign(it: &Attachment, actual: &Inventory, tcx: &[Vec<u32>; 2]) -> Vec<Foreign> {
    let Some(host) = it.host.device() else { return Vec::new() };
    let (filters, link) = (actual.host.filters.get(&host.ifindex), actual.host.links.get(&host.ifindex));
    let filters = filters.into_iter().flatten().filter(|filter| !filter.is_ours).map(|filter| {
        let name = filter.name.as_deref().map(|name| format!(" {name}")).unwrap_or_default();
        let program = filter.program.map(|id| format!(", program {id}")).unwrap_or_default();
        let (kind, direction, priority) = (&filter.kind, direction(filter.hook), filter.priority);
        format!("a {kind} filter{name} on {direction}, priority {priority}{program}")
    });
    let xdp = link.into_iter().flat_map(|link| &link.xdp);
    let xdp = xdp.map(|id| format!("an XDP program {id}, which runs before the agent's filters"));
    let tcx = Hook::ALL.into_iter().zip(tcx).flat_map(|((hook, _), ids)| {
        let direction = direction(hook);
        ids.iter().map(move |id| {
            format!("a tcx program {id} on {direction}, which runs before the agent's filters")
        })
    });
    let all = filters.chain(xdp).chain(tcx);
    all.map(|what| Foreign { of: Some((it.key.clone(), host.clone())), what }).collect()
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
