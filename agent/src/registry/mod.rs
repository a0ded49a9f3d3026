//! The one owner of attachments: in memory, and durable.
//!
//! Every change is durable before it is visible in memory, and visible before the caller acts on it.

mod attachment;
mod cache;
mod durable;
mod host_side;
mod locks;
mod pods;
mod store;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, Read as _, Seek as _, Write as _},
    net::IpAddr,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use ipnet::IpNet;
use nix::{
    fcntl::{Flock, FlockArg},
    time::{ClockId, clock_gettime},
};
use tokio::sync::watch;

pub use attachment::{Attachment, Key, NetnsId, Pod, State};
pub use cache::Cache;
pub use host_side::{HostLink, HostSide};
pub use locks::{KeyGuard, Locks};
pub use pods::{Known, Pods, Port, Subscription};
pub use store::{Condition, StoreError};

use crate::{
    crash::{self, Step},
    ipam::{COOLDOWN, Exhausted, Ipam, IpamError},
};
use ferrule_proto::names::IfName;
use ferrule_vif::{Addresses, Vif, VifKind};
use store::{Identity, Opened, Store};

/// The attachments of this node, and the pods that they are for.
pub struct Registry {
    pub pods: Pods,
    store: Store,
    ranges: watch::Sender<Vec<IpNet>>,
    condition: Condition,
    /// Whether all is in it that pods have.
    complete: AtomicBool,
    /// A lock file: one agent per state directory.
    _lock: Flock<File>,
    inner: Mutex<Inner>,
    locks: Locks,
}

struct Inner {
    attachments: BTreeMap<Key, Attachment>,
    /// Set aside for attachments that are being made durable.
    taken: BTreeMap<Key, Addresses>,
    /// How often addresses were given back.
    released: u64,
    ipam: Ipam,
}

/// What ADD knows of an attachment before it has an address.
#[derive(Debug, Clone)]
pub struct NewAttachment {
    pub key: Key,
    pub with: Option<Key>,
    pub pod: Pod,
    pub netns: PathBuf,
    pub netns_id: NetnsId,
    pub allocation: Allocation,
}

/// Where an attachment has its VIF from.
#[derive(Debug, Clone)]
pub enum Allocation {
    /// The next free addresses of the agent's own IPAM, and an MTU in bytes.
    FromIpam { mtu: u32 },
    /// A VIF that a source decided.
    Fixed(Vif),
}

