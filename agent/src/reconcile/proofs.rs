//! What there is to see of an attachment that may dangle. To look changes nothing; it may block.
//!
//! Each proof holds only if what it says was seen. What cannot be looked at proves nothing.

use std::{
    fmt, fs, io,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::{
    chain::chain,
    cluster::{Lookup, PodRef, Pods},
    health::{Health, State as Healthy},
    plug::{
        netlink::Socket,
        netns::{Netns, NetnsError},
        stamp::Stamp,
        veth,
    },
    registry::{Attachment, HostSide, Key, NetnsId, Registry, State},
};

/// What was seen of an attachment, and of those that came with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    /// ADD has put it into service. Before, it is the caller's.
    pub made: bool,
    /// Its path does not lead to its namespace any more.
    pub netns_gone: Proof,
    /// The host has no interface of it. It goes with the namespace that its other end is in, whatever paths led there.
    pub link_gone: Proof,
    /// The API server has not its pod any more. `None` if it cannot know it.
    pub pod_gone: Option<Proof>,
    /// No call works on it.
    pub not_in_work: Proof,
}

/// A proof that was looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    pub holds: bool,
    /// One line.
    pub what: String,
}

/// What the API server can say.
#[derive(Clone, Copy)]
pub(super) struct Witness<'a> {
    pub pods: &'a Pods,
    /// `None` without an API server.
    pub api: Option<&'a Health>,
}

/// An attachment whose pod was never seen must be this old: longer than a watch can be behind without noticing.
const UNSEEN: Duration = Duration::from_secs(300);

// === impl Evidence ===

impl Evidence {
    /// Looks at all that a runtime knows by one key.
    pub(super) fn look(
        registry: &Registry,
        witness: Witness<'_>,
        key: &Key,
        group: &[Attachment],
    ) -> Option<Self> {
        let first = group.first()?;
        let link_gone = link_gone(group);
        let is_made = |it: &Attachment| matches!(it.state, State::Attached | State::Unplugging);
        Some(Self {
            made: group.iter().all(is_made),
            netns_gone: if first.has_path() {
                netns_gone(&first.netns, first.netns_id)
            } else {
                pathless_gone(&link_gone)
            },
            link_gone,
            pod_gone: witness.pod_gone(&first.pod, age(group)),
            not_in_work: if registry.is_locked(key) {
                Proof::no("a call works on it, or waits to")
            } else {
                Proof::yes("no call works on it")
            },
        })
    }

    /// All proofs by name.
    pub fn proofs(&self) -> impl Iterator<Item = (&'static str, &Proof)> {
        [
            ("netns-gone", Some(&self.netns_gone)),
            ("link-gone", Some(&self.link_gone)),
            ("pod-gone", self.pod_gone.as_ref()),
            ("not-in-work", Some(&self.not_in_work)),
        ]
        .into_iter()
        .filter_map(|(name, seen)| Some((name, seen?)))
    }

    /// Whether anything speaks for its being dangling.
    pub fn is_suspect(&self) -> bool {
        self.netns_gone.holds || self.link_gone.holds || self.pod_gone.as_ref().is_some_and(|seen| seen.holds)
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (name, Proof { holds, what })) in self.proofs().enumerate() {
            let (comma, holds) = (if number > 0 { "; " } else { "" }, if *holds { "yes" } else { "no" });
            write!(f, "{comma}{name}: {holds}, {what}")?;
        }
        Ok(())
    }
}

// === impl Proof ===

impl Proof {
    pub(super) fn yes(what: impl Into<String>) -> Self {
        Self { holds: true, what: what.into() }
    }

    pub(super) fn no(what: impl Into<String>) -> Self {
        Self { holds: false, what: what.into() }
    }
}

// === impl Witness ===

