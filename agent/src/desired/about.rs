//! Everything that can be read of one attachment, for `ferrulectl explain`.

use super::{
    attachment::desired,
    deviation::{Deviation, Kind},
    diff::PodEnd,
    foreign::{Foreign, foreign},
    inspector::Inspector,
    inventory::Inventory,
    presence::netns_exists,
};
use crate::{
    chain::chain,
    plug::{
        PlugError,
        netlink::{NetlinkError, Socket},
        netns::Netns,
        pod_end::PodEndState,
    },
    registry::{Attachment, State},
};

/// What kernel and maps hold of an attachment, and how that differs from what they should.
pub struct About {
    pub actual: Inventory,
    pub netns_exists: bool,
    /// Why the pod's end is not read.
    pub pod_end: Result<PodEndState, String>,
    /// `None` while a call works on the attachment.
    pub deviations: Option<Vec<Deviation>>,
    pub foreign: Vec<Foreign>,
}

// === impl Inspector ===

impl Inspector {
    /// Reads and compares one attachment. Blocks.
    ///
    /// # Errors
    /// If the kernel refuses a dump.
    pub fn about(&self, host: &mut Socket, it: &Attachment) -> Result<About, NetlinkError> {
        let guard = self.registry.try_lock(&it.runtime_key());
        let actual = Inventory::one(host, &self.dataplane, it)?;
        let pod_end = pod_end(it);
        let deviations = match &guard {
            Some(_) => Some(self.compare(host, it, &pod_end)?),
            None => None,
        };
        let tcx = it.host.device().map(|device| self.dataplane.tcx(device.ifindex)).unwrap_or_default();
        let foreign = foreign(it, &actual, &tcx);
        let pod_end = match pod_end {
            Ok(Some(state)) => Ok(state),
            Ok(None) => Err(format!("the pod has no interface {}", it.key.ifname)),
            Err(why) => Err(why),
        };
        Ok(About { actual, netns_exists: netns_exists(it), pod_end, deviations, foreign })
    }

    /// The caller holds the key's lock.
    fn compare(
        &self,
        host: &mut Socket,
        it: &Attachment,
        pod_end: &Result<Option<PodEndState>, String>,
    ) -> Result<Vec<Deviation>, NetlinkError> {
        let Some((_, mut found)) = self.one(host, &it.key)? else { return Ok(Vec::new()) };
        // The two ends of a pair disappear together.
        let is_gone = found.iter().any(|it| it.kind == Kind::LinkGone);
        if let (false, Ok(state), State::Attached) = (is_gone, pod_end, it.state)
            && let Some(desired) = desired(it, self.dataplane.program_ids())
        {
            let pod = state.as_ref().map_or(PodEnd::Missing, PodEnd::Present);
            found.extend(desired.without_chain().diff_pod(pod));
        }
        Ok(found)
    }
}

/// `None`: the pod has no such interface.
fn pod_end(it: &Attachment) -> Result<Option<PodEndState>, String> {
    if !it.has_path() {
        return Err("the path of the pod's network namespace is not known".to_owned());
    }
    let netns = Netns::open(&it.netns).map_err(|error| chain(&error))?;
    if netns.id() != it.netns_id {
        return Err(format!("{} is another network namespace now", it.netns.display()));
    }
    PodEndState::read(&netns, &it.key.ifname).map_err(|error: PlugError| chain(&error))
}
