//! The task: from changes of the nodes and of the kernel to passes of the keeper.

use std::{convert::Infallible, sync::Arc, time::Duration};

use tokio::{
    sync::watch::Receiver,
    task::spawn_blocking,
    time::{Instant, sleep, sleep_until},
};

use super::{Keeper, Nodes};
use crate::{
    memory::release_when_idle,
    plug::nodes::changes::{Changes, Concern},
};

/// How long the kernel's notifications are collected: one pass serves all of them.
const GATHER: Duration = Duration::from_millis(50);
/// The least time between two passes that notifications cause: a routing daemon may change a thousand routes
/// each second for hours.
const PAUSE: Duration = Duration::from_secs(1);
/// After a failure.
const RETRY: Duration = Duration::from_secs(5);

// === impl Keeper ===

impl Keeper {
    /// Follows nodes and kernel, and compares everything in each period, until the task is dropped.
    pub async fn run(self: Arc<Self>, mut nodes: Receiver<Arc<Nodes>>, period: Duration) {
        loop {
            let Err(error) = self.run_until_failure(&mut nodes, period).await;
            tracing::warn!(error = format!("{error:#}"), "cannot follow the routes to other nodes; retrying");
            sleep(RETRY).await;
        }
    }

    async fn run_until_failure(
        self: &Arc<Self>,
        nodes: &mut Receiver<Arc<Nodes>>,
        period: Duration,
    ) -> anyhow::Result<Infallible> {
        let mut changes = Changes::open()?;
        // Without an API server, and while the agent stops.
        let mut are_final = false;
        // What has changed before is not known.
        let mut concern = Concern::OtherRoutes;
        let mut whole_due = Instant::now();
        loop {
            if concern == Concern::OtherRoutes || whole_due <= Instant::now() {
                self.read_other_routes_again();
                whole_due = Instant::now() + period;
            }
            let (this, current) = (Arc::clone(self), Arc::clone(&nodes.borrow_and_update()));
            let pass = move || {
                let is_good = this.update(current);
                release_when_idle();
                is_good
            };
            let is_good = spawn_blocking(pass).await?;
            let passed = Instant::now();
            let mut due = passed + if is_good { period } else { RETRY };
            let scope = self.decided().scope();
            let mut gather = None;
            concern = Concern::Nothing;
            loop {
                tokio::select! {
                    changed = nodes.changed(), if !are_final => {
                        are_final = changed.is_err();
                        break;
                    }
                    arrived = changes.arrival(), if gather.is_none() => {
                        arrived?;
                        gather = Some(Instant::now() + GATHER);
                    }
                    () = sleep_until(gather.unwrap_or(due)), if gather.is_some() => {
                        gather = None;
                        concern = concern.max(changes.read(&scope)?);
                        if concern > Concern::Nothing {
                            due = due.min(passed + PAUSE);
                        }
                    }
                    () = sleep_until(due) => break,
                }
            }
        }
    }
}
