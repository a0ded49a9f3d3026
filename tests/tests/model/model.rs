//! The reference model: what the CNI specification and our invariants require of a node, independent of
//! implementation.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    nodes::OtherNodes,
    operations::{Damage, NO_VIF, OUT_OF_RANGE, UNREADABLE},
    policies::Policies,
};

/// A sandbox's index in [`Model::sandboxes`]; container IDs are never reused.
pub type Id = usize;
pub type Addresses = BTreeSet<IpAddr>;

/// The expected state of the node.
#[derive(Debug, Clone)]
pub struct Model {
    pub api: Api,
    pub sandboxes: Vec<Sandbox>,
    pub attached: BTreeMap<Id, Attached>,
    pub cooldown: Cooldown,
    pub agent_runs: bool,
    pub nodes: OtherNodes,
    /// The first and last pod address of the agent's IPv4 range.
    pub pool: (Ipv4Addr, Ipv4Addr),
}

/// The state of the API server.
#[derive(Debug, Clone, Default)]
pub struct Api {
    pub pods: BTreeMap<String, ApiPod>,
    pub policies: Policies,
    /// UIDs of deleted pods, and whether the running agent must know of the deletion.
    pub gone: BTreeMap<String, bool>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiPod {
    pub uid: String,
    /// See [`vif_text`].
    pub vif: u8,
    /// The value of the label that policies ask about, or `NO_APP`.
    pub app: u8,
}

/// A container of the runtime.
#[derive(Debug, Clone)]
pub struct Sandbox {
    pub name: String,
    pub uid: String,
    pub container: String,
    /// Whether a namespace exists at its path.
    pub alive: bool,
    /// Number of namespaces that were at its path before.
    pub generation: u32,
}

/// A sandbox with an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// All pod UIDs that the runtime may have passed.
    pub uids: BTreeSet<String>,
    pub addresses: Addresses,
    pub mac: String,
    pub host_ifname: String,
    /// The first ADD's result, which a repeated ADD returns again. `None` if the agent crashed before
    /// answering.
    pub result: Option<Value>,
    /// The namespace that contains the interface.
    pub generation: u32,
    pub damage: BTreeSet<Damage>,
    /// Index and creation time of the host interface; constant once known.
    pub host_link: Option<(u32, u64)>,
    /// Time of a DEL without an agent: the interface is deleted, the rest follows when the agent starts.
    pub deferred_del_at: Option<Instant>,
    /// Since when the attachment is an orphan: its namespace is gone, and its pod is, or has a newer sandbox.
    pub orphan_since: Option<Instant>,
}

/// Released addresses in cooldown.
#[derive(Debug, Clone, Default)]
pub struct Cooldown {
    /// Earliest and latest time of the release.
    released: BTreeMap<IpAddr, (Instant, Instant)>,
    /// Addresses that an ADD of unknown outcome may have taken.
    unknown: Vec<Instant>,
}

/// An ADD and its relevant arguments.
#[derive(Debug, Clone)]
pub struct Add {
    pub id: Id,
    pub uid: String,
    /// The VIF in the call's annotations, if the call carries any.
    pub annotated: Option<u8>,
}

/// The allowed outcomes of an ADD of an unattached sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allowed {
    pub errors: BTreeSet<u64>,
    pub addresses: Vec<Assigned>,
}

/// The addresses that an ADD assigns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Assigned {
    /// A free address of each family.
    FromIpam,
    Fixed(Addresses),
}

/// CNI error codes; ours start at 100.
pub const UNKNOWN_CONTAINER: u64 = 3;
pub const INVALID_NETNS: u64 = 8;
pub const TRY_AGAIN_LATER: u64 = 11;
pub const NOT_AVAILABLE: u64 = 50;
pub const CHECK_FAILED: u64 = 101;
pub const VIF_REFUSED: u64 = 104;

/// The documented cooldown of a released address.
const COOLDOWN_TIME: Duration = Duration::from_secs(30);
/// Difference between the agent's clock readings and ours.
const SLACK: Duration = Duration::from_millis(500);

