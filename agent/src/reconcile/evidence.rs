//! The evidence for and against an attachment being orphaned. Collecting evidence may block, and changes
//! nothing.
//!
//! A proof holds only if its claim was observed: what cannot be read proves nothing.

mod link_gone;
mod netns_gone;
mod pod_gone;
mod proof;
mod superseded;

use std::{fmt, time::Duration};

pub(super) use self::pod_gone::Witness;
pub use self::proof::Proof;
use self::{link_gone::link_gone, netns_gone::netns_gone, superseded::superseded};
use crate::registry::{Attachment, Key, Registry, State};

/// The evidence about the attachments of one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    /// Whether ADD has committed the attachments. Uncommitted ones belong to the ADD.
    pub is_committed: bool,
    /// The recorded path no longer leads to the recorded namespace.
    pub netns_gone: Proof,
    /// The host link is gone. The kernel deletes the link with the namespace of its peer, independent of
    /// paths.
    pub link_gone: Proof,
    /// The API server no longer has the pod. `None` if the API server cannot know the pod.
    pub pod_gone: Option<Proof>,
    /// The pod has a newer attachment, of another sandbox. `None` if there is none.
    pub superseded: Option<Proof>,
    /// No call runs on the key.
    pub not_in_work: Proof,
}

// === impl Evidence ===

impl Evidence {
    /// Collects the evidence about the attachments of a runtime key at a time since boot; `None` if there are
    /// none.
    pub(super) fn collect(
        registry: &Registry,
        witness: Witness<'_>,
        key: &Key,
        group: &[Attachment],
        now: Duration,
    ) -> Option<Self> {
        let requested = group.first()?;
        let link_gone = link_gone(group);
        Some(Self {
            is_committed: group.iter().all(|it| match it.state {
                State::Attached | State::Unplugging => true,
                State::Reserved | State::Plugged => false,
            }),
            netns_gone: if requested.has_path() {
                netns_gone(&requested.netns, requested.netns_id)
            } else {
                netns_gone_without_path(&link_gone)
            },
            link_gone,
            pod_gone: witness.pod_gone(&requested.pod, age(group, now)),
            superseded: superseded(registry, group),
            not_in_work: if registry.is_locked(key) {
                Proof::no("a call runs on it, or waits to")
            } else {
                Proof::yes("no call runs on it")
            },
        })
    }

    /// All proofs by name, as `ferrulectl gc --dry-run` shows them.
    pub fn proofs(&self) -> impl Iterator<Item = (&'static str, &Proof)> {
        [
            ("netns-gone", Some(&self.netns_gone)),
            ("link-gone", Some(&self.link_gone)),
            ("pod-gone", self.pod_gone.as_ref()),
            ("superseded", self.superseded.as_ref()),
            ("not-in-work", Some(&self.not_in_work)),
        ]
        .into_iter()
        .filter_map(|(name, proof)| Some((name, proof?)))
    }

    /// Whether any proof suggests an orphan.
    pub fn is_suspect(&self) -> bool {
        self.netns_gone.holds
            || self.link_gone.holds
            || self.pod_gone.as_ref().is_some_and(|proof| proof.holds)
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (name, Proof { holds, observed })) in self.proofs().enumerate() {
            let (separator, holds) = (if number > 0 { "; " } else { "" }, if *holds { "yes" } else { "no" });
            write!(f, "{separator}{name}: {holds}, {observed}")?;
        }
        Ok(())
    }
}

/// A rebuilt attachment may lack a path. Its link proves instead, because the link goes with the namespace.
fn netns_gone_without_path(link_gone: &Proof) -> Proof {
    let Proof { holds, observed } = link_gone;
    Proof { holds: *holds, observed: format!("no path to the namespace is recorded, and {observed}") }
}

