//! Deletes retired interfaces in batches.
//!
//! Deleting one link takes 31 ms, nearly all of it RCU grace periods; deleting a group of hundreds takes a
//! quarter of a second. So DEL only retires an interface, and the reaper deletes the group in the background.

use std::{sync::Arc, time::Duration};

use nix::errno::Errno;
use rtnetlink::packet_route::{
    RouteNetlinkMessage,
    link::{LinkAttribute, LinkMessage},
};
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

use super::netlink::{NetlinkError, Request, Socket};
use crate::crash::{self, Step};

/// The link group of retired interfaces, which the reaper deletes: "ferr" in ASCII.
pub const RETIRED: u32 = 0x6665_7272;
/// The link group of new interfaces without a stamp: after a crash, the next start deletes them.
pub const UNSTAMPED: u32 = RETIRED + 1;

/// A batch closes after this long without another retired interface.
const QUIET: Duration = Duration::from_millis(20);
/// The longest time that a batch stays open.
const GATHER: Duration = Duration::from_millis(80);
/// The wait before a retry, after the kernel refused.
const RETRY: Duration = Duration::from_secs(5);

/// Wakes the task that [`run`]s.
#[derive(Debug, Clone, Default)]
pub struct Reaper(Arc<Notify>);

// === impl Reaper ===

impl Reaper {
    /// Schedules a batch: an interface was retired.
    pub fn notify(&self) {
        self.0.notify_one();
    }

    /// Deletes retired interfaces until the task is dropped.
    pub async fn run(self) {
        loop {
            self.0.notified().await;
            self.gather().await;
            let failure = match tokio::task::spawn_blocking(reap_now).await {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => anyhow::Error::new(error),
                Err(panic) => anyhow::Error::new(panic),
            };
            tracing::warn!(error = format!("{failure:#}"), "cannot delete retired interfaces; retrying");
            tokio::time::sleep(RETRY).await;
            self.notify();
        }
    }

    async fn gather(&self) {
        let end = Instant::now() + GATHER;
        while timeout_at(end.min(Instant::now() + QUIET), self.0.notified()).await.is_ok() {}
    }
}

/// Deletes all retired interfaces and waits for the kernel to finish.
///
/// # Errors
/// If the kernel refuses.
pub fn reap_now() -> Result<(), NetlinkError> {
    delete_group(RETIRED)?;
    crash::point(Step::Reaped);
    Ok(())
}

/// Deletes the interfaces of a group. Those in [`UNSTAMPED`] only while no plug is in flight.
///
/// # Errors
/// If the kernel refuses; one interface that cannot be deleted keeps the whole group.
pub fn delete_group(group: u32) -> Result<(), NetlinkError> {
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::Group(group));
    let request = Request::change("delete a group of interfaces", RouteNetlinkMessage::DelLink(message));
    match Socket::open()?.batch(vec![request]) {
        // The group is empty.
        Err(error) if error.is(Errno::ENODEV) => Ok(()),
        result => result.map(drop),
    }
}
