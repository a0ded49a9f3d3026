//! The verdict that follows from the evidence, and the plan that follows from the verdict. No I/O.

use std::time::Duration;

use super::{evidence::Evidence, settings::Settings};

/// Whether garbage collection may remove an attachment, and if not, why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// No pod uses the attachment, and no runtime will send the DEL.
    Orphaned,
    /// Kept: an ADD has not committed the attachment.
    Uncommitted,
    /// Kept: a call runs on the attachment.
    InWork,
    /// Kept: the pod may run, and the runtime sends a DEL when the pod ends.
    NamespaceLives,
    /// Kept: the pod may live, and the kubelet has its sandbox deleted or replaced.
    PodNotGone,
    /// Kept: without an API server to ask, the host link proves that the namespace is alive although its path
    /// is gone.
    LinkLives,
}

/// What garbage collection will do with an attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    /// One line.
    pub text: String,
    /// Whether the next round removes the attachment if all proofs still hold.
    pub removes: bool,
}

// === impl Verdict ===

impl Verdict {
    /// A missing path alone does not prove an orphan: an agent without the mounts of its node finds no path
    /// at all. The second proof comes from the API server, or, for a pod that an API server cannot know, from
    /// the host link, which goes with its namespace. A living pod does not need a sandbox that has neither,
    /// if it has a newer one.
    pub(super) fn of(evidence: &Evidence) -> Self {
        match evidence {
            it if !it.is_committed => Self::Uncommitted,
            it if !it.not_in_work.holds => Self::InWork,
            it if !it.netns_gone.holds => Self::NamespaceLives,
            Evidence { link_gone, superseded: Some(it), .. } if link_gone.holds && it.holds => Self::Orphaned,
            Evidence { pod_gone: Some(pod), .. } if !pod.holds => Self::PodNotGone,
            Evidence { pod_gone: None, link_gone, .. } if !link_gone.holds => Self::LinkLives,
            _ => Self::Orphaned,
        }
    }