impl Witness<'_> {
    /// Whether a pod is gone; `None` for what an API server cannot know.
    fn pod_gone(&self, pod: &PodRef, age: Duration) -> Option<Proof> {
        let health = self.api.filter(|_| pod.is_of_kubernetes())?;
        let watch = health.components().remove(Pods::WATCH);
        Some(match watch {
            _ if !self.pods.is_synced() => Proof::no("the node's pods have not been listed yet"),
            Some(watch) if watch.state == Healthy::Healthy => self.fate(pod, age),
            Some(watch) => Proof::no(format!("the API server is not followed: {}", watch.why)),
            None => Proof::no("the API server is not followed"),
        })
    }

    fn fate(&self, pod: &PodRef, age: Duration) -> Proof {
        match self.pods.get(pod) {
            Lookup::Present(_) => Proof::no(format!("the pod {pod} is there")),
            Lookup::Gone => {
                Proof::yes(format!("the pod {pod} was deleted, has ended, or is on another node"))
            }
            Lookup::Unknown => {
                // Of two UIDs nobody can say which is the newer: the watch may have the one from before.
                let unseen = match self.pods.uid_at(pod) {
                    Some(other) => format!("the name {pod} belongs to another pod, with the UID {other}"),
                    None => format!("the API server has no pod {pod} of this UID on this node"),
                };
                match UNSEEN.checked_sub(age) {
                    None | Some(Duration::ZERO) => Proof::yes(unseen),
                    Some(wait) => {
                        let wait = wait.as_secs().max(1);
                        Proof::no(format!(
                            "{unseen}, but the watch may be behind: it counts as gone in {wait} s"
                        ))
                    }
                }
            }
        }
    }
}

/// How long the youngest of them has been there. A clock that was set back makes it new.
fn age(group: &[Attachment]) -> Duration {
    let created = group.iter().map(|it| it.created_at_ms).max().unwrap_or(u64::MAX);
    let created = UNIX_EPOCH.checked_add(Duration::from_millis(created));
    created.and_then(|created| SystemTime::now().duration_since(created).ok()).unwrap_or_default()
}

fn netns_gone(path: &Path, id: NetnsId) -> Proof {
    let missing =
        |error: &io::Error| matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory);
    match Netns::open(path) {
        Ok(found) if found.id() == id => Proof::no(format!("{path:?} leads to its namespace {id}")),
        Ok(found) => {
            Proof::yes(format!("{path:?} leads to the namespace {}, and its own was {id}", found.id()))
        }
        Err(error @ (NetnsError::NotNetns { .. } | NetnsError::Host { .. })) => Proof::yes(chain(&error)),
        // What is missing may be `/proc`: so the path itself has to be.
        Err(_) if fs::metadata(path).is_err_and(|error| missing(&error)) => {
            Proof::yes(format!("there is no {path:?} any more"))
        }
        Err(error) => Proof::no(chain(&error)),
    }
}

/// Of an attachment that was made anew, without a path: its interface tells, which goes with the namespace.
fn pathless_gone(link_gone: &Proof) -> Proof {
    let Proof { holds, what } = link_gone;
    Proof { holds: *holds, what: format!("no path to its namespace is known, and {what}") }
}

