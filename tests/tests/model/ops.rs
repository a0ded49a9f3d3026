//! What happens to a node: operations, made from a seed, told in words, and written as JSON for a replay.
//!
//! They name their objects by numbers that are taken modulo what there is, so that any part of a list makes sense.

use fastrand::Rng;
use serde::{Deserialize, Serialize};

/// One thing that happens. What makes no sense at its time does nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// A pod comes at the API, and gets a sandbox. If there is one of its name, only the sandbox is new.
    MakePod { slot: u8, vif: u8 },
    /// The pod is deleted from the API, and made again under its name, with a sandbox.
    Recreate { slot: u8, vif: u8 },
    /// Something happens at the API.
    Event(Event),
    /// The calls at once, with events between them; perhaps the agent ends meanwhile, and is started again.
    Calls { calls: Vec<Call>, events: Vec<Event>, end: Option<End> },
    /// A sandbox's namespace ends without a DEL.
    EndNetns { pick: u16 },
    /// A namespace ends, and another takes its path.
    ReplaceNetns { pick: u16 },
    /// Somebody breaks an attachment by hand.
    Damage { pick: u16, how: Damage },
    /// The agent goes, by SIGKILL or else by SIGTERM; things happen; and it comes back, while there are calls.
    Away { kill: bool, meanwhile: Vec<Op>, at_start: Vec<Call> },
    /// Packets flow between two pods, and to the node.
    Ping { from: u16, to: u16 },
}

/// One call of the runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// `told`: with the pod's annotations, as runtimes hand them over.
    Add {
        pick: u16,
        told: bool,
        uid: Uid,
    },
    Del {
        pick: u16,
        empty_netns: bool,
    },
    Check {
        pick: u16,
    },
    /// Each bit of `keep` is an attachment that stays valid.
    Gc {
        keep: u64,
    },
    Status,
}

/// Whose the runtime says a sandbox is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Uid {
    Own,
    /// That of the oldest pod that had the name.
    Oldest,
    /// Of a pod that never was.
    Invented,
}

/// A change at the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    Delete { slot: u8 },
    Annotate { slot: u8, vif: u8 },
}

/// How the agent ends in the middle of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    pub kill: bool,
    pub after_us: u32,
}

/// What is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Damage {
    HostRoute,
    FromPod,
    ToPod,
    VifsEntry,
    EndpointEntry,
    Link,
    PodRoute,
    PodAddress,
}

/// What kind of list is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// One call at a time.
    InTurn,
    /// Most calls several at once.
    AtOnce,
}

/// How many names pods have.
pub const SLOTS: u8 = 7;
/// The numbers of decided VIFs that are not in the range: none, one out of it, and one that cannot be read.
pub const NO_VIF: u8 = 0;
pub const OUT_OF_RANGE: u8 = 9;
pub const UNREADABLE: u8 = 10;

/// A list of operations.
pub fn make(seed: u64, mode: Mode, count: usize) -> Vec<Op> {
    let mut rng = Rng::with_seed(seed);
    (0..count).map(|_| op(&mut rng, mode)).collect()
}

fn op(rng: &mut Rng, mode: Mode) -> Op {
    let pick = rng.u16(..);
    match rng.u8(..100) {
        0..14 => Op::MakePod { slot: rng.u8(..SLOTS), vif: vif(rng) },
        14..19 => Op::Recreate { slot: rng.u8(..SLOTS), vif: vif(rng) },
        19..24 => Op::Event(event(rng)),
        24..26 => Op::EndNetns { pick },
        26..28 => Op::ReplaceNetns { pick },
        28..32 => Op::Damage { pick, how: damage(rng) },
        32..37 => Op::Ping { from: pick, to: rng.u16(..) },
        37..39 => {
            let meanwhile = (0..rng.usize(..5)).map(|_| without_agent(rng));
            let meanwhile = meanwhile.collect();
            let calls = if mode == Mode::InTurn { 0 } else { rng.u16(..4) };
            let at_start = (0..calls).map(|number| call(rng, pick.wrapping_add(number % 2)));
            let at_start = at_start.collect();
            Op::Away { kill: rng.bool(), meanwhile, at_start }
        }
        _ if mode == Mode::InTurn => {
            Op::Calls { calls: vec![call(rng, pick)], events: Vec::new(), end: None }
        }
        _ => at_once(rng),
    }
}

fn without_agent(rng: &mut Rng) -> Op {
    let pick = rng.u16(..);
    match rng.u8(..10) {
        0 => Op::MakePod { slot: rng.u8(..SLOTS), vif: vif(rng) },
        1..3 => Op::Event(event(rng)),
        3 => Op::EndNetns { pick },
        4 => Op::Damage { pick, how: damage(rng) },
        5 => Op::Ping { from: pick, to: rng.u16(..) },
        _ => Op::Calls { calls: vec![call(rng, pick)], events: Vec::new(), end: None },
    }
}

/// Several calls, most of them of one sandbox or its neighbours.
fn at_once(rng: &mut Rng) -> Op {
    let focus = rng.u16(..);
    let calls = (0..rng.usize(2..=6)).map(|_| {
        let pick = match rng.u8(..10) {
            0..6 => focus,
            6 => focus.wrapping_add(1),
            _ => rng.u16(..),
        };
        call(rng, pick)
    });
    let calls = calls.collect();
    let events = if rng.u8(..6) == 0 { vec![event(rng)] } else { Vec::new() };
    let end = (rng.u8(..10) == 0).then(|| End { kill: rng.u8(..4) > 0, after_us: rng.u32(..80_000) });
    Op::Calls { calls, events, end }
}

fn call(rng: &mut Rng, pick: u16) -> Call {
    match rng.u8(..100) {
        0..52 => {
            let uid = match rng.u8(..20) {
                0 => Uid::Oldest,
                1 => Uid::Invented,
                _ => Uid::Own,
            };
            Call::Add { pick, told: rng.u8(..4) > 0, uid }
        }
        52..82 => Call::Del { pick, empty_netns: rng.u8(..3) == 0 },
        82..95 => Call::Check { pick },
        // Most of them stay valid.
        95..98 => Call::Gc { keep: rng.u64(..) | rng.u64(..) | rng.u64(..) },
        _ => Call::Status,
    }
}

fn event(rng: &mut Rng) -> Event {
    let slot = rng.u8(..SLOTS);
    if rng.u8(..5) < 2 {
        Event::Delete { slot }
    } else {
        Event::Annotate { slot, vif: rng.u8(..=UNREADABLE) }
    }
}

/// Most pods are left to the agent's own IPAM.
fn vif(rng: &mut Rng) -> u8 {
    if rng.u8(..3) > 0 { NO_VIF } else { rng.u8(..=UNREADABLE) }
}

fn damage(rng: &mut Rng) -> Damage {
    Damage::ALL.get(rng.usize(..Damage::ALL.len())).copied().unwrap_or(Damage::Link)
}

// === impl Damage ===

impl Damage {
    pub const ALL: [Self; 8] = [
        Self::HostRoute,
        Self::FromPod,
        Self::ToPod,
        Self::VifsEntry,
        Self::EndpointEntry,
        Self::Link,
        Self::PodRoute,
        Self::PodAddress,
    ];

    /// Whether it is on the host, where a start of the agent may heal it.
    pub fn is_on_host(self) -> bool {
        !matches!(self, Self::PodRoute | Self::PodAddress)
    }
}
