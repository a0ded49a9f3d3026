//! From a decision to an attachment that is plugged.

use std::time::Duration;

use super::{
    engine::{Add, Engine},
    error::AttachError,
    phases::{Phase, Phases},
};
use crate::{
    chain::chain,
    crash::{self, Step},
    decide::{Decision, Rules},
    plug::{
        GATEWAY, PlugError, host,
        netlink::Socket,
        netns::Netns,
        stamp::Stamp,
        veth::{self, Plan},
    },
    registry::{Attachment, Draft, HostLink, Key, Pod, RegistryError, State, Wanted},
};
use ferrule_proto::names::IfName;

/// How many addresses of the agent's own IPAM an ADD tries.
const TRIES: u32 = 4;
/// How long an ADD waits for whoever looks at an older sandbox of its pod: the healer, most likely, which is done in milliseconds.
const LOOK: Duration = Duration::from_millis(500);

impl Engine {
    /// What is to be reserved for a decision.
    pub(super) fn drafts(
        &self,
        add: &Add,
        decision: &Decision,
        netns: &Netns,
    ) -> Result<Vec<Draft>, AttachError> {
        let draft = |key: Key, with: Option<Key>, vif: Wanted| Draft {
            key,
            with,
            pod: add.pod.clone(),
            netns: add.netns.clone(),
            netns_id: netns.id(),
            vif,
        };
        let Decision::This(decided) = decision else {
            let mtu = self.uplink.mtu_for(add.mtu, self.registry.has_ipv6())?;
            return Ok(vec![draft(add.key.clone(), None, Wanted::Next { mtu })]);
        };
        let own = host::addresses()?;
        // Where they come from need not be a range that the engine forwards for already.
        let addresses = decided.interfaces.iter().flat_map(|interface| interface.addresses.iter().copied());
        host::forward(&addresses.collect::<Vec<_>>()).map_err(PlugError::from)?;
        let explicit = !self.decider.vif_cidrs.is_empty();
        let pod_cidrs = self.registry.ranges().borrow().clone();
        let rules = Rules {
            ranges: if explicit { &self.decider.vif_cidrs } else { &pod_cidrs },
            ranges_are_explicit: explicit,
            own: &own,
            gateway: GATEWAY,
        };
        let mut drafts = Vec::with_capacity(decided.interfaces.len());
        for (number, interface) in decided.interfaces.iter().enumerate() {
            let is_default = number == 0;
            let has_ipv6 = interface.addresses.iter().any(|it| it.addr().is_ipv6());
            let mtu = self.uplink.mtu_for(interface.mtu.or(add.mtu), has_ipv6)?;
            let vif = rules.resolve(decided.format, interface, is_default, mtu)?;
            let own_name = || IfName::new(&interface.name);
            let ifname = if is_default { add.key.ifname.clone() } else { own_name()? };
            let with = (!is_default).then(|| add.key.clone());
            drafts.push(draft(Key { ifname, ..add.key.clone() }, with, Wanted::This(vif)));
        }
        Ok(drafts)
    }

    /// Reserves and plugs an attachment, or neither. An address that somebody else has a route to goes to rest, and is not the
    /// one that every other ADD is given too.
    pub(super) fn make(
        &self,
        netns: &Netns,
        draft: Draft,
        phases: &Phases,
    ) -> Result<Attachment, AttachError> {
        let mut tries = if matches!(draft.vif, Wanted::Next { .. }) { TRIES } else { 1 };
        loop {
            phases.enter(Phase::Intent);
            let reserved = self.reserve(draft.clone(), phases)?;
            crash::point(Step::AddReserved);
            let error = match self.plug(netns, &Stamp::of(&reserved.key), &reserved, phases) {
                Ok(plugged) => return Ok(plugged),
                Err(error) => error,
            };
            phases.enter(Phase::Undo);
            tries -= 1;
            let is_in_use = matches!(error, AttachError::Plug(PlugError::AddressInUse(_)));
            let forgotten =
                if is_in_use { self.registry.release(&reserved) } else { self.registry.cancel(&reserved) };
            if let Err(error) = forgotten {
                tracing::error!(key = %reserved.key, %error, "the address of a failed ADD stays set aside");
                tries = 0;
            }
            crash::point(Step::AddUndone);
            if !is_in_use || tries == 0 {
                return Err(error);
            }
            let addresses = reserved.vif.addresses;
            tracing::warn!(key = %reserved.key, %addresses, error = chain(&error), "trying other addresses");
        }
    }

    fn reserve(&self, draft: Draft, phases: &Phases) -> Result<Attachment, AttachError> {
        match self.registry.reserve(draft.clone()) {
            Err(RegistryError::InUse { by, .. }) if self.remove_left_over(&by, &draft.pod, phases)? => {
                Ok(self.registry.reserve(draft)?)
            }
            reserved => Ok(reserved?),
        }
    }

    /// Removes what holds an address if it is an older sandbox of the same pod, and gone from the kernel: a runtime that has
    /// lost its memory deletes nothing, and pods that keep their UID would never get their address again.
    fn remove_left_over(&self, holder: &Key, pod: &Pod, phases: &Phases) -> Result<bool, AttachError> {
        let Some(key) = self.registry.get(holder).map(|holder| holder.runtime_key()) else { return Ok(true) };
        let Some(_lock) = self.registry.lock_within(&key, LOOK) else { return Ok(false) };
        let group = self.registry.group(&key);
        let mut host = Socket::open()?;
        for it in &group {
            let link =
                it.host.as_ref().map(|link| veth::is_stamped(&mut host, link.ifindex, &Stamp::of(&it.key)));
            if pod.uid.is_empty() || it.pod != *pod || link.transpose()?.unwrap_or_default() {
                return Ok(false);
            }
        }
        tracing::info!(%key, %pod, "an older sandbox of the pod is gone, and was never deleted: removing it");
        self.remove_group(&group, phases)?;
        Ok(true)
    }

    fn plug(
        &self,
        netns: &Netns,
        stamp: &Stamp,
        attachment: &Attachment,
        phases: &Phases,
    ) -> Result<Attachment, AttachError> {
        phases.enter(Phase::Plug);
        let Attachment { key, vif, .. } = attachment;
        let plan = Plan { netns, ifname: &key.ifname, stamp, vif, host_ifname: None };
        let pending = veth::create(plan, self.dataplane.filters())?;
        crash::point(Step::AddMade);
        let host = HostLink { ifname: pending.ifname().to_owned(), ifindex: pending.ifindex() };
        phases.enter(Phase::Dataplane);
        self.dataplane.insert(host.ifindex, attachment)?;
        crash::point(Step::AddEntered);
        phases.enter(Phase::Plug);
        let undo_entries = |_: &_| {
            if let Err(error) = self.dataplane.remove(host.ifindex, attachment.vif.addresses) {
                tracing::error!(key = %attachment.key, %error, "the maps keep entries of a failed ADD");
            }
        };
        pending.bring_up().inspect_err(undo_entries)?;
        crash::point(Step::AddUp);
        let plugged = Attachment { host: Some(host), ..attachment.clone() };
        Ok(self.registry.advance(plugged, State::Plugged)?)
    }
}
