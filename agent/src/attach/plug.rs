//! From a decision to plugged interfaces: plan them, reserve their addresses durably, plug each or roll it
//! back.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    time::{Duration, Instant},
};

use ferrule_proto::names::IfName;
use ferrule_vif::{Addresses, VifKind};

use super::{
    add::AttachRequest,
    engine::Engine,
    error::AttachError,
    judge::{ADMISSION, interface},
    phases::{Phase, Phases},
};
use crate::{
    chain::chain,
    cluster::PodRef,
    crash::{self, Step},
    decide::{Decision, Rules},
    plug::{
        GATEWAY, PlugError, host,
        netlink::Socket,
        netns::Netns,
        stamp::Stamp,
        veth::{self, Plan},
    },
    ports::PortError,
    registry::{
        Allocation, Attachment, HostLink, HostSide, Key, NewAttachment, RegistryError, State, Wishes,
    },
};

/// Addresses from the IPAM that one ADD tries.
const ATTEMPTS: u32 = 4;
/// How long an ADD waits for the lock of an older sandbox of its pod. Most likely the healer holds it, for
/// milliseconds.
const STALE_LOCK_TIMEOUT: Duration = Duration::from_millis(500);

impl Engine {
    /// The interfaces that a decision asks for, as the registry reserves them; the requested one first.
    pub(super) fn plan(
        &self,
        request: &AttachRequest,
        decision: &Decision,
        netns: &Netns,
    ) -> Result<Vec<NewAttachment>, AttachError> {
        let new = |key: Key, with: Option<Key>, allocation: Allocation, wishes: Wishes| NewAttachment {
            key,
            with,
            pod: request.pod.clone(),
            netns: request.netns.clone(),
            netns_id: netns.id(),
            allocation,
            wishes,
        };
        let Decision::Fixed(decided) = decision else {
            let mtu = self.uplink.mtu_for(request.mtu, self.registry.has_ipv6())?;
            return Ok(vec![new(
                request.key.clone(),
                None,
                Allocation::FromIpam { mtu },
                request.wishes.clone(),
            )]);
        };
        let own = host::addresses()?;
        let explicit = !self.decider.vif_cidrs.is_empty();
        let pod_cidrs = self.registry.ranges().borrow().nets().to_vec();
        let rules = Rules {
            ranges: if explicit { &self.decider.vif_cidrs } else { &pod_cidrs },
            ranges_are_explicit: explicit,
            own: &own,
            gateway: GATEWAY,
        };
        let mut planned = Vec::with_capacity(decided.interfaces.len());
        for (number, interface) in decided.interfaces.iter().enumerate() {
            let is_default = number == 0;
            let has_ipv6 = interface.addresses.iter().any(|it| it.addr().is_ipv6());
            let mtu = self.uplink.mtu_for(interface.mtu.or(request.mtu), has_ipv6)?;
            let vif = rules.resolve(decided.format, interface, is_default, mtu)?;
            let ifname = if is_default { request.key.ifname.clone() } else { IfName::new(&interface.name)? };
            let with = (!is_default).then(|| request.key.clone());
            // What the runtime asks for concerns the requested interface.
            let wishes = if is_default { request.wishes.clone() } else { Wishes::default() };
            let key = Key { ifname, ..request.key.clone() };
            planned.push(new(key, with, Allocation::Fixed(vif), wishes));
        }
        Ok(planned)
    }

    /// Has the node forward the families of decided addresses: the agent's ranges may have no such family.
    /// Only for admitted addresses, because the settings of the node outlive the ADD.
    pub(super) fn forward(planned: &[NewAttachment]) -> Result<(), AttachError> {
        let decided = |new: &NewAttachment| match &new.allocation {
            Allocation::Fixed(vif) => Some(vif.addresses),
            Allocation::FromIpam { .. } => None,
        };
        let decided: Vec<_> = planned.iter().filter_map(decided).collect();
        let has = |is_there: fn(&Addresses) -> bool| decided.iter().any(is_there);
        let families = (has(|it| it.v4.is_some()), has(|it| it.v6.is_some()));
        Ok(host::forward_families(families).map_err(PlugError::from)?)
    }

    /// Reserves and plugs one interface, or leaves nothing of it. An IPAM address to which the node already
    /// has a foreign route enters cooldown, so that the next ADD does not get it again, and the next free
    /// address is tried.
    pub(super) fn reserve_and_plug(
        &self,
        netns: &Netns,
        new: NewAttachment,
        phases: &Phases,
    ) -> Result<Attachment, AttachError> {
        let mut attempts = if matches!(new.allocation, Allocation::FromIpam { .. }) { ATTEMPTS } else { 1 };
        loop {
            phases.enter(Phase::Intent);
            let reserved = self.reserve(new.clone(), phases)?;
            crash::point(Step::AddReserved);
            let error = match self.plug(netns, &Stamp::of(&reserved.key), &reserved, phases) {
                Ok(plugged) => return Ok(plugged),
                Err(error) => error,
            };
            phases.enter(Phase::Undo);
            attempts -= 1;
            let is_in_use = matches!(error, AttachError::Plug(PlugError::AddressInUse(_)));
            let freed =
                if is_in_use { self.registry.release(&reserved) } else { self.registry.cancel(&reserved) };
            if let Err(error) = freed {
                tracing::error!(key = %reserved.key, %error, "cannot release the address of a failed ADD");
                attempts = 0;
            }
            crash::point(Step::AddRolledBack);
            if !is_in_use || attempts == 0 {
                return Err(error);
            }
            let addresses = reserved.vif.addresses;
            tracing::warn!(
                key = %reserved.key,
                %addresses,
                error = chain(&error),
                "the node has a foreign route to an address from the IPAM; trying the next address"
            );
        }
    }

