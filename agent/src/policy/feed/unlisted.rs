//! Opens new pods where policies have never been listed, if the operator wants that.

use std::time::Duration;

use tokio::time::sleep;

use super::{Feed, follow, state::Phase};
use crate::{api::Api, watch::Watches};

// === impl Feed ===

impl Feed {
    /// Waits, and then takes the cluster for one without policies until the first list arrives. Only where no
    /// policy can be known: an earlier agent leaves rows that judge pods, or checkpoints.
    pub(super) async fn open_unlisted(&self, after: Option<Duration>, watches: &Watches, api: &Api) {
        let Some(after) = after else { return };
        while self.inner().state.phase() == Phase::Unlisted {
            sleep(after).await;
            // Not once the watches run: they write the checkpoints that are looked for.
            if self.inner().state.phase() != Phase::Unlisted || self.were_listed(watches, api).await {
                continue;
            }
            tracing::warn!(
                after_s = after.as_secs(),
                "policies have never been listed: new pods are open until they are (--policy-unlisted=open)"
            );
            self.update(|state| state.assume_open());
        }
    }

    async fn were_listed(&self, watches: &Watches, api: &Api) -> bool {
        // Which server has the policies is not known yet.
        if api.url().await.is_err() || self.enforcer.judges_pods() {
            return true;
        }
        // Of any server and any layout, usable or not: an agent of this node has listed policies.
        watches.had_checkpoint(&follow::NETWORK_POLICIES).await
            || watches.had_checkpoint(&follow::CLUSTER_POLICIES).await
    }
}
