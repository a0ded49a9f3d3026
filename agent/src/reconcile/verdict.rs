//! What follows from what was seen. Nothing here looks at anything.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use super::{Settings, proofs::Evidence};
use crate::registry::{Attachment, Key, NetnsId};

/// What is to become of an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nobody uses it, and nobody will delete it.
    Dangling,
    /// Kept: an ADD is at it.
    InTheMaking,
    /// Kept: whoever works on it may know better.
    InWork,
    /// Kept: the pod may run, and the runtime deletes it when it ends.
    NamespaceLives,
    /// Kept: the pod may live, and the kubelet has it deleted or made anew.
    PodNotGone,
    /// Kept: there is only the kernel to ask, and the namespace lives on without its path.
    LinkLives,
}

/// Which attachment it is: the same key may be attached again, to something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    netns: NetnsId,
    created_at_ms: u64,
}

/// What was found dangling once, and when that was. No more than there are attachments.
#[derive(Debug, Default)]
pub(super) struct Observations(HashMap<Key, (Identity, Instant)>);

/// What the agent will do about an attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Outlook {
    pub text: String,
    /// At the next round.
    pub removes: bool,
}

// === impl Verdict ===

impl Verdict {
    /// A path that is gone is one witness, and not enough: an agent that does not see the mounts of its node finds no
    /// path at all. The other is the API server, and where it cannot know, the interface, which goes with its namespace.
    pub(super) fn of(evidence: &Evidence) -> Self {
        match evidence {
            it if !it.made => Self::InTheMaking,
            it if !it.not_in_work.holds => Self::InWork,
            it if !it.netns_gone.holds => Self::NamespaceLives,
            Evidence { pod_gone: Some(pod), .. } if !pod.holds => Self::PodNotGone,
            Evidence { pod_gone: None, link_gone, .. } if !link_gone.holds => Self::LinkLives,
            _ => Self::Dangling,
        }
    }

    /// In words, for one that was found dangling `seen_before` ago, or not yet, with a next round in `next` if there is one.
    pub(super) fn outlook(
        self,
        evidence: &Evidence,
        seen_before: Option<Duration>,
        next: Option<Duration>,
        settings: Settings,
    ) -> Outlook {
        let kept = |why: String| Outlook { text: format!("kept: {why}"), removes: false };
        match self {
            Self::InTheMaking => kept("an ADD is making it".to_owned()),
            Self::InWork => kept(evidence.not_in_work.what.clone()),
            Self::NamespaceLives => kept(format!("{}; the runtime deletes it", evidence.netns_gone.what)),
            Self::PodNotGone => {
                kept(evidence.pod_gone.as_ref().map(|pod| pod.what.clone()).unwrap_or_default())
            }
            Self::LinkLives => kept(format!(
                "{}, so that its namespace lives somewhere; the runtime deletes it",
                evidence.link_gone.what
            )),
            Self::Dangling => {
                let Some(next) = next else {
                    return kept("rounds have not begun yet".to_owned());
                };
                let removes = seen_before.is_some_and(|before| before + next >= settings.spacing);
                let (how, wait) = match seen_before {
                    _ if removes => ("at the next round", next),
                    Some(_) => ("at the round after the next", next + settings.period),
                    None => ("one round after the next has noted it", next + settings.period),
                };
                let wait = wait.as_secs().max(1);
                Outlook { text: format!("removed {how}, in ~{wait} s, if all proofs still hold"), removes }
            }
        }
    }
}

// === impl Identity ===

impl Identity {
    pub(super) fn of(first: &Attachment) -> Self {
        Self { netns: first.netns_id, created_at_ms: first.created_at_ms }
    }
}

// === impl Observations ===

impl Observations {
    /// Notes a look at an attachment, and says whether it is to be removed: found dangling before, by at least the
    /// spacing, and ever since.
    pub(super) fn note(
        &mut self,
        key: &Key,
        it: Identity,
        verdict: Verdict,
        now: Instant,
        spacing: Duration,
    ) -> bool {
        if verdict != Verdict::Dangling {
            self.forget(key);
            return false;
        }
        match self.0.get(key) {
            Some((before, since)) if *before == it => now.duration_since(*since) >= spacing,
            _ => {
                self.0.insert(key.clone(), (it, now));
                false
            }
        }
    }

    pub(super) fn forget(&mut self, key: &Key) {
        self.0.remove(key);
    }

    /// Forgets all but these.
    pub(super) fn retain(&mut self, is_there: impl Fn(&Key) -> bool) {
        self.0.retain(|key, _| is_there(key));
    }

