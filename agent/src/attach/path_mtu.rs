//! Running pods' routes follow the MTU of the path to other nodes.

use std::sync::Arc;

use tokio::task::spawn_blocking;

use super::engine::Engine;
use crate::{
    chain::chain,
    plug::{netns::Netns, pod_mtu},
    registry::{Attachment, Key, State},
};

impl Engine {
    /// Follows until the task is dropped. An ADD that has read an earlier value holds its key's lock until
    /// its attachment is listed, and so is not missed.
    pub async fn follow_path_mtu(self: Arc<Self>) {
        let mut path = self.uplink.path_mtu();
        // The nodes may be known already.
        path.mark_changed();
        loop {
            if path.changed().await.is_err() {
                return std::future::pending().await;
            }
            let Some(mtu) = *path.borrow_and_update() else { continue };
            let mut changed = 0;
            for it in self.registry.list() {
                changed += self.set_path_mtu(&it.key, mtu).await;
                if path.has_changed().unwrap_or_default() {
                    break;
                }
            }
            if changed > 0 {
                tracing::info!(mtu, pods = changed, "changed the MTU of running pods' routes");
            }
        }
    }

    /// Returns the number of changed pods.
    async fn set_path_mtu(self: &Arc<Self>, key: &Key, mtu: u32) -> usize {
        let guard = self.registry.lock(key).await;
        let Some(it) = self.registry.get(key).filter(|it| it.state == State::Attached) else { return 0 };
        let done = spawn_blocking(move || {
            let _guard = guard;
            follow(&it, mtu)
        });
        usize::from(done.await.unwrap_or_default())
    }
}

/// Returns whether anything was changed.
fn follow(it: &Attachment, mtu: u32) -> bool {
    let netns = match Netns::open(&it.netns) {
        Ok(netns) if netns.id() == it.netns_id => netns,
        // Gone, or another pod's by now.
        _ => return false,
    };
    pod_mtu::follow(&netns, &it.key.ifname, &it.vif, mtu).map(|changed| changed > 0).unwrap_or_else(|error| {
        tracing::warn!(key = %it.key, error = chain(&error), "cannot change the MTU of a running pod's routes");
        false
    })
}
