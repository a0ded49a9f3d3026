//! The reference model: what the CNI specification and our invariants say of a node, and nothing of how it is done.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::ops::{Damage, NO_VIF, OUT_OF_RANGE, UNREADABLE};

/// A sandbox, by its number in [`Model::sandboxes`]: a container's ID is never used twice.
pub type Id = usize;
pub type Addresses = BTreeSet<IpAddr>;

/// The node as it should be.
#[derive(Debug, Clone)]
pub struct Model {
    pub api: Api,
    pub sandboxes: Vec<Sandbox>,
    pub attached: BTreeMap<Id, Attached>,
    pub rest: Rest,
    pub agent_runs: bool,
    /// The agent's own IPv4 range, from its first to its last address for pods.
    pub pool: (Ipv4Addr, Ipv4Addr),
}

/// What the API server has.
#[derive(Debug, Clone, Default)]
pub struct Api {
    pub pods: BTreeMap<String, ApiPod>,
    /// The UIDs of pods that were deleted, and whether the agent that runs must know it.
    pub gone: BTreeMap<String, bool>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiPod {
    pub uid: String,
    /// See [`vif_text`].
    pub vif: u8,
}

/// A container that a runtime made.
#[derive(Debug, Clone)]
pub struct Sandbox {
    pub name: String,
    pub uid: String,
    pub container: String,
    /// Whether its path leads to a namespace.
    pub alive: bool,
    /// Counts the namespaces that its path has led to.
    pub generation: u32,
}

/// A sandbox that has an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// Those that the runtime may have named.
    pub uids: BTreeSet<String>,
    pub addresses: Addresses,
    pub mac: String,
    pub host_ifname: String,
    /// What the first ADD answered; a repeated one gives it again. `None` if the agent crashed before it could.
    pub result: Option<Value>,
    /// The namespace that it was made in.
    pub generation: u32,
    pub damage: BTreeSet<Damage>,
    /// Index of the host's interface, and when it was made: known once it is seen, and the same from then on.
    pub seen: Option<(u32, u64)>,
    /// When it was deleted without the agent: its interface is gone, and the rest goes when the agent starts.
    pub noted: Option<Instant>,
    /// Since when nobody uses it: its namespace and its pod are gone.
    pub dangles_since: Option<Instant>,
}

/// The addresses that no other pod may have yet.
#[derive(Debug, Clone, Default)]
pub struct Rest {
    /// Released between these times.
    released: BTreeMap<IpAddr, (Instant, Instant)>,
    /// Taken by an ADD of which nobody knows how far it came.
    unknown: Vec<Instant>,
}

/// An ADD, with all that matters for its answer.
#[derive(Debug, Clone)]
pub struct Add {
    pub id: Id,
    pub uid: String,
    /// The VIF in the annotations that come with the call, if they do.
    pub told: Option<u8>,
}

/// What an ADD of something that is not attached may end with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Admissible {
    pub errors: BTreeSet<u64>,
    pub wanted: Vec<Wanted>,
}

/// The addresses that an ADD gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// Any of the pools, one of each family.
    Next,
    These(Addresses),
}

/// Codes of the CNI specification, and ours from 100.
pub const UNKNOWN_CONTAINER: u64 = 3;
pub const INVALID_NETNS: u64 = 8;
pub const TRY_AGAIN_LATER: u64 = 11;
pub const NOT_AVAILABLE: u64 = 50;
pub const CHECK_FAILED: u64 = 101;
pub const VIF_REFUSED: u64 = 104;

/// How long a released address rests, by the documentation.
const COOLDOWN: Duration = Duration::from_secs(30);
/// The agent reads its clock a little before or after us.
const SLACK: Duration = Duration::from_millis(500);

/// The annotation of a pod, by its number in an operation.
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

/// The addresses of a decided VIF, in the agent's own range, where others may have them already.
fn vif_addresses(vif: u8) -> Addresses {
    let v4 = IpAddr::from([10, 244, 0, vif * 3]);
    let v6 = IpAddr::from([0xfd00, 0x10, 0x244, 0, 0, 0, 0, u16::from(vif) * 3]);
    if vif.is_multiple_of(2) { Addresses::from([v4, v6]) } else { Addresses::from([v4]) }
}

// === impl Model ===

impl Model {
    pub fn new(pool: (Ipv4Addr, Ipv4Addr)) -> Self {
        let (api, rest) = (Api::default(), Rest::default());
        Self { api, sandboxes: Vec::new(), attached: BTreeMap::new(), rest, agent_runs: true, pool }
    }

    /// What an ADD of something that is not attached may end with, whichever of these the API server has told.
    /// `others` is how many other ADDs are in work.
    pub fn admits(&self, add: &Add, apis: &[Api], others: usize) -> Admissible {
        let mut admissible = Admissible::default();
        let Some(sandbox) = self.sandboxes.get(add.id) else { return admissible };
        for api in apis {
            api.decide(&sandbox.name, add, &mut admissible);
        }
        for wanted in &admissible.wanted {
            let is_taken = match wanted {
                Wanted::Next => self.free_addresses() <= others,
                Wanted::These(addresses) => others > 0 || self.holds_any(addresses, add.id),
            };
            if is_taken {
                admissible.errors.insert(TRY_AGAIN_LATER);
            }
        }
        if !sandbox.alive {
            admissible.errors.insert(INVALID_NETNS);
            admissible.wanted.clear();
        }
        admissible
    }