    /// Since when it is known to be dangling.
    pub(super) fn since(&self, key: &Key, it: Identity) -> Option<Instant> {
        self.0.get(key).filter(|(before, _)| *before == it).map(|(_, since)| *since)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::{super::proofs::Proof, *};

    const SETTINGS: Settings =
        Settings { period: Duration::from_secs(120), spacing: Duration::from_secs(30) };

    fn seen(holds: bool) -> Proof {
        Proof { holds, what: "what was seen".to_owned() }
    }

    fn evidence(netns_gone: bool, link_gone: bool, pod_gone: Option<bool>) -> Evidence {
        Evidence {
            made: true,
            netns_gone: seen(netns_gone),
            link_gone: seen(link_gone),
            pod_gone: pod_gone.map(seen),
            not_in_work: seen(true),
        }
    }

    fn key() -> Key {
        Key::try_from("net/0123/eth0".to_owned()).unwrap()
    }

    fn identity(created_at_ms: u64) -> Identity {
        Identity { netns: NetnsId { dev: 4, ino: 7 }, created_at_ms }
    }

    #[test]
    fn pain_3_what_is_removed_has_lost_its_namespace_and_its_pod() {
        use Verdict::{Dangling, LinkLives, NamespaceLives, PodNotGone};
        for (netns_gone, link_gone, pod_gone, expected) in [
            // A pod of Kubernetes: its interface says nothing that the API server does not know better.
            (true, true, Some(true), Dangling),
            (true, false, Some(true), Dangling),
            (true, true, Some(false), PodNotGone),
            (true, false, Some(false), PodNotGone),
            (false, true, Some(true), NamespaceLives),
            (false, false, Some(true), NamespaceLives),
            (false, true, Some(false), NamespaceLives),
            (false, false, Some(false), NamespaceLives),
            // Nobody to ask but the kernel.
            (true, true, None, Dangling),
            (true, false, None, LinkLives),
            (false, true, None, NamespaceLives),
            (false, false, None, NamespaceLives),
        ] {
            let evidence = evidence(netns_gone, link_gone, pod_gone);
            assert_eq!(Verdict::of(&evidence), expected, "{evidence}");
        }
    }

    #[test]
    fn pain_3_what_somebody_is_at_is_kept_whatever_else_is_seen() {
        let all = evidence(true, true, Some(true));
        let making = Evidence { made: false, ..all.clone() };
        assert_eq!(Verdict::of(&making), Verdict::InTheMaking);
        let in_work = Evidence { not_in_work: seen(false), ..all };
        assert_eq!(Verdict::of(&in_work), Verdict::InWork);
    }

    #[tokio::test(start_paused = true)]
    async fn pain_2_what_nobody_deletes_is_removed_when_it_was_seen_twice() {
        let mut seen = Observations::default();
        let mut note = |at: Instant| seen.note(&key(), identity(1), Verdict::Dangling, at, SETTINGS.spacing);
        let now = Instant::now();
        assert!(!note(now), "seen once");
        assert!(!note(now + Duration::from_secs(29)), "the same look twice is one look");
        assert!(note(now + Duration::from_secs(30)));
        assert!(note(now + Duration::from_secs(31)), "and again, should it have failed");
    }

    #[tokio::test(start_paused = true)]
    async fn pain_3_a_proof_that_fails_once_forgets_the_first_look() {
        let mut seen = Observations::default();
        let now = Instant::now();
        let mut note = |verdict, seconds| {
            seen.note(&key(), identity(1), verdict, now + Duration::from_secs(seconds), SETTINGS.spacing)
        };
        note(Verdict::Dangling, 0);
        assert!(!note(Verdict::PodNotGone, 60));
        assert!(!note(Verdict::Dangling, 120), "that is the first look of the second time");
        assert!(note(Verdict::Dangling, 240));
    }

    #[tokio::test(start_paused = true)]
    async fn pain_6_a_look_at_an_older_sandbox_does_not_count_for_a_newer_one() {
        let mut seen = Observations::default();
        let now = Instant::now();
        seen.note(&key(), identity(1), Verdict::Dangling, now, SETTINGS.spacing);
        let later = now + Duration::from_secs(600);
        assert_eq!(seen.since(&key(), identity(2)), None);
        assert!(!seen.note(&key(), identity(2), Verdict::Dangling, later, SETTINGS.spacing));
        assert_eq!(seen.since(&key(), identity(2)), Some(later));
        seen.retain(|_| false);
        assert_eq!(seen.len(), 0);
    }

    #[test]
    fn what_is_said_is_what_will_be_done() {
        let seconds = |it: u64| Some(Duration::from_secs(it));
        let dangling = evidence(true, true, Some(true));
        let outlook = |before, next| Verdict::Dangling.outlook(&dangling, before, next, SETTINGS);
        let next = outlook(seconds(40), seconds(80));
        assert_eq!(next.text, "removed at the next round, in ~80 s, if all proofs still hold");
        assert!(next.removes);
        let too_soon = outlook(seconds(5), seconds(20));
        assert!(
            !too_soon.removes && too_soon.text.contains("the round after the next, in ~140 s"),
            "{}",
            too_soon.text
        );
        let unseen = outlook(None, seconds(20));
        assert!(!unseen.removes && unseen.text.contains("in ~140 s"), "{}", unseen.text);
        assert!(!outlook(None, None).removes);
        let lives =
            Verdict::NamespaceLives.outlook(&evidence(false, false, Some(true)), None, seconds(1), SETTINGS);
        assert_eq!(lives.text, "kept: what was seen; the runtime deletes it");
        assert!(!lives.removes);
    }
}
