//! What judges a pod: the word `subject` of the pod's row in `VIFS`.

use agent_common::{
    VifEntry,
    policy::{PackedSubject, Subject, SubjectChange},
};
use aya_ebpf::programs::TcContext;

use crate::vifs;

/// The word, read once: the agent changes it while packets pass.
#[derive(Clone, Copy)]
pub struct Judge(u64);

/// Both rulesets are open, whatever the table and the epoch.
const OPEN: u64 = word(PackedSubject { ingress: PackedSubject::OPEN, egress: PackedSubject::OPEN, epoch: 0 });

const fn word(subject: PackedSubject) -> u64 {
    // SAFETY: integers without padding, as many bytes.
    unsafe { core::mem::transmute(subject) }
}

/// Stores what judges a pod in the pod's row. Whether there is a row.
#[inline(always)]
pub fn set(ctx: &TcContext) -> bool {
    let Ok(change) = ctx.load::<SubjectChange>(0) else { return false };
    let Some(subject) = vifs::subject(change.ifindex) else { return false };
    // SAFETY: an aligned field of an entry, which stays writable until the program returns. Programs on other
    // CPUs read it as a whole.
    unsafe { subject.cast::<u64>().write_volatile(word(change.subject)) };
    true
}

// === impl Judge ===

impl Judge {
    /// No policy judges.
    pub const OPEN: Self = Self(OPEN);

    #[inline(always)]
    pub fn of(vif: &VifEntry) -> Self {
        // SAFETY: an aligned field. Volatile: `set` writes it on other CPUs.
        Self(unsafe { (&raw const vif.subject).cast::<u64>().read_volatile() })
    }

    /// What judges the pod at a host interface; unknown without a pod.
    #[inline(always)]
    pub fn at(ifindex: u32) -> Self {
        vifs::find(ifindex).map_or(Self(0), Self::of)
    }

    #[inline(always)]
    pub fn from_word(word: u64) -> Self {
        Self(word)
    }

    #[inline(always)]
    pub fn word(self) -> u64 {
        self.0
    }

    #[inline(always)]
    pub fn is_open(self) -> bool {
        self.0 & OPEN == OPEN
    }

    #[inline(always)]
    pub fn is_known(self) -> bool {
        self.0 != 0
    }

    /// Policies judge the pod, in one direction or both.
    #[inline(always)]
    pub fn is_judged(self) -> bool {
        self.is_known() && !self.is_open()
    }

    /// The sum of both ends' epochs.
    #[inline(always)]
    pub fn sum(self, other: Self) -> u32 {
        self.unpack().epoch.wrapping_add(other.unpack().epoch)
    }

    #[inline(always)]
    pub fn unpack(self) -> Subject {
        // SAFETY: integers without padding, as many bytes.
        let packed: PackedSubject = unsafe { core::mem::transmute(self.0) };
        packed.unpack()
    }
}