/// The annotation that gives a pod the VIF of this number in the model.
pub fn vif_text(vif: u8) -> Option<String> {
    let quoted = |addresses: Addresses| {
        let quoted: Vec<_> = addresses.iter().map(|address| format!("\"{address}\"")).collect();
        format!(r#"{{"interfaces":[{{"addresses":[{}]}}]}}"#, quoted.join(","))
    };
    match vif {
        NO_VIF => None,
        OUT_OF_RANGE => Some(quoted(Addresses::from([IpAddr::from([10, 99, 0, 1])]))),
        UNREADABLE => Some("{".to_owned()),
        vif => Some(quoted(vif_addresses(vif))),
    }
}

/// A decided VIF's addresses lie in the agent's own range, where IPAM may have allocated them already.
fn vif_addresses(vif: u8) -> Addresses {
    let v4 = IpAddr::from([10, 244, 0, vif * 3]);
    let v6 = IpAddr::from([0xfd00, 0x10, 0x244, 0, 0, 0, 0, u16::from(vif) * 3]);
    if vif.is_multiple_of(2) { Addresses::from([v4, v6]) } else { Addresses::from([v4]) }
}

// === impl Model ===

impl Model {
    pub fn new(pool: (Ipv4Addr, Ipv4Addr)) -> Self {
        let (api, cooldown) = (Api::default(), Cooldown::default());
        Self {
            api,
            sandboxes: Vec::new(),
            attached: BTreeMap::new(),
            cooldown,
            agent_runs: true,
            nodes: OtherNodes::new(),
            pool,
        }
    }

    /// The allowed outcomes of an ADD of an unattached sandbox, given the API states that the agent may have
    /// seen. `others` is the number of concurrent ADDs.
    pub fn allowed_outcomes(&self, add: &Add, apis: &[Api], others: usize) -> Allowed {
        let mut allowed = Allowed::default();
        let Some(sandbox) = self.sandboxes.get(add.id) else { return allowed };
        for api in apis {
            api.decide(&sandbox.name, add, &mut allowed);
        }
        for addresses in &allowed.addresses {
            let is_taken = match addresses {
                Assigned::FromIpam => self.free_addresses() <= others,
                Assigned::Fixed(addresses) => others > 0 || self.holds_any(addresses, add.id),
            };
            if is_taken {
                allowed.errors.insert(TRY_AGAIN_LATER);
            }
        }
        if !sandbox.alive {
            allowed.errors.insert(INVALID_NETNS);
            allowed.addresses.clear();
        }
        allowed
    }

    pub fn is_in_pools(&self, address: &IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) => (self.pool.0..=self.pool.1).contains(v4),
            IpAddr::V6(v6) => v6.segments().starts_with(&[0xfd00, 0x10, 0x244, 0]),
        }
    }

    /// All addresses of attachments.
    pub fn addresses(&self) -> Addresses {
        self.attached.values().flat_map(|it| it.addresses.iter().copied()).collect()
    }

    /// Whether the attachment's namespace has ended, which deletes its interface.
    pub fn has_ended(&self, id: Id, attached: &Attached) -> bool {
        self.sandboxes.get(id).is_none_or(|it| !it.alive || it.generation != attached.generation)
    }

    /// Whether an attachment has no deviation.
    pub fn is_whole(&self, id: Id, attached: &Attached) -> bool {
        attached.damage.is_empty() && !self.has_ended(id, attached)
    }

    /// Whether garbage collection may remove an attachment: its namespace is gone, and its pod may be, or may
    /// have a newer sandbox.
    pub fn may_be_orphan(&self, id: Id, attached: &Attached) -> bool {
        let may_be_newer =
            |it: &Attached| it.created_at() >= attached.created_at() && !it.uids.is_disjoint(&attached.uids);
        let has_newer = || self.attached.iter().any(|(other, it)| *other != id && may_be_newer(it));
        self.has_ended(id, attached) && (!self.pod_is_there(id, attached) || has_newer())
    }

    /// Whether a newer sandbox certainly has the attachment's pod.
    fn is_replaced(&self, attached: &Attached) -> bool {
        let is_newer = |it: &Attached| {
            it.created_at() > attached.created_at()
                && attached.created_at().is_some()
                && it.uids.len() == 1
                && it.uids == attached.uids
        };
        self.attached.values().any(is_newer)
    }

    /// Whether a pod that the attachment may belong to exists in the API.
    fn pod_is_there(&self, id: Id, attached: &Attached) -> bool {
        let pod = self.sandboxes.get(id).and_then(|it| self.api.pods.get(&it.name));
        pod.is_some_and(|pod| attached.uids.len() == 1 && attached.uids.contains(&pod.uid))
    }

    /// Records since when attachments have certainly been orphans.
    pub fn record_orphans(&mut self) {
        let sure: BTreeSet<Id> = self
            .attached
            .iter()
            .filter(|(id, it)| self.agent_runs && self.has_ended(**id, it))
            .filter(|(_, it)| {
                it.uids.iter().all(|uid| self.api.gone.get(uid) == Some(&true)) || self.is_replaced(it)
            })
            .map(|(id, _)| *id)
            .collect();
        for (id, attached) in &mut self.attached {
            let since = attached.orphan_since.unwrap_or_else(Instant::now);
            attached.orphan_since = sure.contains(id).then_some(since);
        }
    }

    fn holds_any(&self, addresses: &Addresses, but: Id) -> bool {
        self.attached.iter().any(|(id, it)| *id != but && !it.addresses.is_disjoint(addresses))
    }

    /// Lower bound of free IPv4 addresses.
    fn free_addresses(&self) -> usize {
        let (first, last) = self.pool;
        let is_ours = |address: &IpAddr| address.is_ipv4() && self.is_in_pools(address);
        let mut taken = self.addresses();
        taken.extend(self.cooldown.addresses());
        let all = (last.to_bits() - first.to_bits()) as usize + 1;
        let taken = taken.iter().filter(|it| is_ours(it)).count() + self.cooldown.unknown.len();
        all.saturating_sub(taken)
    }
}