    fn reserve(&self, new: NewAttachment, phases: &Phases) -> Result<Attachment, AttachError> {
        match self.registry.reserve(new.clone()) {
            Err(RegistryError::InUse { by, .. }) if self.detach_stale(&by, &new.pod, phases)? => {
                Ok(self.registry.reserve(new)?)
            }
            reserved => Ok(reserved?),
        }
    }

    /// Detaches the holder of an address if it is an older sandbox of the same pod (by UID) whose interfaces
    /// are gone from the kernel, and returns whether the address may be free now. A runtime that lost its
    /// state never sends the DEL, and a pod that keeps its UID would never get its address again.
    pub(super) fn detach_stale(
        &self,
        holder: &Key,
        pod: &PodRef,
        phases: &Phases,
    ) -> Result<bool, AttachError> {
        let Some(key) = self.registry.get(holder).map(|holder| holder.runtime_key()) else { return Ok(true) };
        let Some(_lock) = self.registry.lock_within(&key, STALE_LOCK_TIMEOUT) else { return Ok(false) };
        let group = self.registry.group(&key);
        let mut host = Socket::open()?;
        for it in &group {
            let is_there = match &it.host {
                HostSide::Link(link) => veth::is_stamped(&mut host, link.ifindex, &Stamp::of(&it.key))?,
                HostSide::Unplugged => false,
                // The host's devices do not prove that the sandbox is gone: kept until its DEL.
                HostSide::None | HostSide::Representor(_) => true,
            };
            if pod.uid.is_empty() || it.pod != *pod || is_there {
                return Ok(false);
            }
        }
        tracing::info!(%key, %pod, "detaching a stale sandbox of the pod: its interfaces are gone, and no DEL came");
        self.detach_all(&group, phases)?;
        Ok(true)
    }

    /// Refuses ports of the node that other attachments have, unless those are stale ones of the same pod.
    pub(super) fn check_ports(
        &self,
        request: &AttachRequest,
        planned: &[NewAttachment],
        before: &[Attachment],
        phases: &Phases,
    ) -> Result<(), AttachError> {
        let own: Vec<Key> = before.iter().map(|it| it.key.clone()).collect();
        let has = planned.first().map(|it| self.families(&it.allocation)).unwrap_or_default();
        while let Some((port, by)) = self.ports.conflict(&request.wishes, has, &own) {
            let pod = self.registry.get(&by).map(|it| it.pod);
            if pod.is_none() || !self.detach_stale(&by, &request.pod, phases)? {
                let pod = pod.filter(|it| !it.name.is_empty()).map(|it| format!("the pod {it}"));
                return Err(PortError::Taken { port, by: pod.unwrap_or_else(|| by.to_string()) }.into());
            }
        }
        Ok(())
    }

    /// An address of each family that a new attachment will have.
    fn families(&self, allocation: &Allocation) -> Addresses {
        let ranges = match allocation {
            Allocation::Fixed(vif) => return vif.addresses,
            Allocation::FromIpam { .. } => self.registry.ranges().borrow().nets().to_vec(),
        };
        let has = |is_ipv4: bool| ranges.iter().any(|it| it.addr().is_ipv4() == is_ipv4);
        Addresses {
            v4: has(true).then_some(Ipv4Addr::UNSPECIFIED),
            v6: has(false).then_some(Ipv6Addr::UNSPECIFIED),
        }
    }

    /// Takes the ports of a failed ADD back.
    fn close_ports(&self, attachment: &Attachment) {
        if let Err(error) = self.ports.abandon(attachment) {
            tracing::error!(key = %attachment.key, %error, "cannot take back the ports of a failed ADD");
        }
    }

    fn plug(
        &self,
        netns: &Netns,
        stamp: &Stamp,
        attachment: &Attachment,
        phases: &Phases,
    ) -> Result<Attachment, AttachError> {
        phases.enter(Phase::Plug);
        let Attachment { key, vif, wishes, .. } = attachment;
        let path_mtu = self.uplink.current_path_mtu();
        let plan = Plan { netns, ifname: &key.ifname, stamp, vif, path_mtu, wishes, host_ifname: None };
        let link = match vif.kind {
            VifKind::Veth => veth::create(plan, self.dataplane.filters())?,
        };
        crash::point(Step::AddLinkCreated);
        let host = HostLink { ifname: link.ifname().to_owned(), ifindex: link.ifindex() };
        phases.enter(Phase::Dataplane);
        self.dataplane.insert(host.ifindex, attachment)?;
        crash::point(Step::AddEntriesWritten);
        let remove_entries = || {
            self.enforcer.forget(host.ifindex);
            if let Err(error) = self.dataplane.remove(host.ifindex, attachment.vif.addresses) {
                tracing::error!(key = %attachment.key, %error, "cannot remove the map entries of a failed ADD");
            }
        };
        let interface = interface(host.ifindex, attachment);
        self.enforcer.admit(interface, Instant::now() + ADMISSION).inspect_err(|_| remove_entries())?;
        crash::point(Step::AddAdmitted);
        phases.enter(Phase::Plug);
        self.ports.add(attachment).inspect_err(|_| remove_entries())?;
        crash::point(Step::AddPortsAdded);
        link.bring_up().inspect_err(|_| {
            self.close_ports(attachment);
            remove_entries();
        })?;
        crash::point(Step::AddUp);
        let plugged = Attachment { host: HostSide::Link(host), ..attachment.clone() };
        Ok(self.registry.advance(plugged, State::Plugged)?)
    }
}
