//! The single owner of attachments: an in-memory table and a durable store, one lock per key, and the
//! allocated addresses.
//!
//! Every change is durable before it is visible in memory, and visible before the caller acts on it.

mod attachment;
mod audit;
mod clock;
mod directory;
mod error;
mod holdings;
mod host_side;
mod key;
mod left;
mod locks;
mod owners;
mod reservation;
mod store;
mod table;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod wishes;

use std::{
    collections::BTreeSet,
    fs::File,
    net::IpAddr,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ipnet::IpNet;
use nix::fcntl::Flock;
use tokio::sync::watch;

pub use attachment::{Attachment, NetnsId, State};
pub(crate) use clock::{now_ms, since_boot};
pub use error::RegistryError;
pub use holdings::{Holder, Holding};
pub use host_side::{HostLink, HostSide};
pub use key::{InvalidKey, Key};
pub use left::LeftAddresses;
pub use locks::{KeyGuard, Locks};
pub use owners::Owner;
pub use reservation::{Allocation, NewAttachment};
pub use store::{Condition, StoreError};
pub use wishes::{HostPort, Mapping, Place, Rate, Transport, Wishes};

use crate::{
    cluster::PodRef,
    ipam::{Ipam, PodCidrs, Ranges, Usage},
};
use clock::Clock;
use store::{Identity, Kept, Opened, Released, Store};
use table::Table;

/// The attachments of this node.
pub struct Registry {
    store: Store,
    table: Mutex<Table>,
    locks: Locks,
    ranges: watch::Sender<Ranges>,
    condition: Condition,
    /// Whether every attachment of the kernel has a record.
    complete: AtomicBool,
    /// One thread at a time creates a removed store again.
    recreating: Mutex<()>,
    clock: Clock,
    _directory: Flock<File>,
}

// === impl Registry ===

impl Registry {
    /// Opens the registry of a state directory, which is created if it is missing. Damaged files are
    /// quarantined.
    ///
    /// # Errors
    /// If another agent holds the directory, the store cannot be read or written, or the store belongs to a
    /// newer agent or to an agent in another network namespace.
    pub fn open(directory: &Path) -> Result<Self, RegistryError> {
        let own = Identity::own().map_err(RegistryError::Identity)?;
        Self::open_as(directory, &own, since_boot)
    }

    fn open_as(directory: &Path, own: &Identity, clock: Clock) -> Result<Self, RegistryError> {
        let lock = directory::lock(directory)?;
        let Opened { store, records, condition } = store::open(directory, own)?;
        Ok(Self {
            store,
            table: Mutex::new(Table::new(records)),
            locks: Locks::default(),
            ranges: watch::Sender::default(),
            complete: AtomicBool::new(condition == Condition::Intact),
            condition,
            recreating: Mutex::new(()),
            clock,
            _directory: lock,
        })
    }

    /// How the store was found. Unless intact, the store may lack attachments that the kernel has.
    pub fn condition(&self) -> &Condition {
        &self.condition
    }

    /// Whether every attachment of the kernel has a record, so that a stamped interface without one is stray.
    /// False after records were lost that could not be rebuilt.
    pub fn is_complete(&self) -> bool {
        self.complete.load(Ordering::Relaxed)
    }

    /// The error of the last write to the store, now and after each change; `None` if the write succeeded.
    fn store_trouble(&self) -> watch::Receiver<Option<String>> {
        self.store.trouble()
    }
}

// === impl Registry: addresses ===

impl Registry {
    /// Sets the ranges of the agent's own IPAM, and excludes the node's own addresses from them. Attachments
    /// outside of the ranges stay.
    pub fn set_ranges(&self, ranges: PodCidrs, own: &[IpAddr]) {
        self.table().set_ranges(&ranges, own);
        self.ranges.send_replace(Ranges::Known(ranges));
    }

    /// Ends every allocation. Attachments stay.
    pub fn withdraw_ranges(&self, why: String) {
        self.table().ipam = Ipam::default();
        self.ranges.send_replace(Ranges::Withdrawn(why));
    }

    /// The addresses of each family of the agent's own IPAM.
    pub fn usage(&self) -> Vec<Usage> {
        self.table().ipam.usage((self.clock)())
    }

    /// The same of each range.
    pub fn usage_by_range(&self) -> Vec<Usage> {
        self.table().ipam.usage_by_range((self.clock)())
    }

    /// The addresses that a pod has, or had until a moment ago, in order.
    pub fn holdings(&self) -> Vec<Holding> {
        self.table().holdings((self.clock)())
    }

    /// The attachments with an address that is neither in the node's ranges nor in `allowed`, with these
    /// addresses. None before the ranges are known.
    pub fn outside(&self, allowed: &[IpNet]) -> Vec<(Key, PodRef, String)> {
        let ranges = self.ranges.borrow().clone();
        if ranges == Ranges::Awaited {
            return Vec::new();
        }
        let is_outside =
            |address: &IpAddr| !ranges.nets().iter().chain(allowed).any(|it| it.contains(address));
        let table = self.table();
        let outside = table.attachments.values().filter_map(|it| {
            let addresses: Vec<_> =
                it.vif.addresses.iter().filter(is_outside).map(|it| it.to_string()).collect();
            (!addresses.is_empty()).then(|| (it.key.clone(), it.pod.clone(), addresses.join(" ")))
        });
        outside.collect()
    }

    /// Pods' addresses outside of some networks, in order.
    pub fn addresses_outside(&self, nets: &[IpNet]) -> Vec<IpAddr> {
        let table = self.table();
        let addresses = table.attachments.values().flat_map(|it| it.vif.addresses.iter().collect::<Vec<_>>());
        let outside: BTreeSet<_> =
            addresses.filter(|address| !nets.iter().any(|net| net.contains(address))).collect();
        outside.into_iter().collect()
    }

    /// Excludes the node's own addresses from allocation, from now on.
    pub fn exclude(&self, own: &[IpAddr]) {
        let mut table = self.table();
        table.ipam.exclude(own);
        for (key, addresses) in table.addresses() {
            for address in addresses.iter().filter(|it| own.contains(it)) {
                tracing::error!(
                    %address,
                    %key,
                    "the node has the address of a pod: packets to the address go to the node"
                );
            }
        }
    }

    /// Claims the addresses of interfaces that have no record and are left alone, until [`Self::free_left`].
    pub fn leave(&self, left: Vec<LeftAddresses>) {
        let mut table = self.table();
        table.left = left;
        table.claim_left();
    }

    /// The claims of [`Self::leave`].
    pub fn left(&self) -> Vec<LeftAddresses> {
        self.table().left.clone()
    }

    /// Frees the addresses of an interface that was left alone and is gone. They enter cooldown.
    pub fn free_left(&self, ifindex: u32) {
        self.table().free_left(ifindex, (self.clock)());
    }

    /// The ranges of the agent's own IPAM, now and after each change.
    pub fn ranges(&self) -> watch::Receiver<Ranges> {
        self.ranges.subscribe()
    }

    /// Whether the agent's own IPAM allocates IPv6 addresses.
    pub fn has_ipv6(&self) -> bool {
        self.table().ipam.has_ipv6()
    }

    /// Whether pods have, or can get, an IPv4 address, and an IPv6 address.
    pub fn families(&self) -> (bool, bool) {
        let ranges = self.ranges.borrow().clone();
        let table = self.table();
        let has = |is_v4: bool| {
            ranges.nets().iter().any(|range| range.addr().is_ipv4() == is_v4)
                || table
                    .attachments
                    .values()
                    .any(|it| it.vif.addresses.iter().any(|it| it.is_ipv4() == is_v4))
        };
        (has(true), has(false))
    }
}

// === impl Registry: locks ===

impl Registry {
    /// Waits for the lock of a key.
    pub async fn lock(&self, key: &Key) -> KeyGuard {
        self.locks.lock(key).await
    }

    /// Waits up to `limit` for the lock of a key. Blocks; to be called on a blocking thread of the runtime.
    pub fn lock_within(&self, key: &Key, limit: Duration) -> Option<KeyGuard> {
        let locked = async { tokio::time::timeout(limit, self.locks.lock(key)).await.ok() };
        tokio::runtime::Handle::current().block_on(locked)
    }

    /// Locks a key that is neither locked nor waited for.
    pub fn try_lock(&self, key: &Key) -> Option<KeyGuard> {
        self.locks.try_lock(key)
    }

    /// Whether a key is locked or waited for.
    pub fn is_locked(&self, key: &Key) -> bool {
        self.locks.is_locked(key)
    }
}

// === impl Registry: queries ===

impl Registry {
    /// The runtime keys of the attachments whose pod matches.
    pub fn runtime_keys(&self, matches: impl Fn(&PodRef) -> bool) -> BTreeSet<Key> {
        let table = self.table();
        table.attachments.values().filter(|it| matches(&it.pod)).map(Attachment::runtime_key).collect()
    }

    /// The key under which the runtime attached an attachment, by its own key. An unknown one is taken for
    /// the runtime's.
    pub fn runtime_key(&self, key: &Key) -> Key {
        self.table().attachments.get(key).map_or_else(|| key.clone(), Attachment::runtime_key)
    }

    /// An attachment by its own key.
    pub fn get(&self, key: &Key) -> Option<Attachment> {
        self.table().attachments.get(key).cloned()
    }

    /// The attachments of a runtime key: the requested interface first, then the additional ones.
    pub fn group(&self, key: &Key) -> Vec<Attachment> {
        let table = self.table();
        let is_additional = |it: &&Attachment| it.with.as_ref() == Some(key);
        let requested = table.attachments.get(key).filter(|it| it.with.is_none());
        requested.into_iter().chain(table.attachments.values().filter(is_additional)).cloned().collect()
    }

    /// All attachments, oldest first.
    pub fn list(&self) -> Vec<Attachment> {
        let mut all: Vec<_> = self.table().attachments.values().cloned().collect();
        all.sort_by_key(|attachment| attachment.created_since_boot_ns);
        all
    }

    /// The name of each state, and the number of attachments in it.
    pub fn states(&self) -> Vec<(&'static str, usize)> {
        let table = self.table();
        let number = |state| table.attachments.values().filter(|it| it.state == state).count();
        State::ALL.into_iter().map(|state| (state.as_str(), number(state))).collect()
    }

    /// The attachment behind a host interface, by an index.
    pub fn behind(&self, ifindex: u32) -> Option<Arc<Owner>> {
        self.table().owners.behind(ifindex)
    }

    /// The owners of all host interfaces, oldest first.
    pub fn owners(&self) -> Vec<Arc<Owner>> {
        let mut all = self.table().owners.all();
        all.sort_by(|one, other| (one.since_boot_ns, &one.key).cmp(&(other.since_boot_ns, &other.key)));
        all
    }

    /// The attachment that has an address, by an index.
    pub fn of_address(&self, address: IpAddr) -> Option<Arc<Owner>> {
        self.table().owners.of_address(address)
    }

    /// The attachments that match, in no particular order.
    pub fn find(&self, matches: impl Fn(&Attachment) -> bool) -> Vec<Attachment> {
        self.table().attachments.values().filter(|it| matches(it)).cloned().collect()
    }
}

// === impl Registry: changes ===

impl Registry {
    /// Allocates the addresses of a new attachment and records it durably as [`State::Reserved`].
    ///
    /// # Errors
    /// If an address is in use, the IPAM is exhausted, or the store fails; nothing stays allocated.
    pub fn reserve(&self, new: NewAttachment) -> Result<Attachment, RegistryError> {
        let NewAttachment { key, with, pod, netns, netns_id, allocation, wishes } = new;
        let now = (self.clock)();
        let vif = self.table().allocate(&key, allocation, now)?;
        let addresses = vif.addresses;
        let attachment = Attachment {
            key,
            state: State::Reserved,
            pod,
            netns,
            netns_id,
            vif,
            with,
            wishes,
            host: HostSide::Unplugged,
            created_at_ms: now_ms(),
            created_since_boot_ns: u64::try_from(now.as_nanos()).unwrap_or(u64::MAX),
            later: serde_json::Map::new(),
        };
        let key = attachment.key.clone();
        let recorded = self.update(attachment);
        let mut table = self.table();
        table.allocated.remove(&key);
        if recorded.is_err() {
            table.ipam.cancel(addresses);
        }
        recorded
    }

    /// Moves an attachment to the next state. Only Attached is made durable: recovery rolls a crash in
    /// Plugged back as Reserved, and finds a crash in Unplugging by the link group of the retired interface.
    ///
    /// # Errors
    /// If the store fails; the registry stays as it was.
    pub fn advance(&self, attachment: Attachment, state: State) -> Result<Attachment, RegistryError> {
        let attachment = Attachment { state, ..attachment };
        if state == State::Attached {
            return self.update(attachment);
        }
        self.table().put(attachment.clone());
        Ok(attachment)
    }

    /// Records attachments that were rebuilt from the kernel, durably. Each replaces the record under its
    /// key; superseded records are removed. `complete` is whether every attachment of the kernel now has a
    /// record.
    ///
    /// # Errors
    /// If the store fails; the next start rebuilds again.
    pub fn adopt(
        &self,
        attachments: Vec<Attachment>,
        superseded: &[Attachment],
        complete: bool,
    ) -> Result<(), RegistryError> {
        // Removed before their addresses get other records: a crash in between leaves none with two.
        for Attachment { key, .. } in superseded {
            self.record(key, &self.kept(key, None))?;
        }
        for attachment in &attachments {
            self.record(&attachment.key, &self.kept(&attachment.key, Some(attachment.clone())))?;
        }
        if self.complete.load(Ordering::Relaxed) != complete {
            self.store.mark(complete)?;
            self.complete.store(complete, Ordering::Relaxed);
        }
        self.table().adopt(attachments, superseded, (self.clock)());
        Ok(())
    }

    /// Replaces the record of an attachment durably.
    ///
    /// # Errors
    /// If the store fails; the record stays as it was.
    pub fn update(&self, attachment: Attachment) -> Result<Attachment, RegistryError> {
        let key = attachment.key.clone();
        let kept = self.kept(&key, Some(attachment.clone()));
        self.record(&key, &kept)?;
        self.table().keep(key, kept);
        Ok(attachment)
    }

    /// Removes an attachment that never carried a packet. Its addresses are free at once, without cooldown.
    ///
    /// # Errors
    /// If the store fails; the record and its addresses stay as they were.
    pub fn cancel(&self, attachment: &Attachment) -> Result<(), RegistryError> {
        let key = &attachment.key;
        let kept = self.kept(key, None);
        self.record(key, &kept)?;
        let mut table = self.table();
        table.keep(key.clone(), kept);
        table.ipam.cancel(attachment.vif.addresses);
        table.claim_left();
        Ok(())
    }

    /// Removes an attachment that is gone from the kernel. Its addresses enter cooldown.
    ///
    /// # Errors
    /// If the store fails; the record stays as it was.
    pub fn release(&self, attachment: &Attachment) -> Result<(), RegistryError> {
        let (key, addresses, now) = (&attachment.key, attachment.vif.addresses, (self.clock)());
        let mut kept = self.kept(key, None);
        kept.cooldown.extend(addresses.iter().map(|address| Released::new(address, now)));
        self.record(key, &kept)?;
        let mut table = self.table();
        table.keep(key.clone(), kept);
        table.ipam.release(addresses, now);
        table.claim_left();
        Ok(())
    }

    /// Never held across a system call.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Registry: the store ===

impl Registry {
    /// What the store keeps of a key that has this attachment from now on.
    fn kept(&self, key: &Key, attachment: Option<Attachment>) -> Kept {
        Kept { attachment, cooldown: self.table().cooling(key, (self.clock)()) }
    }

    /// Makes durable what is kept of a key, which the caller has locked.
    fn record(&self, key: &Key, kept: &Kept) -> Result<(), StoreError> {
        match self.store.put(key, kept) {
            Err(StoreError::Displaced { .. }) => {
                self.recreate()?;
                self.store.put(key, kept)
            }
            done => done,
        }
    }

    /// Writes all records again if the store was removed or replaced.
    fn recreate(&self) -> Result<(), StoreError> {
        let _one = self.recreating.lock().unwrap_or_else(PoisonError::into_inner);
        if self.store.is_in_place() {
            return Ok(());
        }
        let records = self.table().durable((self.clock)());
        self.store.recreate(&records, self.is_complete())?;
        tracing::error!(
            records = records.len(),
            "the registry's store was removed or replaced under the running agent: wrote all records again"
        );
        Ok(())
    }
}