// === impl Api ===

impl Api {
    pub fn delete(&mut self, name: &str) {
        if let Some(pod) = self.pods.remove(name) {
            self.gone.insert(pod.uid, true);
        }
    }

    /// A restarted agent may not know of deletions before its start.
    pub fn forget_deletions(&mut self) {
        self.gone.values_mut().for_each(|is_known| *is_known = false);
    }

    fn decide(&self, name: &str, add: &Add, allowed: &mut Allowed) {
        let pod = self.pods.get(name).filter(|pod| pod.uid == add.uid);
        match (pod, self.gone.get(&add.uid)) {
            (None, Some(true)) => {
                allowed.errors.insert(UNKNOWN_CONTAINER);
                return;
            }
            (None, Some(false)) => {
                allowed.errors.insert(UNKNOWN_CONTAINER);
            }
            _ => {}
        }
        if self.lacks_what_policies_ask(name, &add.uid) {
            allowed.errors.insert(TRY_AGAIN_LATER);
            return;
        }
        let annotated = add.annotated.filter(|vif| *vif != NO_VIF);
        let vif = match (annotated, pod) {
            (Some(vif), _) => vif,
            (None, Some(pod)) => pod.vif,
            (None, None) if add.annotated.is_some() => NO_VIF,
            // ADD waits for the pod until its timeout.
            (None, None) => {
                allowed.errors.insert(TRY_AGAIN_LATER);
                return;
            }
        };
        let addresses = match vif {
            NO_VIF => Assigned::FromIpam,
            OUT_OF_RANGE | UNREADABLE => {
                allowed.errors.insert(VIF_REFUSED);
                return;
            }
            vif => Assigned::Fixed(vif_addresses(vif)),
        };
        if !allowed.addresses.contains(&addresses) {
            allowed.addresses.push(addresses);
        }
    }
}

// === impl Attached ===

impl Attached {
    /// From an ADD's result.
    pub fn from_result(result: &Value, uid: &str, generation: u32) -> Option<Self> {
        let text = |at: &str| result.pointer(at).and_then(Value::as_str).map(str::to_owned);
        let addresses = result.get("ips")?.as_array()?.iter().filter_map(|ip| {
            let (address, _) = ip.get("address")?.as_str()?.split_once('/')?;
            address.parse().ok()
        });
        Some(Self {
            uids: BTreeSet::from([uid.to_owned()]),
            addresses: addresses.collect(),
            mac: text("/interfaces/1/mac")?,
            host_ifname: text("/interfaces/0/name")?,
            result: Some(result.clone()),
            generation,
            damage: BTreeSet::new(),
            host_link: None,
            deferred_del_at: None,
            orphan_since: None,
        })
    }

    fn created_at(&self) -> Option<u64> {
        self.host_link.map(|(_, created)| created)
    }
}

// === impl Cooldown ===

impl Cooldown {
    /// Records addresses that were released between two times.
    pub fn release(&mut self, addresses: &Addresses, from: Instant, to: Instant) {
        self.released.extend(addresses.iter().map(|address| (*address, (from, to))));
    }

    /// Records an address that may have been allocated and released.
    pub fn release_unknown(&mut self) {
        self.unknown.push(Instant::now());
    }

    /// Drops addresses whose cooldown has certainly ended.
    pub fn expire(&mut self) {
        self.released.retain(|_, (_, to)| to.elapsed() < COOLDOWN_TIME + SLACK);
        self.unknown.retain(|at| at.elapsed() < COOLDOWN_TIME + SLACK);
    }

    /// Whether an address was certainly in cooldown at a time.
    pub fn contains_certainly(&self, address: &IpAddr, at: Instant) -> bool {
        self.released.get(address).is_some_and(|(from, _)| at + SLACK < *from + COOLDOWN_TIME)
    }

    fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.released.keys().copied()
    }
}
