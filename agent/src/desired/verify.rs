//! Comparisons with the pod's end, which inventories lack.

use super::{
    attachment::{Desired, desired},
    deviation::Deviation,
    diff::{Actual, PodEnd},
};
use crate::{
    dataplane::Dataplane,
    plug::{PlugError, host_inventory::HostInventory, netlink::Socket, netns::Netns, pod_end::PodEndState},
    registry::{Attachment, State},
};

/// Reads both ends and the map entries of an attachment, for CHECK and ADD, and returns all deviations.
///
/// # Errors
/// If the kernel refuses a request, or the pod's namespace cannot be entered.
pub fn verify(
    desired: &Desired<'_>,
    netns: &Netns,
    dataplane: &Dataplane,
) -> Result<Vec<Deviation>, PlugError> {
    let ifindex = desired.host.ifindex;
    let host = HostInventory::one(&mut Socket::open()?, ifindex)?;
    let entries = dataplane.entries_of(ifindex, desired.attachment.vif.addresses);
    let pod = PodEndState::read(netns, &desired.pod.ifname)?;
    let pod = pod.as_ref().map_or(PodEnd::Missing, PodEnd::Present);
    Ok(desired.diff(&Actual { host: &host, entries: &entries, netns_exists: true, pod }))
}

/// Reads the pod's end of an attachment, for `ferrulectl verify`, which does not know what later plugins of
/// the chain have changed. None while the attachment waits for its DEL, without its namespace.
///
/// # Errors
/// If the pod's namespace cannot be entered, or the kernel refuses a dump.
pub fn verify_pod_end(it: &Attachment, programs: [u32; 2]) -> Result<Vec<Deviation>, PlugError> {
    let attached = Some(it).filter(|it| it.state == State::Attached);
    let Some(desired) = attached.and_then(|it| desired(it, programs)) else { return Ok(Vec::new()) };
    let Ok(netns) = Netns::open(&it.netns) else { return Ok(Vec::new()) };
    if netns.id() != it.netns_id {
        return Ok(Vec::new());
    }
    let pod = PodEndState::read(&netns, &it.key.ifname)?;
    Ok(desired.without_chain().diff_pod(pod.as_ref().map_or(PodEnd::Missing, PodEnd::Present)))
}