fn link_gone(group: &[Attachment]) -> Proof {
    let look = || -> Result<Proof, crate::plug::netlink::NetlinkError> {
        let mut host = Socket::open()?;
        for Attachment { key, host: link, .. } in group {
            let link = match link {
                HostSide::Link(link) => link,
                HostSide::Unplugged => {
                    return Ok(Proof::no(format!("{} is not plugged yet", key.ifname)));
                }
                // Such a device does not go with the pod's namespace.
                HostSide::None | HostSide::Representor(_) => {
                    return Ok(Proof::no(format!(
                        "{} has no host link that would be deleted with its namespace",
                        key.ifname
                    )));
                }
            };
            if veth::is_stamped(&mut host, link.ifindex, &Stamp::of(key))? {
                return Ok(Proof::no(format!(
                    "the host has the interface {} ({})",
                    link.ifname, link.ifindex
                )));
            }
        }
        Ok(Proof::yes("the host has no interface of it"))
    };
    look().unwrap_or_else(|error| Proof::no(chain(&error)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::{Change, ObjectKey};

    const OLD: Duration = Duration::from_secs(3600);
    const NEW: Duration = Duration::from_secs(10);

    fn named(uid: &str) -> PodRef {
        PodRef { namespace: "n".to_owned(), name: "web-0".to_owned(), uid: uid.to_owned() }
    }

    fn applied(uid: &str, more: &str) -> Change<crate::cluster::Pod> {
        let json = format!(r#"{{"metadata":{{"namespace":"n","name":"web-0","uid":"{uid}"{more}}}}}"#);
        Change::Applied(serde_json::from_str(&json).unwrap())
    }

    fn deleted(uid: &str) -> Change<crate::cluster::Pod> {
        Change::Gone { key: ObjectKey::new("n", "web-0"), uid: uid.to_owned() }
    }

    /// What an agent says that follows the API server, after changes.
    fn seen(
        changes: impl IntoIterator<Item = Change<crate::cluster::Pod>>,
        pod: &PodRef,
        age: Duration,
    ) -> Proof {
        let (pods, health) = (Pods::default(), Health::default());
        let watch = health.component(Pods::WATCH, false, "");
        watch.healthy("following");
        changes.into_iter().chain([Change::Synced]).for_each(|change| drop(pods.apply_pod(change)));
        Witness { pods: &pods, api: Some(&health) }.pod_gone(pod, age).unwrap()
    }

    #[test]
    fn pain_24_a_pod_that_was_deleted_is_gone_at_once() {
        let seen = seen([applied("u1", ""), deleted("u1")], &named("u1"), NEW);
        assert!(seen.holds, "{}", seen.what);
    }

    #[test]
    fn pain_3_a_pod_that_is_there_is_not_gone_whatever_its_age() {
        assert!(!seen([applied("u1", "")], &named("u1"), OLD).holds);
        let static_pod = applied("mirror", r#","annotations":{"kubernetes.io/config.source":"file"}"#);
        assert!(
            !seen([static_pod], &named("hash-of-the-file"), OLD).holds,
            "a static pod is known by its name"
        );
    }

    #[test]
    fn pain_3_a_pod_that_was_never_seen_is_gone_only_when_the_watch_must_have_seen_it() {
        assert!(!seen([], &named("u1"), NEW).holds);
        assert!(seen([], &named("u1"), OLD).holds);
    }

    #[test]
    fn pain_6_a_name_with_another_uid_may_be_its_predecessors() {
        let new = seen([applied("u1", "")], &named("u2"), NEW);
        assert!(!new.holds, "the watch may be behind: {}", new.what);
        let old = seen([applied("u2", "")], &named("u1"), OLD);
        assert!(old.holds && old.what.contains("UID u2"), "{}", old.what);
    }

    #[test]
    fn pain_3_without_a_working_watch_no_pod_is_gone() {
        let (pods, health) = (Pods::default(), Health::default());
        let gone = || Witness { pods: &pods, api: Some(&health) }.pod_gone(&named("u1"), OLD).unwrap();
        pods.apply_pod(deleted("u1"));
        let watch = health.component(Pods::WATCH, false, "listing");
        watch.healthy("following");
        assert!(!gone().holds, "not all pods are known");
        pods.apply_pod(Change::Synced);
        assert!(gone().holds);
        watch.unhealthy("connection refused");
        assert!(!gone().holds && gone().what.contains("connection refused"), "{}", gone().what);
        drop(watch);
        assert!(!gone().holds);
    }

    #[test]
    fn what_is_no_pod_of_kubernetes_or_has_no_api_server_has_no_such_proof() {
        let (pods, health) = (Pods::default(), Health::default());
        assert_eq!(Witness { pods: &pods, api: None }.pod_gone(&named("u1"), OLD), None);
        assert_eq!(Witness { pods: &pods, api: Some(&health) }.pod_gone(&PodRef::default(), OLD), None);
    }

    #[test]
    fn a_namespace_is_gone_when_its_path_leads_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let own = Netns::current().unwrap().id();
        let other = NetnsId { dev: own.dev, ino: own.ino + 1 };
        let file = dir.path().join("unmounted");
        fs::write(&file, "").unwrap();
        let dangling = dir.path().join("dangling");
        std::os::unix::fs::symlink("/nowhere", &dangling).unwrap();
        for path in [
            &dir.path().join("removed"),
            &file,
            &dangling,
            &file.join("below"),
            Path::new("/proc/self/ns/net"),
        ] {
            let seen = netns_gone(path, other);
            assert!(seen.holds, "{path:?}: {}", seen.what);
        }
    }

    #[test]
    fn pain_3_a_namespace_without_a_path_is_gone_only_if_its_interface_is() {
        assert!(!pathless_gone(&Proof::no("the host has the interface")).holds);
        assert!(pathless_gone(&Proof::yes("the host has no interface of it")).holds);
    }

    #[test]
    fn pain_3_a_path_that_cannot_be_looked_at_proves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let circle = dir.path().join("circle");
        std::os::unix::fs::symlink(&circle, &circle).unwrap();
        let long = dir.path().join("x".repeat(300));
        for path in [circle, long] {
            let seen = netns_gone(&path, NetnsId { dev: 4, ino: 1 });
            assert!(!seen.holds, "{path:?}: {}", seen.what);
        }
    }
}
