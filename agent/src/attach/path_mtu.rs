//! Running pods' routes follow the MTU of the path to other nodes.

use std::sync::Arc;

use tokio::task::spawn_blocking;

use super::engine::Engine;
use crate::{
    chain::chain,
    plug::{netns::Netns, pod_mtu},
    registry::{Attachment, KeyGuard, Registry, State},
};

impl Engine {
    /// Follows until the task is dropped. An ADD that has read an earlier value holds its key's lock until
    /// all of its interfaces are plugged, and so is not missed.
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
                changed += self.set_path_mtu(&it, mtu).await;
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
    async fn set_path_mtu(self: &Arc<Self>, listed: &Attachment, mtu: u32) -> usize {
        let Some((guard, it)) = locked(&self.registry, listed).await else { return 0 };
        let done = spawn_blocking(move || {
            let _guard = guard;
            follow(&it, mtu)
        });
        usize::from(done.await.unwrap_or_default())
    }
}

/// Locks the call's key of an attachment, and returns what is known of the attachment then, if its interface
/// is there. A plugged one may wait for its VIF to become active, without the lock.
async fn locked(registry: &Registry, listed: &Attachment) -> Option<(KeyGuard, Attachment)> {
    let guard = registry.lock(&listed.runtime_key()).await;
    let it = registry.get(&listed.key)?;
    matches!(it.state, State::Plugged | State::Attached).then_some((guard, it))
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;
    use crate::registry::testing::attachment;

    const MOMENT: Duration = Duration::from_millis(20);

    #[tokio::test]
    async fn interfaces_are_changed_from_their_plug_on_and_not_while_a_call_of_their_container_works() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::open(dir.path()).unwrap();
        let (eth0, eth1) = (attachment("eth0", None, 2), attachment("eth1", Some("eth0"), 3));
        let reserved = registry.advance(eth1.clone(), State::Reserved).unwrap();
        let add = registry.lock(&eth0.key).await;
        assert!(timeout(MOMENT, locked(&registry, &reserved)).await.is_err(), "the ADD works");
        registry.advance(eth1.clone(), State::Plugged).unwrap();
        drop(add);
        let (guard, it) = timeout(MOMENT, locked(&registry, &reserved)).await.unwrap().unwrap();
        assert_eq!(it.state, State::Plugged, "the ADD waits for its VIF to become active");
        assert!(registry.is_locked(&eth0.key) && !registry.is_locked(&eth1.key));
        drop(guard);
        registry.advance(eth1.clone(), State::Attached).unwrap();
        assert!(locked(&registry, &reserved).await.is_some());
        registry.advance(eth1, State::Unplugging).unwrap();
        assert!(locked(&registry, &reserved).await.is_none());
    }
}
