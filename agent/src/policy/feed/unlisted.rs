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
            if !self.were_listed(watches, api).await {
                self.update(|state| state.assume_open());
            }
        }
    }

    async fn were_listed(&self, watches: &Watches, api: &Api) -> bool {
        // Checkpoints are those of a server.
        if api.url().await.is_err() || self.enforcer.judges_pods() {
            return true;
        }
        watches.has_checkpoint(&follow::NETWORK_POLICIES).await
            || watches.has_checkpoint(&follow::CLUSTER_POLICIES).await
    }
}
