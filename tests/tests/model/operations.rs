//! Operations on a node: generated from a seed, and written as JSON for a replay.
//!
//! Operations refer to objects by numbers modulo the current count, so that every sublist is a valid test.

use fastrand::Rng;
use serde::{Deserialize, Serialize};

use crate::{nodes::NodeEvent, policies::PolicyEvent};

/// One operation; a no-op if it does not apply to the current state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// Creates a pod in the API and a sandbox. If the pod exists, creates only the sandbox.
    MakePod {
        slot: u8,
        vif: u8,
    },
    /// Deletes a pod from the API and recreates it under the same name, with a sandbox.
    Recreate {
        slot: u8,
        vif: u8,
    },
    Event(Event),
    Node(NodeEvent),
    Policy(PolicyEvent),
    /// Concurrent calls and API events; optionally, the agent ends meanwhile and is restarted afterwards.
    Calls {
        calls: Vec<Call>,
        events: Vec<Event>,
        end: Option<End>,
    },
    /// Ends a sandbox's namespace without a DEL.
    EndNetns {
        pick: u16,
    },
    /// Replaces a namespace by another one at the same path.
    ReplaceNetns {
        pick: u16,
    },
    /// Damages an attachment in the kernel or the maps.
    Damage {
        pick: u16,
        how: Damage,
    },
    /// Ends the agent by SIGKILL or SIGTERM, applies operations, and restarts the agent during calls.
    AgentDown {
        kill: bool,
        meanwhile: Vec<Op>,
        at_start: Vec<Call>,
    },
    /// Pings from one pod to another and to the node.
    Ping {
        from: u16,
        to: u16,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// `annotated`: the call carries the pod's annotations, as containerd passes them.
    Add {
        pick: u16,
        annotated: bool,
        uid: Uid,
    },
    Del {
        pick: u16,
        empty_netns: bool,
    },
    Check {
        pick: u16,
    },
    /// Each bit of `keep` marks an attachment as valid.
    Gc {
        keep: u64,
    },
    Status,
}

/// The pod UID that the runtime passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Uid {
    Own,
    /// UID of the oldest pod with this name.
    Oldest,
    /// UID of a pod that never existed.
    Invented,
}

/// An API event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    Delete { slot: u8 },
    Annotate { slot: u8, vif: u8 },
}

/// How the agent ends during calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    pub kill: bool,
    pub after_us: u32,
}

/// A single deviation.
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// One call at a time.
    Sequential,
    /// Mostly several concurrent calls.
    Concurrent,
}

/// Number of pod names.
pub const SLOTS: u8 = 7;
/// Special VIF numbers: no VIF, an address outside the range, and an unreadable annotation.
pub const NO_VIF: u8 = 0;
pub const OUT_OF_RANGE: u8 = 9;
pub const UNREADABLE: u8 = 10;

/// Generates operations from a seed.
pub fn make(seed: u64, mode: Mode, count: usize) -> Vec<Op> {
    let mut rng = Rng::with_seed(seed);
    (0..count).map(|_| op(&mut rng, mode)).collect()
}

fn op(rng: &mut Rng, mode: Mode) -> Op {
    let pick = rng.u16(..);
    // With concurrent calls, an ADD could come before or after a policy is in force.
    let kinds = if mode == Mode::Sequential { 120 } else { 100 };
    match rng.u8(..kinds) {
        100.. => Op::Policy(PolicyEvent::random(rng)),
        0..12 => Op::MakePod { slot: rng.u8(..SLOTS), vif: vif(rng) },
        12..16 => Op::Recreate { slot: rng.u8(..SLOTS), vif: vif(rng) },
        16..19 => Op::Event(event(rng)),
        19..24 => Op::Node(NodeEvent::random(rng)),
        24..26 => Op::EndNetns { pick },
        26..28 => Op::ReplaceNetns { pick },
        28..32 => Op::Damage { pick, how: damage(rng) },
        32..37 => Op::Ping { from: pick, to: rng.u16(..) },
        37..39 => {
            let meanwhile = (0..rng.usize(..5)).map(|_| without_agent(rng, mode));
            let meanwhile = meanwhile.collect();
            let calls = if mode == Mode::Sequential { 0 } else { rng.u16(..4) };
            let at_start = (0..calls).map(|number| call(rng, pick.wrapping_add(number % 2)));
            let at_start = at_start.collect();
            Op::AgentDown { kill: rng.bool(), meanwhile, at_start }
        }
        _ if mode == Mode::Sequential => {
            Op::Calls { calls: vec![call(rng, pick)], events: Vec::new(), end: None }
        }
        _ => concurrent_calls(rng),
    }
}

fn without_agent(rng: &mut Rng, mode: Mode) -> Op {
    let pick = rng.u16(..);
    let kinds = if mode == Mode::Sequential { 11 } else { 10 };
    match rng.u8(..kinds) {
        10.. => Op::Policy(PolicyEvent::random(rng)),
        0 => Op::MakePod { slot: rng.u8(..SLOTS), vif: vif(rng) },
        1 => Op::Event(event(rng)),
        2 => Op::Node(NodeEvent::random(rng)),
        3 => Op::EndNetns { pick },
        4 => Op::Damage { pick, how: damage(rng) },
        5 => Op::Ping { from: pick, to: rng.u16(..) },
        _ => Op::Calls { calls: vec![call(rng, pick)], events: Vec::new(), end: None },
    }
}

/// Several calls, mostly on one sandbox or its neighbours.
fn concurrent_calls(rng: &mut Rng) -> Op {
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
            Call::Add { pick, annotated: rng.u8(..4) > 0, uid }
        }
        52..82 => Call::Del { pick, empty_netns: rng.u8(..3) == 0 },
        82..95 => Call::Check { pick },
        // Three draws: most attachments stay valid.
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

/// Most pods get their address from the agent's IPAM.
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

    /// Whether the damage is on the host, where a start of the agent may repair it.
    pub fn is_on_host(self) -> bool {
        !matches!(self, Self::PodRoute | Self::PodAddress)
    }
}