    /// The plan for an attachment that was first found orphaned `first_seen` ago, if at all, with the next
    /// round in `next`, if rounds have begun.
    pub(super) fn plan(
        self,
        evidence: &Evidence,
        first_seen: Option<Duration>,
        next: Option<Duration>,
        settings: Settings,
    ) -> Plan {
        let kept = |why: String| Plan { text: format!("kept: {why}"), removes: false };
        match self {
            Self::Uncommitted => kept("an ADD has not committed it yet".to_owned()),
            Self::InWork => kept(evidence.not_in_work.observed.clone()),
            Self::NamespaceLives => {
                kept(format!("{}; the runtime sends the DEL", evidence.netns_gone.observed))
            }
            Self::PodNotGone => {
                kept(evidence.pod_gone.as_ref().map(|pod| pod.observed.clone()).unwrap_or_default())
            }
            Self::LinkLives => kept(format!(
                "{}, so the namespace lives without its path; the runtime sends the DEL",
                evidence.link_gone.observed
            )),
            Self::Orphaned => {
                let Some(next) = next else {
                    return kept("the first round has not begun".to_owned());
                };
                let removes = first_seen.is_some_and(|before| before + next >= settings.spacing);
                let (round, wait) = match first_seen {
                    _ if removes => ("the next round", next),
                    Some(_) => ("the round after the next", next + settings.period),
                    None => ("the round after the next, which sees it first", next + settings.period),
                };
                let wait = wait.as_secs().max(1);
                Plan { text: format!("removed in {round}, in ~{wait} s, if all proofs still hold"), removes }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::evidence::Proof, *};

    const SETTINGS: Settings =
        Settings { period: Duration::from_secs(120), spacing: Duration::from_secs(30) };

    fn proof(holds: bool) -> Proof {
        Proof { holds, observed: "an observation".to_owned() }
    }

    fn evidence(netns_gone: bool, link_gone: bool, pod_gone: Option<bool>) -> Evidence {
        Evidence {
            is_committed: true,
            netns_gone: proof(netns_gone),
            link_gone: proof(link_gone),
            pod_gone: pod_gone.map(proof),
            superseded: None,
            not_in_work: proof(true),
        }
    }

    #[test]
    fn orphan_has_lost_its_namespace_and_its_pod() {
        use Verdict::{LinkLives, NamespaceLives, Orphaned, PodNotGone};
        for (netns_gone, link_gone, pod_gone, expected) in [
            // With an API server, the link adds nothing.
            (true, true, Some(true), Orphaned),
            (true, false, Some(true), Orphaned),
            (true, true, Some(false), PodNotGone),
            (true, false, Some(false), PodNotGone),
            (false, true, Some(true), NamespaceLives),
            (false, false, Some(true), NamespaceLives),
            (false, true, Some(false), NamespaceLives),
            (false, false, Some(false), NamespaceLives),
            // The kernel alone.
            (true, true, None, Orphaned),
            (true, false, None, LinkLives),
            (false, true, None, NamespaceLives),
            (false, false, None, NamespaceLives),
        ] {
            let evidence = evidence(netns_gone, link_gone, pod_gone);
            assert_eq!(Verdict::of(&evidence), expected, "{evidence}");
        }
    }

    #[test]
    fn older_sandbox_of_a_living_pod_is_an_orphan_without_namespace_and_link() {
        use Verdict::{LinkLives, NamespaceLives, Orphaned, PodNotGone};
        for (netns_gone, link_gone, pod_gone, expected) in [
            (true, true, Some(false), Orphaned),
            (true, false, Some(false), PodNotGone),
            (false, true, Some(false), NamespaceLives),
            (false, false, Some(false), NamespaceLives),
            (true, true, None, Orphaned),
            (true, false, None, LinkLives),
        ] {
            let superseded =
                Evidence { superseded: Some(proof(true)), ..evidence(netns_gone, link_gone, pod_gone) };
            assert_eq!(Verdict::of(&superseded), expected, "{superseded}");
        }
        let not_sure = Evidence { superseded: Some(proof(false)), ..evidence(true, true, Some(false)) };
        assert_eq!(Verdict::of(&not_sure), PodNotGone);
        let in_work = Evidence { superseded: Some(proof(true)), not_in_work: proof(false), ..not_sure };
        assert_eq!(Verdict::of(&in_work), Verdict::InWork);
    }

    #[test]
    fn uncommitted_or_locked_attachment_is_kept_whatever_the_proofs() {
        let all = evidence(true, true, Some(true));
        let uncommitted = Evidence { is_committed: false, ..all.clone() };
        assert_eq!(Verdict::of(&uncommitted), Verdict::Uncommitted);
        let in_work = Evidence { not_in_work: proof(false), ..all };
        assert_eq!(Verdict::of(&in_work), Verdict::InWork);
    }

    #[test]
    fn plan_announces_the_round_that_removes() {
        let seconds = |it: u64| Some(Duration::from_secs(it));
        let orphaned = evidence(true, true, Some(true));
        let plan = |first_seen, next| Verdict::Orphaned.plan(&orphaned, first_seen, next, SETTINGS);
        let next = plan(seconds(40), seconds(80));
        assert_eq!(next.text, "removed in the next round, in ~80 s, if all proofs still hold");
        assert!(next.removes);
        let too_soon = plan(seconds(5), seconds(20));
        assert!(
            !too_soon.removes && too_soon.text.contains("the round after the next, in ~140 s"),
            "{}",
            too_soon.text
        );
        let unseen = plan(None, seconds(20));
        assert!(!unseen.removes && unseen.text.contains("in ~140 s"), "{}", unseen.text);
        assert!(!plan(None, None).removes);
        let lives =
            Verdict::NamespaceLives.plan(&evidence(false, false, Some(true)), None, seconds(1), SETTINGS);
        assert_eq!(lives.text, "kept: an observation; the runtime sends the DEL");
        assert!(!lives.removes);
    }
}
