//! The task: from notifications and the period to passes of the healer.

use std::{
    collections::HashSet, convert::Infallible, future::pending, io, net::IpAddr, sync::Arc, time::Duration,
};

use nix::time::{ClockId, clock_gettime};
use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep, sleep_until},
};

use super::Healer;
use crate::{
    chain::chain,
    health::Reporter,
    plug::{
        monitor::{self, Monitor, Notification},
        netconf::{Forwarding, Scope},
        nft::changes::Changes,
    },
    registry::{Attachment, State},
};

/// What the collected notifications name.
#[derive(Debug, Default)]
struct Collected {
    links: HashSet<u32>,
    replaced_routes: HashSet<IpAddr>,
    /// Too many, or the kernel dropped some: anything may have changed.
    everything: bool,
}

/// How long notifications are collected: several requests of one change cause one pass.
const GATHER: Duration = Duration::from_millis(80);
/// The least time between two passes over everything.
const PAUSE: Duration = Duration::from_secs(2);
/// More attachments than this are examined by a pass over everything.
const MANY: usize = 64;
/// Bounds the collection.
const CAPACITY: usize = 4096;
/// Notifications about an attachment this young stem from its own ADD, most likely: one examination after
/// that time serves all of them.
const YOUNG: Duration = Duration::from_secs(2);
/// The wait before a retry, after the kernel refused.
const RETRY: Duration = Duration::from_secs(5);

// === impl Healer ===

impl Healer {
    /// Examines what notifications name, and everything in each period, until the task is dropped.
    pub async fn run(self: Arc<Self>, period: Duration, health: Reporter) {
        loop {
            let Err(error) = self.run_until_failure(period, &health).await;
            health.unhealthy(format!("cannot follow changes of pods' interfaces; retrying: {error:#}"));
            sleep(RETRY).await;
        }
    }

    async fn run_until_failure(
        self: &Arc<Self>,
        period: Duration,
        health: &Reporter,
    ) -> anyhow::Result<Infallible> {
        let mut monitor = Monitor::open(monitor::POD_INTERFACES)?;
        // A kernel without nftables has no table either.
        let mut tables = Changes::open().ok();
        let (mut next_full, mut last_full) = (Instant::now(), None::<Instant>);
        loop {
            let (mut due, next) = self.take_due();
            let wake = next.map_or(next_full, |next| next_full.min(next.into()));
            let mut collected = Collected::default();
            if due.is_empty() {
                tokio::select! {
                    arrived = monitor.arrival() => {
                        arrived?;
                        // One wake-up for a burst: an ADD causes dozens of notifications.
                        sleep(GATHER).await;
                        monitor.read(|notification| collected.add(notification))?;
                    }
                    changed = next_change(&mut tables) => {
                        changed?;
                        sleep(GATHER).await;
                        collected.everything = true;
                    }
                    () = sleep_until(wake) => {}
                }
            }
            if !collected.is_empty() && !collected.everything {
                for it in self.attachments(|it| collected.concerns(it)) {
                    match YOUNG.checked_sub(age(&it)) {
                        None => drop(due.insert(it.key.clone())),
                        Some(wait) => self.examine_later(&it.key, (Instant::now() + wait).into_std()),
                    }
                }
            }
            if collected.everything || due.len() > MANY {
                // A routing daemon may change a thousand routes each second for hours.
                next_full = next_full.min(last_full.map_or_else(Instant::now, |last| last + PAUSE));
                due.clear();
            }
            let is_full = Instant::now() >= next_full;
            if is_full {
                (next_full, last_full) = (Instant::now() + period, Some(Instant::now()));
            } else if due.is_empty() {
                continue;
            }
            self.metrics().pass(if is_full { "everything" } else { "attachments" });
            let this = Arc::clone(self);
            let pass = move || if is_full { this.pass_over_all() } else { this.pass_over(&due) };
            spawn_blocking(pass).await?.map_err(|error| anyhow::anyhow!(chain(&error)))?;
            next_full = self.take_full_pass_due().map_or(next_full, |at| next_full.min(at.into()));
            health.healthy(if self.repairs() {
                "deviations of pods' interfaces are found and repaired"
            } else {
                "deviations of pods' interfaces are found, counted and not repaired"
            });
        }
    }
}

/// Waits for the next change of the nftables table.
async fn next_change(tables: &mut Option<Changes>) -> io::Result<()> {
    match tables {
        Some(tables) => tables.next().await,
        None => pending().await,
    }
}

// === impl Collected ===

