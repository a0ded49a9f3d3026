//! Whether a newer sandbox of the same pod is attached: the runtime has lost the older one.

use super::proof::Proof;
use crate::registry::{Attachment, Registry, State};

/// By UID: a name may have a successor. Without a UID, nothing proves that both are of one pod.
pub(super) fn superseded(registry: &Registry, group: &[Attachment]) -> Option<Proof> {
    let Attachment { key, pod, .. } = group.first()?;
    let youngest = group.iter().map(|it| it.created_since_boot_ns).max()?;
    if pod.uid.is_empty() {
        return None;
    }
    let is_newer = |it: &Attachment| {
        it.created_since_boot_ns > youngest
            && it.state == State::Attached
            && it.pod == *pod
            && (&it.key.network, &it.key.ifname) == (&key.network, &key.ifname)
            && it.key.container_id != key.container_id
    };
    let newer = registry.find(is_newer).pop()?;
    Some(Proof::yes(format!("the pod {pod} has a newer attachment, {}", newer.key)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cluster::PodRef,
        registry::{Allocation, Key, NetnsId, NewAttachment, Wishes, testing},
    };

    fn attach(registry: &Registry, key: &str, uid: &str, number: u8) -> Attachment {
        let new = NewAttachment {
            key: Key::try_from(key.to_owned()).unwrap(),
            with: None,
            pod: PodRef { namespace: "n".to_owned(), name: "web".to_owned(), uid: uid.to_owned() },
            netns: "/nowhere/netns".into(),
            netns_id: NetnsId { dev: 4, ino: number.into() },
            allocation: Allocation::Fixed(testing::attachment("eth0", None, number).vif),
            wishes: Wishes::default(),
        };
        let reserved = registry.reserve(new).unwrap();
        registry.advance(reserved, State::Attached).unwrap()
    }

    #[test]
    fn only_a_newer_attachment_of_the_same_pod_and_interface_supersedes() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::open(dir.path()).unwrap();
        let earlier = attach(&registry, "net/earlier/eth0", "u1", 2);
        let old = attach(&registry, "net/old/eth0", "u1", 3);
        let others = [("net/other/eth0", "u2"), ("net/more/eth1", "u1"), ("elsewhere/more/eth0", "u1")];
        for (number, (key, uid)) in (4..).zip(others) {
            attach(&registry, key, uid, number);
        }
        let of = |it: &Attachment| superseded(&registry, std::slice::from_ref(it));
        assert_eq!(of(&old), None);
        let newer = attach(&registry, "net/newer/eth0", "u1", 9);
        let proof = of(&old).unwrap();
        assert!(proof.holds && proof.observed.contains("net/newer/eth0"), "{}", proof.observed);
        assert!(of(&earlier).is_some() && of(&newer).is_none());
        // An ADD that has not committed may fail.
        registry.advance(newer.clone(), State::Plugged).unwrap();
        assert_eq!(of(&old), None);
        registry.advance(newer, State::Attached).unwrap();
        assert_eq!(superseded(&registry, &[]), None);
    }

    #[test]
    fn pods_without_a_uid_are_not_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::open(dir.path()).unwrap();
        let old = attach(&registry, "net/old/eth0", "", 2);
        attach(&registry, "net/newer/eth0", "", 3);
        assert_eq!(superseded(&registry, &[old]), None);
    }
}