    /// Whether an address is of one of the agent's own ranges.
    pub fn is_in_pools(&self, address: &IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) => (self.pool.0..=self.pool.1).contains(v4),
            IpAddr::V6(v6) => v6.segments().starts_with(&[0xfd00, 0x10, 0x244, 0]),
        }
    }

    /// All addresses that pods have.
    pub fn addresses(&self) -> Addresses {
        self.attached.values().flat_map(|it| it.addresses.iter().copied()).collect()
    }

    /// Whether an attachment's interface goes, because its namespace has ended.
    pub fn has_ended(&self, id: Id, attached: &Attached) -> bool {
        self.sandboxes.get(id).is_none_or(|it| !it.alive || it.generation != attached.generation)
    }

    /// Whether an attachment is as ADD left it.
    pub fn is_whole(&self, id: Id, attached: &Attached) -> bool {
        attached.damage.is_empty() && !self.has_ended(id, attached)
    }

    /// Whether reconciliation may remove an attachment: its namespace is gone, and its pod may be.
    pub fn may_dangle(&self, id: Id, attached: &Attached) -> bool {
        self.has_ended(id, attached) && !self.pod_is_there(id, attached)
    }

    /// Whether the API server has one of the pods that an attachment may be of.
    fn pod_is_there(&self, id: Id, attached: &Attached) -> bool {
        let pod = self.sandboxes.get(id).and_then(|it| self.api.pods.get(&it.name));
        pod.is_some_and(|pod| attached.uids.len() == 1 && attached.uids.contains(&pod.uid))
    }

    /// Notes since when attachments dangle for sure.
    pub fn note_dangling(&mut self) {
        let sure: BTreeSet<Id> = self
            .attached
            .iter()
            .filter(|(id, it)| self.agent_runs && self.has_ended(**id, it))
            .filter(|(_, it)| it.uids.iter().all(|uid| self.api.gone.get(uid) == Some(&true)))
            .map(|(id, _)| *id)
            .collect();
        for (id, attached) in &mut self.attached {
            let since = attached.dangles_since.unwrap_or_else(Instant::now);
            attached.dangles_since = sure.contains(id).then_some(since);
        }
    }

    fn holds_any(&self, addresses: &Addresses, but: Id) -> bool {
        self.attached.iter().any(|(id, it)| *id != but && !it.addresses.is_disjoint(addresses))
    }

    /// How many IPv4 addresses are free for sure.
    fn free_addresses(&self) -> usize {
        let (first, last) = self.pool;
        let is_ours = |address: &IpAddr| address.is_ipv4() && self.is_in_pools(address);
        let mut taken = self.addresses();
        taken.extend(self.rest.perhaps());
        let all = (last.to_bits() - first.to_bits()) as usize + 1;
        let taken = taken.iter().filter(|it| is_ours(it)).count() + self.rest.unknown.len();
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

    /// An agent that starts knows no more than the API server what was deleted before.
    pub fn forget(&mut self) {
        self.gone.values_mut().for_each(|is_known| *is_known = false);
    }

    fn decide(&self, name: &str, add: &Add, admissible: &mut Admissible) {
        let pod = self.pods.get(name).filter(|pod| pod.uid == add.uid);
        match (pod, self.gone.get(&add.uid)) {
            (None, Some(true)) => {
                admissible.errors.insert(UNKNOWN_CONTAINER);
                return;
            }
            (None, Some(false)) => {
                admissible.errors.insert(UNKNOWN_CONTAINER);
            }
            _ => {}
        }
        let told = add.told.filter(|vif| *vif != NO_VIF);
        let vif = match (told, pod) {
            (Some(vif), _) => vif,
            (None, Some(pod)) => pod.vif,
            (None, None) if add.told.is_some() => NO_VIF,
            // It waits for the pod, in vain.
            (None, None) => {
                admissible.errors.insert(TRY_AGAIN_LATER);
                return;
            }
        };
        let wanted = match vif {
            NO_VIF => Wanted::Next,
            OUT_OF_RANGE | UNREADABLE => {
                admissible.errors.insert(VIF_REFUSED);
                return;
            }
            vif => Wanted::These(vif_addresses(vif)),
        };
        if !admissible.wanted.contains(&wanted) {
            admissible.wanted.push(wanted);
        }
    }
}

// === impl Attached ===

impl Attached {
    /// By the answer to an ADD.
    pub fn by_result(result: &Value, uid: &str, generation: u32) -> Option<Self> {
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
            seen: None,
            noted: None,
            dangles_since: None,
        })
    }
}

// === impl Rest ===

impl Rest {
    /// These addresses were released between two times.
    pub fn release(&mut self, addresses: &Addresses, from: Instant, to: Instant) {
        self.released.extend(addresses.iter().map(|address| (*address, (from, to))));
    }

    /// Somebody may have taken an address, and given it back by now.
    pub fn release_unknown(&mut self) {
        self.unknown.push(Instant::now());
    }

    /// Forgets what has rested for sure.
    pub fn tidy(&mut self) {
        self.released.retain(|_, (_, to)| to.elapsed() < COOLDOWN + SLACK);
        self.unknown.retain(|at| at.elapsed() < COOLDOWN + SLACK);
    }

    /// Whether an address that was given out at a time rested then for sure.
    pub fn is_at_rest(&self, address: &IpAddr, at: Instant) -> bool {
        self.released.get(address).is_some_and(|(from, _)| at + SLACK < *from + COOLDOWN)
    }

    fn perhaps(&self) -> impl Iterator<Item = IpAddr> {
        self.released.keys().copied()
    }
}