/// The age of the youngest attachment, by the clock that cannot be set.
fn age(group: &[Attachment], now: Duration) -> Duration {
    let created = group.iter().map(|it| it.created_since_boot_ns).max().unwrap_or(u64::MAX);
    now.saturating_sub(Duration::from_nanos(created))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cluster::{PodRef, Pods},
        health::Health,
        registry::{HostLink, HostSide, testing},
        watch::Change,
    };

    /// Seconds.
    const BOOT_TO_CREATION: u64 = 10_000;

    fn attachment(ifname: &str, created: Duration) -> Attachment {
        Attachment {
            state: State::Attached,
            pod: PodRef { namespace: "n".to_owned(), name: "web".to_owned(), uid: "u".to_owned() },
            netns: "/nowhere/netns".into(),
            host: HostSide::Link(HostLink { ifname: "frgone".to_owned(), ifindex: 0x7fff_0001 }),
            created_since_boot_ns: u64::try_from(created.as_nanos()).unwrap(),
            ..testing::attachment(ifname, None, 2)
        }
    }

    /// The evidence of an agent whose watch lacks the pod, some seconds after [`BOOT_TO_CREATION`].
    fn collect(group: &[Attachment], seconds: u64) -> Evidence {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::open(dir.path()).unwrap();
        let (pods, health) = (Pods::default(), Health::default());
        let watch = health.component(Pods::WATCH, false, "");
        watch.healthy("following");
        pods.apply_pod(Change::Synced);
        let witness = Witness { pods: &pods, api: Some(&health) };
        let now = Duration::from_secs(BOOT_TO_CREATION + seconds);
        Evidence::collect(&registry, witness, &group[0].key, group, now).unwrap()
    }

    fn pod_is_gone(group: &[Attachment], seconds: u64) -> bool {
        collect(group, seconds).pod_gone.unwrap().holds
    }

    #[test]
    fn unknown_pod_is_gone_five_minutes_after_the_creation_of_its_youngest_interface() {
        let created = |seconds| Duration::from_secs(BOOT_TO_CREATION + seconds);
        let one = [attachment("eth0", created(0))];
        assert!(!pod_is_gone(&one, 299));
        assert!(pod_is_gone(&one, 300));
        let two = [attachment("eth0", created(0)), attachment("eth1", created(200))];
        assert!(!pod_is_gone(&two, 499), "the second interface is 299 s old");
        assert!(pod_is_gone(&two, 500));
        assert!(!pod_is_gone(&[attachment("eth0", created(50))], 0), "created in the future");
    }

    #[test]
    fn clock_that_is_set_changes_no_proof() {
        let created = Duration::from_secs(BOOT_TO_CREATION);
        // Set back by years after the creation, and forward: 1970, now, and the far future.
        for created_at_ms in [0, crate::registry::now_ms(), u64::MAX] {
            let group = [Attachment { created_at_ms, ..attachment("eth0", created) }];
            assert!(!pod_is_gone(&group, 10), "{created_at_ms}");
            assert!(pod_is_gone(&group, 400), "{created_at_ms}");
        }
    }

    #[test]
    fn attachments_are_committed_only_if_all_are() {
        let (first, second) = (attachment("eth0", Duration::ZERO), attachment("eth1", Duration::ZERO));
        for (states, expected) in [
            ([State::Attached, State::Attached], true),
            ([State::Attached, State::Unplugging], true),
            ([State::Attached, State::Reserved], false),
            ([State::Plugged, State::Attached], false),
        ] {
            let group = [
                Attachment { state: states[0], ..first.clone() },
                Attachment { state: states[1], ..second.clone() },
            ];
            assert_eq!(collect(&group, 0).is_committed, expected, "{states:?}");
        }
    }

    #[test]
    fn link_is_gone_only_if_every_link_is() {
        let gone = attachment("eth0", Duration::ZERO);
        assert!(collect(std::slice::from_ref(&gone), 0).link_gone.holds);
        let port = HostLink { ifname: "port".to_owned(), ifindex: 1 };
        for host in [HostSide::Unplugged, HostSide::None, HostSide::Representor(port)] {
            let other = Attachment { host, ..attachment("eth1", Duration::ZERO) };
            assert!(!collect(&[gone.clone(), other.clone()], 0).link_gone.holds, "{:?}", other.host);
            assert!(!collect(&[other, gone.clone()], 0).link_gone.holds);
        }
    }

    #[tokio::test]
    async fn locked_key_is_in_work_and_a_missing_path_leaves_the_proof_to_the_link() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::open(dir.path()).unwrap();
        let witness = Witness { pods: &Pods::default(), api: None };
        let group = [attachment("eth0", Duration::ZERO)];
        let collect = |group: &[Attachment]| {
            Evidence::collect(&registry, witness, &group[0].key, group, Duration::ZERO).unwrap()
        };
        assert!(collect(&group).not_in_work.holds && collect(&group).netns_gone.holds);
        let lock = registry.lock(&group[0].key).await;
        assert!(!collect(&group).not_in_work.holds);
        drop(lock);
        assert!(collect(&group).not_in_work.holds);
        let [it] = group;
        let without_path = Attachment { netns: "".into(), host: HostSide::None, ..it };
        let evidence = collect(&[without_path]);
        assert!(!evidence.netns_gone.holds && evidence.netns_gone.observed.starts_with("no path"));
        assert!(
            Evidence::collect(
                &registry,
                witness,
                &Key::try_from("n/c/i".to_owned()).unwrap(),
                &[],
                Duration::ZERO
            )
            .is_none()
        );
    }

    #[test]
    fn netns_without_path_is_gone_only_with_the_link() {
        assert!(!netns_gone_without_path(&Proof::no("the host has the link")).holds);
        assert!(netns_gone_without_path(&Proof::yes("the host has no link of it")).holds);
    }

    #[test]
    fn any_proof_but_the_lock_makes_a_suspect() {
        let none = collect(
            &[Attachment {
                netns: "/proc/self/ns/net".into(),
                host: HostSide::None,
                ..attachment("eth0", Duration::ZERO)
            }],
            0,
        );
        let (yes, no) = (Proof::yes(""), Proof::no(""));
        let none = Evidence { netns_gone: no.clone(), link_gone: no.clone(), pod_gone: Some(no), ..none };
        assert!(!none.is_suspect());
        assert!(!Evidence { pod_gone: None, ..none.clone() }.is_suspect());
        assert!(Evidence { netns_gone: yes.clone(), ..none.clone() }.is_suspect());
        assert!(Evidence { link_gone: yes.clone(), ..none.clone() }.is_suspect());
        assert!(Evidence { pod_gone: Some(yes), ..none }.is_suspect());
    }
}