impl Collected {
    fn add(&mut self, notification: Notification) {
        match notification {
            Notification::Link(ifindex) | Notification::OnLink(ifindex) => drop(self.links.insert(ifindex)),
            Notification::RouteReplaced(address) => drop(self.replaced_routes.insert(address)),
            Notification::Forwarding(Forwarding { on: false, scope: Scope::Node, .. }) => {
                self.everything = true
            }
            // For IPv6 the kernel takes the node-wide setting.
            Notification::Forwarding(Forwarding { on: false, scope: Scope::Interface(ifindex), is_ipv4 }) => {
                if is_ipv4 {
                    self.links.insert(ifindex);
                }
            }
            Notification::RangeRouteRemoved | Notification::Overrun => self.everything = true,
            Notification::Forwarding(_) | Notification::DefaultRoute | Notification::Address => {}
        }
        self.everything |= self.links.len() + self.replaced_routes.len() > CAPACITY;
    }

    fn is_empty(&self) -> bool {
        !self.everything && self.links.is_empty() && self.replaced_routes.is_empty()
    }

    fn concerns(&self, it: &Attachment) -> bool {
        let Some(ifindex) = it.host.ifindex().filter(|_| it.state == State::Attached) else { return false };
        self.links.contains(&ifindex)
            || it.vif.addresses.iter().any(|address| self.replaced_routes.contains(&address))
    }
}

/// By the clock that cannot be set.
fn age(it: &Attachment) -> Duration {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default();
    now.saturating_sub(Duration::from_nanos(it.created_since_boot_ns))
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    fn collected(notification: Notification) -> Collected {
        let mut collected = Collected::default();
        collected.add(notification);
        collected
    }

    #[test]
    fn forwarding_matters_when_it_is_turned_off() {
        let forwarding =
            |is_ipv4, scope, on| collected(Notification::Forwarding(Forwarding { is_ipv4, scope, on }));
        assert!(forwarding(false, Scope::Node, false).everything);
        assert_eq!(forwarding(true, Scope::Interface(7), false).links, [7].into());
        assert!(forwarding(true, Scope::Node, true).is_empty());
        assert!(forwarding(false, Scope::Interface(7), false).is_empty(), "IPv6 is node-wide");
    }

    #[tokio::test(start_paused = true)]
    async fn without_nftables_the_table_does_not_change() {
        assert!(timeout(Duration::from_secs(3600), next_change(&mut None)).await.is_err());
    }

    #[test]
    fn more_links_and_addresses_than_4096_are_everything() {
        let mut collected = Collected::default();
        (0..4000).for_each(|index| collected.add(Notification::Link(index)));
        (0..96).for_each(|last| {
            collected.add(Notification::RouteReplaced([10, 0, 0, last].into()));
        });
        assert!(!collected.everything, "4096");
        collected.add(Notification::OnLink(1));
        assert!(!collected.everything, "known already");
        collected.add(Notification::OnLink(4000));
        assert!(collected.everything);
    }

    #[test]
    fn an_attachment_is_concerned_by_its_link_and_its_addresses() {
        let mut it = crate::desired::tests::one("a", 2, 7);
        let of = |notifications: &[Notification], it: &Attachment| {
            let mut collected = Collected::default();
            notifications.iter().for_each(|it| collected.add(*it));
            collected.concerns(it)
        };
        let route = |address: &str| Notification::RouteReplaced(address.parse().unwrap());
        assert!(of(&[Notification::Link(7)], &it) && of(&[Notification::OnLink(7)], &it));
        assert!(of(&[route("10.0.0.2")], &it) && of(&[route("fd00::2")], &it));
        assert!(!of(&[Notification::Link(8), route("10.0.0.3")], &it));
        it.state = State::Unplugging;
        assert!(!of(&[Notification::Link(7), route("10.0.0.2")], &it), "a call works on it");
    }

    #[test]
    fn a_link_an_address_or_lost_notifications_make_a_collection() {
        assert!(Collected::default().is_empty());
        for notification in [
            Notification::Link(7),
            Notification::RouteReplaced("10.0.0.2".parse().unwrap()),
            Notification::Overrun,
        ] {
            assert!(!collected(notification).is_empty(), "{notification:?}");
        }
    }

    #[test]
    fn default_routes_and_addresses_do_not_concern_pods_interfaces() {
        for notification in [Notification::DefaultRoute, Notification::Address] {
            assert!(collected(notification).is_empty());
        }
        assert!(collected(Notification::Overrun).everything);
        assert!(collected(Notification::RangeRouteRemoved).everything);
    }
}