/// The registry cannot do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Exhausted(#[from] Exhausted),
    #[error("the pod CIDRs cannot be used: {0}")]
    Ipam(#[from] IpamError),
    /// Two pods cannot have one address.
    #[error("the address {address} is in use, by {by}")]
    InUse { address: IpAddr, by: Key },
    /// The key is that of a further interface of another attachment.
    #[error("the pod's VIF has an interface {0} already, which came with another")]
    KeyTaken(IfName),
    /// The state directory cannot be used.
    #[error("cannot use the state directory {path:?}")]
    Directory {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// Nobody tells where the agent is.
    #[error("cannot tell which boot and which network namespace this is")]
    Identity(#[source] io::Error),
    /// Two agents would give out the same addresses.
    #[error("another ferrule-agent{} works on the state directory {path:?}", pid.as_deref().map(|pid| format!(" (pid {pid})")).unwrap_or_default())]
    Taken { path: PathBuf, pid: Option<String> },
}

// === impl Registry ===

impl Registry {
    /// Opens the registry of a state directory, which is made if it is missing.
    ///
    /// # Errors
    /// If another agent works on it, it cannot be read or written, a newer agent wrote it, or one in another network namespace. A damaged
    /// one is set aside.
    pub fn open(directory: &Path) -> Result<Self, RegistryError> {
        let own = Identity::own().map_err(RegistryError::Identity)?;
        Self::open_as(directory, &own)
    }

    fn open_as(directory: &Path, own: &Identity) -> Result<Self, RegistryError> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(|source| RegistryError::Directory { path: directory.to_owned(), source })?;
        crash::point(Step::StateMade);
        let lock = take_directory(directory)?;
        let Opened { store, contents, condition } = Store::open_as(&directory.join("registry.redb"), own)?;
        let attachments = contents.attachments.into_iter().map(|it| (it.key.clone(), it)).collect();
        Ok(Self {
            pods: Pods::default(),
            store,
            ranges: watch::Sender::default(),
            complete: AtomicBool::new(condition == Condition::Intact),
            condition,
            _lock: lock,
            inner: Mutex::new(Inner {
                attachments,
                taken: BTreeMap::new(),
                released: 0,
                ipam: Ipam::default(),
            }),
            locks: Locks::default(),
        })
    }

    /// How the store was found. Unless it was whole, it may lack attachments that the kernel has.
    pub fn condition(&self) -> &Condition {
        &self.condition
    }

    /// Whether what the kernel has and the registry lacks is nobody's. It is not where attachments were lost that could not be made
    /// anew.
    pub fn is_complete(&self) -> bool {
        self.complete.load(Ordering::Relaxed)
    }

    /// Why the store could not be written to the last time that somebody tried; `None` if it could. Now and after each change.
    pub fn store_trouble(&self) -> watch::Receiver<Option<String>> {
        self.store.trouble()
    }

    /// Tries to write to the store, which changes nothing but [`Self::store_trouble`].
    pub fn try_store(&self) {
        self.store.try_write();
    }

    /// Gives the agent's own IPAM its ranges, less the node's own addresses in them.
    ///
    /// # Errors
    /// If a range is unfit, or the store cannot be read; then the ranges are as they were.
    pub fn set_ranges(&self, ranges: &[IpNet], own: &[IpAddr]) -> Result<(), RegistryError> {
        loop {
            let (released, mut ipam) = (self.inner().released, Ipam::new(ranges)?);
            let now = since_boot();
            // A time to come is one of before a reboot, which no address has to rest after.
            for (address, since) in self.store.load()?.resting.into_iter().filter(|(_, since)| *since <= now)
            {
                ipam.rest(address, since);
            }
            let mut inner = self.inner();
            // What was released while we read may not be among it.
            if inner.released == released {
                for (_, addresses) in inner.addresses() {
                    ipam.claim(addresses);
                }
                ipam.exclude(own);
                inner.ipam = ipam;
                break;
            }
        }
        self.ranges.send_replace(ranges.to_vec());
        Ok(())
    }

    /// Keeps the addresses from pods that the node has itself, from now on.
    pub fn exclude(&self, own: &[IpAddr]) {
        let mut inner = self.inner();
        inner.ipam.exclude(own);
        for (key, addresses) in inner.addresses() {
            for address in addresses.iter().filter(|it| own.contains(it)) {
                tracing::error!(%address, %key, "the node has an address that a pod has: packets to it go to the node");
            }
        }
    }

    /// The ranges of the agent's own IPAM, now and after each change. There are none until they are known.
    pub fn ranges(&self) -> watch::Receiver<Vec<IpNet>> {
        self.ranges.subscribe()
    }

    /// Waits until nobody else works on a key.
    pub async fn lock(&self, key: &Key) -> KeyGuard {
        self.locks.lock(key).await
    }

    /// Waits for a while until nobody else works on a key. It blocks, on one of the runtime's threads for that.
    pub fn lock_within(&self, key: &Key, limit: Duration) -> Option<KeyGuard> {
        let locked = async { tokio::time::timeout(limit, self.locks.lock(key)).await.ok() };
        tokio::runtime::Handle::current().block_on(locked)
    }

    /// Locks a key that nobody works on, nor waits to.
    pub fn try_lock(&self, key: &Key) -> Option<KeyGuard> {
        self.locks.try_lock(key)
    }

    /// Whether somebody works on a key, or waits to.
    pub fn is_worked_on(&self, key: &Key) -> bool {
        self.locks.is_taken(key)
    }

    /// The keys that a runtime knows, of pods that are meant.
    pub fn runtime_keys(&self, is_meant: impl Fn(&Pod) -> bool) -> BTreeSet<Key> {
        let inner = self.inner();
        inner.attachments.values().filter(|it| is_meant(&it.pod)).map(Attachment::runtime_key).collect()
    }

    /// An attachment as it is now.
    pub fn get(&self, key: &Key) -> Option<Attachment> {
        self.inner().attachments.get(key).cloned()
    }

    /// What a runtime knows by a key: the attachment first, then those that came with it.
    pub fn group(&self, key: &Key) -> Vec<Attachment> {
        let inner = self.inner();
        let is_further = |it: &&Attachment| it.with.as_ref() == Some(key);
        let own = inner.attachments.get(key).filter(|it| it.with.is_none());
        own.into_iter().chain(inner.attachments.values().filter(is_further)).cloned().collect()
    }

    /// All attachments, in the order of their creation.
    pub fn list(&self) -> Vec<Attachment> {
        let mut all: Vec<_> = self.inner().attachments.values().cloned().collect();
        all.sort_by_key(|attachment| attachment.created_at_ms);
        all
    }

    /// Some of them, in no order.
    pub fn find(&self, is_meant: impl Fn(&Attachment) -> bool) -> Vec<Attachment> {
        self.inner().attachments.values().filter(|it| is_meant(it)).cloned().collect()
    }

    /// Sets addresses aside for a new attachment, durably: Reserved.
    ///
    /// # Errors
    /// If no address is left, one that was asked for is another's, or the store fails; then nothing is set aside.
    pub fn reserve(&self, new: NewAttachment) -> Result<Attachment, RegistryError> {
        let NewAttachment { key, with, pod, netns, netns_id, allocation } = new;
        let vif = self.inner().take(&key, allocation)?;
        let addresses = vif.addresses;
        let attachment = Attachment {
            key,
            state: State::Reserved,
            pod,
            netns,
            netns_id,
            vif,
            with,
            host: HostSide::Unplugged,
            created_at_ms: now_ms(),
            created_since_boot_ns: u64::try_from(since_boot().as_nanos()).unwrap_or(u64::MAX),
        };
        let key = attachment.key.clone();
        let put = self.put(attachment);
        let mut inner = self.inner();
        inner.taken.remove(&key);
        if put.is_err() {
            inner.ipam.cancel(addresses);
        }
        put
    }

    /// Notes how far an attachment has come. Only Attached is made durable here: a crash in Plugged is undone as
    /// Reserved, one in Unplugging is found by the link group that its interface is in.
    ///
    /// # Errors
    /// If the store fails; then the registry is as it was.
    pub fn advance(&self, attachment: Attachment, state: State) -> Result<Attachment, RegistryError> {
        let attachment = Attachment { state, ..attachment };
        if state == State::Attached {
            return self.put(attachment);
        }
        self.inner().attachments.insert(attachment.key.clone(), attachment.clone());
        Ok(attachment)
    }

    /// Takes attachments that were made anew from what the kernel has, durably, all or none; each in the place of what is known by its
    /// key, and of those that they supersede. `is_all` is whether nothing is missing any more.
    ///
    /// # Errors
    /// If the store fails; then the registry is as it was.
    pub fn adopt(
        &self,
        attachments: Vec<Attachment>,
        superseded: &[Attachment],
        is_all: bool,
    ) -> Result<(), RegistryError> {
        self.store.adopt(&attachments, superseded, is_all)?;
        self.complete.store(is_all, Ordering::Relaxed);
        let now = since_boot();
        let mut inner = self.inner();
        for Attachment { key, vif, .. } in superseded {
            inner.attachments.remove(key);
            inner.ipam.release(vif.addresses, now);
        }
        // All that was theirs first: the address of one may be what the record of another had.
        let now_theirs: Vec<_> = attachments.iter().map(|it| it.vif.addresses).collect();
        for attachment in attachments {
            if let Some(before) = inner.attachments.insert(attachment.key.clone(), attachment) {
                inner.ipam.release(before.vif.addresses, now);
            }
        }
        now_theirs.into_iter().for_each(|it| inner.ipam.claim(it));
        Ok(())
    }

    /// Notes what was not known of an attachment that was made anew, durably.
    ///
    /// # Errors
    /// If the store fails; then the attachment stays as it was.
    pub fn update(&self, attachment: Attachment) -> Result<Attachment, RegistryError> {
        self.put(attachment)
    }

    /// Forgets an attachment that never carried a packet: its addresses are free at once.
    ///
    /// # Errors
    /// If the store fails; then the attachment stays as it was, and its addresses set aside.
    pub fn cancel(&self, attachment: &Attachment) -> Result<(), RegistryError> {
        self.store.remove(&attachment.key, Addresses::default(), Duration::ZERO, Duration::ZERO)?;
        let mut inner = self.inner();
        inner.attachments.remove(&attachment.key);
        inner.ipam.cancel(attachment.vif.addresses);
        Ok(())
    }

    /// Forgets an attachment that is gone from the kernel: its addresses rest before another pod gets them.
    ///
    /// # Errors
    /// If the store fails; then the attachment stays as it was.
    pub fn release(&self, attachment: &Attachment) -> Result<(), RegistryError> {
        let now = since_boot();
        let addresses = attachment.vif.addresses;
        self.store.remove(&attachment.key, addresses, now, now.saturating_sub(COOLDOWN))?;
        let mut inner = self.inner();
        inner.attachments.remove(&attachment.key);
        inner.released += 1;
        inner.ipam.release(addresses, now);
        Ok(())
    }

    /// Whether pods get an IPv6 address from the agent's own IPAM.
    pub fn has_ipv6(&self) -> bool {
        self.inner().ipam.has_ipv6()
    }

    /// Whether there are pods with an address of IPv4, and of IPv6, or may be.
    pub fn families(&self) -> (bool, bool) {
        let ranges = self.ranges.borrow().clone();
        let inner = self.inner();
        let has = |is_v4: bool| {
            ranges.iter().any(|range| range.addr().is_ipv4() == is_v4)
                || inner
                    .attachments
                    .values()
                    .any(|it| it.vif.addresses.iter().any(|it| it.is_ipv4() == is_v4))
        };
        (has(true), has(false))
    }

    fn put(&self, attachment: Attachment) -> Result<Attachment, RegistryError> {
        self.store.put(&attachment)?;
        self.inner().attachments.insert(attachment.key.clone(), attachment.clone());
        Ok(attachment)
    }

    /// Never held across a system call.
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Inner ===

impl Inner {
    /// The VIF of a new attachment, with its addresses set aside.
    fn take(&mut self, key: &Key, allocation: Allocation) -> Result<Vif, RegistryError> {
        if self.attachments.contains_key(key) || self.taken.contains_key(key) {
            return Err(RegistryError::KeyTaken(key.ifname.clone()));
        }
        let vif = match allocation {
            Allocation::FromIpam { mtu } => {
                let addresses = self.ipam.take(since_boot())?;
                let (mac, gateways) = (addresses.mac(), Addresses::default());
                let kind = VifKind::Veth;
                Vif { kind, mac, mtu, addresses, gateways, is_default: true, routes: Vec::new() }
            }
            Allocation::Fixed(vif) => {
                for address in vif.addresses.iter() {
                    let has =
                        |(_, addresses): &(&Key, Addresses)| addresses.iter().any(|other| other == address);
                    if let Some((by, _)) = self.addresses().find(has) {
                        return Err(RegistryError::InUse { address, by: by.clone() });
                    }
                }
                self.ipam.claim(vif.addresses);
                vif
            }
        };
        self.taken.insert(key.clone(), vif.addresses);
        Ok(vif)
    }

    /// All that are set aside, and for which attachment.
    fn addresses(&self) -> impl Iterator<Item = (&Key, Addresses)> {
        let attached = self.attachments.iter().map(|(key, it)| (key, it.vif.addresses));
        attached.chain(self.taken.iter().map(|(key, addresses)| (key, *addresses)))
    }
}

/// Locks the directory for this process, which also a crash ends.
fn take_directory(directory: &Path) -> Result<Flock<File>, RegistryError> {
    let path = directory.join("agent.lock");
    let failed = |source| RegistryError::Directory { path: directory.to_owned(), source };
    let file =
        File::options().create(true).read(true).write(true).truncate(false).open(&path).map_err(failed)?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(mut lock) => {
            lock.set_len(0).map_err(failed)?;
            lock.rewind().map_err(failed)?;
            write!(lock, "{}", std::process::id()).map_err(failed)?;
            Ok(lock)
        }
        Err((mut file, nix::errno::Errno::EWOULDBLOCK)) => {
            let mut pid = String::new();
            let read = file.read_to_string(&mut pid);
            let pid = read.ok().map(|_| pid).filter(|pid| !pid.is_empty());
            Err(RegistryError::Taken { path: directory.to_owned(), pid })
        }
        Err((_, errno)) => Err(failed(errno.into())),
    }
}

/// The clock that goes on while the machine sleeps, and that nobody sets.
fn since_boot() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default()
}

/// Milliseconds since the Unix epoch.
pub(crate) fn now_ms() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
}
