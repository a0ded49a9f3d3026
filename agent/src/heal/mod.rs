//! Self-healing: what somebody else does to pods' interfaces, routes, filters and map entries is noticed and put right.
//!
//! ```text
//!  the kernel's notifications ─▶ gathered ─▶ the attachments they are about ─┐
//!  a period, a start, or notifications that were lost ─▶ a look at all ──────┴▶ under the key's lock, a second look
//!                                                                                │ it is still so
//!                                                        counted, said once, put right, looked at a third time
//! ```
//!
//! [`look`] has what a deviation is, for this and for `ferrulectl verify` alike. Maps tell nobody when they are changed: what
//! happens to them is found by the period. None of it is on a call's path: an attachment that a call works on is looked at
//! later.

mod deviation;
mod healer;
mod look;
mod patience;
mod repair;

use std::{collections::HashSet, convert::Infallible, net::IpAddr, sync::Arc, time::Duration};

use nix::time::{ClockId, clock_gettime};
use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep, sleep_until, timeout_at},
};

pub use deviation::{Deviation, Foreign, Kind, Subject};
pub use healer::{Findings, Healer};

use crate::{
    chain::chain,
    health::Reporter,
    plug::monitor::{Change, Monitor},
    registry::{Attachment, State},
};

/// What notifications were about.
#[derive(Debug, Default)]
struct Gathered {
    set: HashSet<u32>,
    removed: HashSet<u32>,
    replaced: HashSet<IpAddr>,
    /// Too much, or nobody knows what.
    all: bool,
}

/// How long notifications gather: what is broken by several requests is looked at once.
const GATHER: Duration = Duration::from_millis(80);
/// From one look at everything to the next, at least.
const PAUSE: Duration = Duration::from_secs(2);
/// More than are looked at one by one.
const MANY: usize = 64;
/// Interfaces that are remembered while notifications gather.
const CAPACITY: usize = 4096;
/// What happens to a new attachment this soon after its beginning is its own making, most likely: it is looked at later, once.
const MAKING: Duration = Duration::from_secs(2);
/// How long to wait after the kernel has refused.
const RETRY: Duration = Duration::from_secs(5);

// === impl Healer ===

impl Healer {
    /// Looks after everything, for ever, and looks at all of it in each period.
    pub async fn run(self: Arc<Self>, period: Duration, health: Reporter) {
        loop {
            let Err(error) = self.follow(period, &health).await;
            health.unhealthy(format!(
                "what others change of pods' interfaces is missed; trying again: {error:#}"
            ));
            sleep(RETRY).await;
        }
    }

    async fn follow(self: &Arc<Self>, period: Duration, health: &Reporter) -> anyhow::Result<Infallible> {
        let mut monitor = Monitor::open()?;
        let (mut next_all, mut last_all) = (Instant::now(), None::<Instant>);
        loop {
            let (mut due, next) = self.due();
            let wake = next.map_or(next_all, |next| next_all.min(next.into()));
            let mut gathered = Gathered::default();
            if due.is_empty() {
                tokio::select! {
                    change = monitor.next() => {
                        gathered.add(change?);
                        // Woken once for all of them, and not by each: an ADD makes dozens.
                        sleep(GATHER).await;
                        while let Ok(change) = timeout_at(Instant::now(), monitor.next()).await {
                            gathered.add(change?);
                        }
                    }
                    () = sleep_until(wake) => {}
                }
            }
            if !gathered.is_empty() && !gathered.all {
                for it in self.attachments(|it| gathered.is_about(it)) {
                    match MAKING.checked_sub(age(&it)) {
                        None => drop(due.insert(it.key.clone())),
                        Some(wait) => self.look_later(&it.key, (Instant::now() + wait).into_std()),
                    }
                }
            }
            if gathered.all || due.len() > MANY {
                // Where a routing daemon has a thousand routes changed in a second, this may be for ever.
                next_all = next_all.min(last_all.map_or_else(Instant::now, |last| last + PAUSE));
                due.clear();
            }
            let all = Instant::now() >= next_all;
            if all {
                (next_all, last_all) = (Instant::now() + period, Some(Instant::now()));
            } else if due.is_empty() {
                continue;
            }
            let this = Arc::clone(self);
            let looked = spawn_blocking(move || if all { this.all() } else { this.some(&due) }).await?;
            looked.map_err(|error| anyhow::anyhow!(chain(&error)))?;
            next_all = self.take_all().map_or(next_all, |at| next_all.min(at.into()));
            health.healthy(if self.repairs() {
                "what others change of pods' interfaces is put right"
            } else {
                "what others change of pods' interfaces is told and counted, and left"
            });
        }
    }
}

// === impl Gathered ===

impl Gathered {
    fn add(&mut self, change: Change) {
        match change {
            Change::Set(ifindex) => drop(self.set.insert(ifindex)),
            Change::Removed(ifindex) => drop(self.removed.insert(ifindex)),
            Change::Replaced(address) => drop(self.replaced.insert(address)),
            Change::Lost | Change::NotForwarded => self.all = true,
        }
        self.all |= self.set.len() + self.removed.len() + self.replaced.len() > CAPACITY;
    }

    fn is_empty(&self) -> bool {
        !self.all && self.set.is_empty() && self.removed.is_empty() && self.replaced.is_empty()
    }

    /// Whether they may be about an attachment.
    fn is_about(&self, it: &Attachment) -> bool {
        let Some(ifindex) = it.host.ifindex().filter(|_| it.state == State::Attached) else { return false };
        self.removed.contains(&ifindex)
            || self.set.contains(&ifindex)
            || it.vif.addresses.iter().any(|address| self.replaced.contains(&address))
    }
}

/// By the clock that nobody sets.
fn age(it: &Attachment) -> Duration {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default();
    now.saturating_sub(Duration::from_nanos(it.created_since_boot_ns))
}
