//! The comparison of both ends of one attachment, for CHECK and ADD.

use super::{
    attachment::Desired,
    deviation::Deviation,
    diff::{Actual, PodEnd},
};
use crate::{
    dataplane::Dataplane,
    plug::{PlugError, host_inventory::HostInventory, netlink::Socket, netns::Netns, pod_end::PodEndState},
};

/// Reads both ends and the map entries of an attachment, and returns all deviations.
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
