//! Deletes dead interfaces, many at a time.
//!
//! To delete one link and wait for it costs 31 ms, nearly all of it waiting for the kernel's grace periods;
//! hundreds of one group cost a quarter of a second together. So DEL only takes an interface out of service, and
//! here is where it is deleted.

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

/// The link group of interfaces that are to be deleted: "ferr".
pub const DEAD: u32 = 0x6665_7272;
/// The link group of interfaces that have no stamp yet: one that a crash leaves in it is deleted at start.
pub const UNBORN: u32 = DEAD + 1;

/// Dead interfaces gather until none has come for this long, and are then deleted together.
const QUIET: Duration = Duration::from_millis(20);
/// The longest that they gather.
const GATHER: Duration = Duration::from_millis(80);
/// How long to wait after the kernel refused.
const RETRY: Duration = Duration::from_secs(5);

/// Wakes the task that [`run`]s.
#[derive(Debug, Clone, Default)]
pub struct Reaper(Arc<Notify>);

// === impl Reaper ===

impl Reaper {
    /// Says that an interface was buried.
    pub fn notify(&self) {
        self.0.notify_one();
    }

    /// Deletes what is buried, for ever.
    pub async fn run(self) {
        loop {
            self.0.notified().await;
            self.gather().await;
            let failure = match tokio::task::spawn_blocking(reap_now).await {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => anyhow::Error::new(error),
                Err(panic) => anyhow::Error::new(panic),
            };
            tracing::warn!(
                error = format!("{failure:#}"),
                "dead interfaces could not be deleted; trying again"
            );
            tokio::time::sleep(RETRY).await;
            self.notify();
        }
    }

    async fn gather(&self) {
        let end = Instant::now() + GATHER;
        while timeout_at(end.min(Instant::now() + QUIET), self.0.notified()).await.is_ok() {}
    }
}

/// Deletes all dead interfaces and waits until they are gone.
///
/// # Errors
/// If the kernel refuses.
pub fn reap_now() -> Result<(), NetlinkError> {
    delete_group(DEAD)?;
    crash::point(Step::Reaped);
    Ok(())
}

/// Deletes what an earlier agent left in either group. Nothing may be in the making.
///
/// # Errors
/// If the kernel refuses.
pub fn reap_at_start() -> Result<(), NetlinkError> {
    delete_group(UNBORN)?;
    delete_group(DEAD)
}

fn delete_group(group: u32) -> Result<(), NetlinkError> {
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::Group(group));
    let request = Request::change("delete a group of interfaces", RouteNetlinkMessage::DelLink(message));
    match Socket::open()?.batch(vec![request]) {
        // It is empty.
        Err(error) if error.is(Errno::ENODEV) => Ok(()),
        result => result.map(drop),
    }
}
