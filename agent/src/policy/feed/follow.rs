//! Starts and stops the watches.

use std::{pin::pin, sync::Arc, time::Duration};

use ferrule_policy::{
    Change,
    object::{Namespace, PolicyObject, Service, cluster_network_policy, network_policy},
};
use tokio::{
    join,
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{Channel, Feed, Kind, State, Wanted, discovery, state::Served};
use crate::{
    api::{Api, ApiError},
    backoff::{Backoff, Policy as Growth},
    policy::objects::AnyPod,
    watch::{Scope, Watches},
};

#[cfg(test)]
mod tests;

pub(super) const NETWORK_POLICIES: Scope =
    Scope { name: "networkpolicies", path: "/apis/networking.k8s.io/v1/networkpolicies", selector: None };
pub(super) const CLUSTER_POLICIES: Scope = Scope {
    name: discovery::TYPE,
    path: "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies",
    selector: None,
};
const NAMESPACES: &str = "namespaces";
const ALL_PODS: &str = "all-pods";
const SERVICES: &str = "services";
/// Pods that are no peers; a pod that ends is reported as deleted. Servers have these fields since 1.28.
const PEERS: &str = "status.phase!=Succeeded,status.phase!=Failed,spec.hostNetwork=false";

/// How long peers are followed without a policy: one that is replaced is gone for a moment, and all nodes
/// would list all pods again.
const LINGER: Duration = Duration::from_secs(15);
/// How long new pods may wait before the agent counts as not ready.
const PATIENCE: Duration = Duration::from_secs(15);
/// Between two questions whether the cluster has ClusterNetworkPolicies by now; and up to half of it more.
const DISCOVERY: Duration = Duration::from_secs(60);
/// An API server that does not answer for so long counts as away, although its answer may come later.
const UNANSWERED: Duration = Duration::from_secs(2);
const RETRY: Growth = Growth::new(Duration::from_millis(800), Duration::from_secs(30)).with_jitter();

// === impl Feed ===

impl Feed {
    /// Follows the cluster until the task is dropped. `open_after`: how long new pods wait for the first list
    /// of policies, before they are open; none: as long as it takes.
    pub async fn run(self: Arc<Self>, watches: Arc<Watches>, api: Arc<Api>, open_after: Option<Duration>) {
        let feed = Arc::clone(&self);
        let read = move |object: &PolicyObject| Some(feed.policy(network_policy(object)));
        let had_cluster_policies = watches.was_followed(discovery::TYPE).await;
        let was_followed = watches.has_checkpoint(&NETWORK_POLICIES).await;
        if was_followed && watches.was_followed(ALL_PODS).await {
            self.update(State::expect_policies);
        }
        watches.add(NETWORK_POLICIES, self.channel(Kind::NetworkPolicy, None, read));
        join!(
            self.discover(&watches, &api, was_followed && !had_cluster_policies),
            self.follow_peers(&watches),
            self.open_unlisted(open_after, &watches, &api),
        );
    }

    /// Follows ClusterNetworkPolicies once the cluster can have them. `had_none`: an earlier agent has
    /// followed policies, and the cluster did not have the type.
    async fn discover(self: &Arc<Self>, watches: &Watches, api: &Api, had_none: bool) {
        let (mut retries, mut was_answered) = (Backoff::new(RETRY), false);
        loop {
            let mut asked = pin!(discovery::ask(api));
            let in_time = timeout(UNANSWERED, &mut asked).await.ok();
            let is_away = in_time.as_ref().is_none_or(|it| it.as_ref().is_err_and(ApiError::is_unreachable));
            if is_away && !was_answered && self.go_on(watches, had_none).await {
                break;
            }
            let answer = match in_time {
                Some(answer) => answer,
                None => asked.await,
            };
            let wait = match answer {
                Ok(Served::Known) => break,
                Ok(served) => {
                    was_answered = true;
                    // An agent that starts while the server is away would enforce a stale checkpoint.
                    watches.forget(discovery::TYPE).await;
                    self.discovered(served);
                    DISCOVERY.mul_f64(1.0 + 0.5 * fastrand::f64())
                }
                Err(error) if error.is_unreachable() => retries.next_requested(None, Instant::now()),
                Err(error) => {
                    tracing::warn!(%error, "retrying{}", error.remedy());
                    retries.next_requested(error.retry_after(), Instant::now())
                }
            };
            sleep(wait).await;
        }
        self.discovered(Served::Known);
        let feed = Arc::clone(self);
        let read = move |object: &PolicyObject| match cluster_network_policy(object) {
            Ok(policy) => Some(feed.policy(policy)),
            Err(error) => {
                feed.undecodable(&error, &object.metadata.uid);
                None
            }
        };
        watches.add(CLUSTER_POLICIES, self.channel(Kind::ClusterNetworkPolicy, None, read));
    }

    /// Goes on from what an earlier agent knew. Returns whether that has ClusterNetworkPolicies.
    async fn go_on(&self, watches: &Watches, had_none: bool) -> bool {
        if had_none {
            self.discovered(Served::Nothing);
        }
        watches.has_checkpoint(&CLUSTER_POLICIES).await
    }

    fn discovered(&self, served: Served) {
        self.update(|state| state.discovered(served));
    }

    /// Follows what policies ask about, while there are policies.
    async fn follow_peers(self: &Arc<Self>, watches: &Watches) {
        let mut wanted = self.wanted.subscribe();
        let mut running = None;
        loop {
            let now = *wanted.borrow_and_update();
            if running != now.generation() {
                // Not at start, which goes on from the checkpoints.
                if running.is_some() {
                    for name in [ALL_PODS, NAMESPACES, SERVICES] {
                        watches.forget(name).await;
                    }
                }
                if let Some(generation) = now.generation() {
                    let wait = self.inner().state.spread().mul_f64(fastrand::f64());
                    tokio::select! {
                        _ = wanted.changed() => continue,
                        () = sleep(wait) => {}
                    }
                    self.add_peers(watches, generation);
                }
                running = now.generation();
            }
            let limit = match now {
                Wanted::Nothing | Wanted::Follow(_) => None,
                Wanted::Gather(generation) => Some((generation, PATIENCE)),
                Wanted::Idle(generation) => Some((generation, LINGER)),
            };
            let Some((generation, limit)) = limit else {
                // Cannot fail: `self` owns the sender.
                let _ = wanted.changed().await;
                continue;
            };
            tokio::select! {
                _ = wanted.changed() => continue,
                () = sleep_until(Instant::now() + limit) => {}
            }
            self.gathering_takes_long(generation);
            self.update(|state| state.idle_no_longer(generation));
            let _ = wanted.changed().await;
        }
    }

    fn add_peers(self: &Arc<Self>, watches: &Watches, generation: u64) {
        let scope = |name, path| Scope { name, path, selector: None };
        let namespaces = scope(NAMESPACES, "/api/v1/namespaces");
        let read = |object: &Namespace| Some(Change::Namespace(Box::new(object.clone())));
        watches.add(namespaces, self.channel(Kind::Namespace, Some(generation), read));
        let read = |object: &Service| Some(Change::Service(Box::new(object.clone())));
        let services = scope(SERVICES, "/api/v1/services");
        watches.add(services, self.channel(Kind::Service, Some(generation), read));
        let pods =
            Scope { selector: Some(("fieldSelector", PEERS.to_owned())), ..scope(ALL_PODS, "/api/v1/pods") };
        let read = |pod: &AnyPod| pod.take().map(Change::Pod);
        watches.add(pods, self.channel(Kind::Pod, Some(generation), read));
    }

    fn channel<F>(self: &Arc<Self>, kind: Kind, generation: Option<u64>, read: F) -> Channel<F> {
        Channel { feed: Arc::clone(self), kind, generation, read }
    }
}

// === impl Wanted ===

impl Wanted {
    fn generation(self) -> Option<u64> {
        match self {
            Self::Nothing => None,
            Self::Gather(generation) | Self::Follow(generation) | Self::Idle(generation) => Some(generation),
        }
    }
}
