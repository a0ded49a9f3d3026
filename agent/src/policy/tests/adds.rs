//! ADDs that wait for policies.

use std::sync::Barrier;

use futures_util::FutureExt as _;

use super::*;
use crate::watch::Change;

#[tokio::test]
async fn an_add_waits_without_a_lock_until_its_pod_is_known() {
    let it = Setup::new();
    let wanted = interface(7, "a").pod;
    let deadline = |within| tokio::time::Instant::now() + within;
    let missing = it.enforcer.until_known(&wanted, deadline(MOMENT)).await;
    assert!(matches!(missing, Err(AdmitError::NotListed(_))), "{missing:?}");
    it.enforcer.replace(vec![policy("p", "a"), namespace()]);
    let end = Instant::now() + SOON;
    loop {
        let missing = it.enforcer.until_known(&wanted, deadline(MOMENT)).await;
        if matches!(missing, Err(AdmitError::UnknownPod { .. })) {
            break;
        }
        assert!(Instant::now() < end, "the state is compiled: {missing:?}");
    }
    it.enforcer.submit(pod("a"));
    it.enforcer.until_known(&wanted, deadline(SOON)).await.unwrap();
}

#[tokio::test]
async fn an_add_that_comes_while_policies_are_compiled_blocks_no_other_task() {
    let it = Setup::new();
    it.enforcer.replace(vec![policy("p", "a"), namespace(), pod("a")]);
    let wanted = interface(7, "a").pod;
    let soon = tokio::time::Instant::now() + SOON;
    it.enforcer.until_known(&wanted, soon).await.unwrap();
    let (locked, free) = (Barrier::new(2), Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| it.enforcer.read(|_| (locked.wait(), free.wait())));
        locked.wait();
        assert!(!it.enforcer.is_known(&wanted));
        assert_eq!(it.enforcer.state().kind(), Kind::Enforcing);
        let mut waiting = Box::pin(it.enforcer.until_known(&wanted, soon));
        let now = (&mut waiting).now_or_never();
        assert!(now.is_none(), "the wait must yield to others");
        free.wait();
        waiting
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn an_add_of_a_static_pod_goes_on_when_the_pods_own_watch_tells_its_uid() {
    let it = Setup::new();
    it.enforcer.replace(vec![policy("p", "a"), namespace(), pod("a")]);
    let end = Instant::now() + SOON;
    while !it.enforcer.is_known(&interface(7, "a").pod) {
        assert!(Instant::now() < end, "the state is compiled");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    // The kubelet says another UID than the API.
    let wanted = PodRef { uid: "of-the-manifest".to_owned(), ..interface(7, "a").pod };
    let mut waiting = Box::pin(it.enforcer.until_known(&wanted, tokio::time::Instant::now() + SOON));
    assert!(tokio::time::timeout(MOMENT, &mut waiting).await.is_err());
    let mirror = json!({"metadata": {"namespace": "web", "name": "a", "uid": "a",
        "annotations": {"kubernetes.io/config.mirror": "of-the-manifest"}}});
    let mirror = Arc::new(serde_json::from_str(&mirror.to_string()).unwrap());
    it.pods.apply_pod(Change::Applied(mirror));
    tokio::time::timeout(SOON / 2, waiting).await.expect("no wait for the deadline").unwrap();
}
