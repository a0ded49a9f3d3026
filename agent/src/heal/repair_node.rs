//! Repairs of what belongs to no attachment: node-wide settings, routes of ranges, the nftables table, rows
//! of policies, pins, stray interfaces and map entries.

use std::time::Instant;

use super::{Healer, retry_budget::CONFLICT};
use crate::{
    chain::chain,
    desired::{Deviation, Inventory, Kind, Subject},
    plug::{host, netlink::Socket, range_route, stamp::Stamp, veth},
    registry::{Attachment, State},
};
use ferrule_vif::Addresses;

// === impl Healer ===

impl Healer {
    /// Repairs or removes the subject of a deviation, within its retry budget.
    pub(super) fn repair_node(&self, it: &Deviation, actual: &Inventory) {
        let is_stray = matches!(it.kind, Kind::StrayLink | Kind::StrayEntry);
        // After a lost store, strays may belong to attachments that could not be rebuilt, and carry pods'
        // packets.
        if is_stray && !self.registry().is_complete() {
            return;
        }
        let now = Instant::now();
        let blocked = self.tracker().budget.blocked_until(&it.of, it.kind, now);
        if let Some(due) = blocked {
            self.tracker().advance_full_pass(due);
            return;
        }
        let Some(done) = self.try_repair_node(it, actual).transpose() else { return };
        self.metrics().repair(it.kind.name(), if done.is_ok() { "repaired" } else { "failed" });
        let attempts = {
            let mut tracker = self.tracker();
            if done.is_ok() {
                tracker.reported.remove(&(it.of.clone(), it.kind));
            }
            tracker.budget.spend(&it.of, it.kind, now)
        };
        match done {
            Ok(()) if attempts < CONFLICT => {
                tracing::info!(of = %it.of, kind = it.kind.name(), "repaired");
            }
            Err(error) if attempts < CONFLICT => {
                tracing::warn!(of = %it.of, kind = it.kind.name(), error, "repair failed; retrying");
            }
            _ if attempts == CONFLICT => Self::log_conflict(&it.of, it.kind),
            _ => {}
        }
    }

    /// `None` if a call works on the subject.
    fn try_repair_node(&self, it: &Deviation, actual: &Inventory) -> Result<Option<()>, String> {
        let (registry, dataplane) = (self.registry(), self.dataplane());
        match &it.of {
            Subject::Attachment(_) => return Ok(None),
            Subject::Setting(_) => {
                host::forward_families(registry.families()).map_err(|error| chain(&error))?;
            }
            Subject::Range(range) => {
                let mut host = Socket::open().map_err(|error| chain(&error))?;
                range_route::add(&mut host, *range).map_err(|error| chain(&error))?;
            }
            Subject::MasqueradeTable => self.masquerade().restore().map_err(|error| chain(&error))?,
            Subject::HostPortsTable => self.ports().restore().map_err(|error| chain(&error))?,
            Subject::NodeRoutes => self.nodes().restore().map_err(|error| chain(&error))?,
            Subject::PolicyRows => self.enforcer().restore().map_err(|error| chain(&error))?,
            Subject::Pin(map) => dataplane.renew_pin(map).map_err(|error| chain(&error))?,
            Subject::Entry(_) if matches!(it.kind, Kind::Entry(_)) => {
                dataplane.count_unknown().map_err(|error| chain(&error))?;
            }
            Subject::Entry(entry) => {
                dataplane.forget(*entry, &actual.entries).map_err(|error| chain(&error))?;
            }
            Subject::Interface(ifindex, key) => {
                let Some(_guard) = registry.try_lock(&registry.runtime_key(key)) else { return Ok(None) };
                let owns = |it: Attachment| {
                    it.state != State::Attached || it.host.ifindex().is_none_or(|its| its == *ifindex)
                };
                if registry.get(key).is_some_and(owns) {
                    return Ok(None);
                }
                veth::retire(*ifindex, &Stamp::of(key), Addresses::default())
                    .map_err(|error| chain(&error))?;
                self.reaper().notify();
            }
        }
        Ok(Some(()))
    }
}
