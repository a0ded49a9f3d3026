//! What becomes of the attachments of an earlier agent.

use std::fs;

use ferrule_proto::{
    deferred::{self, BOOT_ID, DeferredDel},
    names::{ContainerId, IfName, NetworkName},
};

use super::*;
use crate::registry::testing;

const IN_SERVICE: u32 = 0;

/// An attachment whose namespace is gone, with an interface of this index.
fn attachment(state: State, container: &str, ifname: &str, index: u8) -> Attachment {
    let key = Key::try_from(format!("net/{container}/{ifname}")).unwrap();
    Attachment { key, state, ..testing::attachment(ifname, None, index) }
}

fn attached(container: &str, index: u8) -> Attachment {
    attachment(State::Attached, container, "eth0", index)
}

/// An additional interface of the container's `eth0`.
fn additional(container: &str, index: u8) -> Attachment {
    let with = Some(attached(container, 0).key);
    Attachment { with, ..attachment(State::Attached, container, "eth1", index) }
}

/// The links of these attachments, with their stamps, in a link group.
fn links(all: &[&Attachment], group: u32) -> HashMap<u32, HostLinkState> {
    let link = |it: &Attachment| HostLinkState {
        name: "fr".to_owned(),
        stamp: Some(Stamp::of(&it.key)),
        group,
        master: None,
        up: true,
        mac: None,
        mtu: 1450,
        forwards_ipv4: true,
        sends_redirects: false,
        routes_localnet: false,
        xdp: Vec::new(),
        peer: None,
        peer_nsid: None,
    };
    all.iter().map(|it| (it.host.ifindex().unwrap(), link(it))).collect()
}

/// No deferred DEL, or one of a container, sent one second after the boot.
fn deferred(container: Option<&str>) -> DeferredDels {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("agent.sock");
    if let Some(container) = container {
        let del = DeferredDel {
            network: "net".into(),
            container_id: container.into(),
            ifname: "eth0".into(),
            boot_id: fs::read_to_string(BOOT_ID).unwrap().trim_end().into(),
            since_boot_ns: 1_000_000_000,
        };
        let (network, ifname) = (NetworkName::new("net").unwrap(), IfName::new("eth0").unwrap());
        let path = deferred::path(&socket, &network, &ContainerId::new(container).unwrap(), &ifname);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, serde_json::to_vec(&del).unwrap()).unwrap();
    }
    DeferredDels::read(&socket, &StoreMetrics::default())
}

/// The keys of what is kept and of what is removed.
fn outcome(
    all: &[&Attachment],
    links: &HashMap<u32, HostLinkState>,
    dels: &DeferredDels,
) -> [Vec<String>; 2] {
    let Plan { live, foreign, lost, dead } = plan(all.iter().copied().cloned().collect(), links, dels);
    assert!(foreign.is_empty() && lost.is_empty(), "no namespace exists");
    [live, dead].map(|all| all.iter().map(|it| it.key.to_string()).collect())
}

#[test]
fn an_attachment_lives_with_its_interface() {
    let (here, gone) = (attached("a", 2), attached("b", 3));
    let [live, dead] = outcome(&[&here, &gone], &links(&[&here], IN_SERVICE), &deferred(None));
    assert_eq!(
        (live.as_slice(), dead.as_slice()),
        (&["net/a/eth0".to_owned()][..], &["net/b/eth0".to_owned()][..])
    );
}

#[test]
fn an_interface_that_was_never_committed_or_that_a_del_retired_is_removed() {
    for state in [State::Reserved, State::Plugged, State::Unplugging] {
        let half = attachment(state, "a", "eth0", 2);
        let [live, dead] = outcome(&[&half], &links(&[&half], IN_SERVICE), &deferred(None));
        assert_eq!((live.len(), dead.len()), (0, 1), "{state:?}");
    }
    let it = attached("a", 2);
    let [live, dead] = outcome(&[&it], &links(&[&it], reaper::RETIRED), &deferred(None));
    assert_eq!((live.len(), dead.len()), (0, 1), "retired");
}

#[test]
fn a_deferred_del_removes_an_attachment_that_is_older() {
    let older = attached("a", 2);
    let newer = Attachment { created_since_boot_ns: 2_000_000_000, ..older.clone() };
    for (it, lives) in [(&older, 0), (&newer, 1)] {
        let [live, dead] = outcome(&[it], &links(&[it], IN_SERVICE), &deferred(Some("a")));
        assert_eq!((live.len(), dead.len()), (lives, 1 - lives));
    }
}

#[test]
fn an_additional_interface_goes_with_the_requested_one() {
    let (eth0, eth1) = (attached("a", 2), additional("a", 3));
    let both = links(&[&eth0, &eth1], IN_SERVICE);
    let [live, _] = outcome(&[&eth0, &eth1], &both, &deferred(None));
    assert_eq!(live.len(), 2);
    let [live, dead] = outcome(&[&eth0, &eth1], &links(&[&eth1], IN_SERVICE), &deferred(None));
    assert_eq!((live.len(), dead.len()), (0, 2), "the requested one is gone");
    let [live, dead] = outcome(&[&eth1], &both, &deferred(None));
    assert_eq!((live.len(), dead.len()), (0, 1), "the requested one has no record");
}

#[test]
fn an_attachment_without_a_link_goes_with_its_namespace() {
    let none = Attachment { host: HostSide::None, ..attached("a", 2) };
    let unplugged = Attachment { host: HostSide::Unplugged, ..attached("b", 3) };
    let [live, dead] = outcome(&[&none, &unplugged], &HashMap::new(), &deferred(None));
    assert_eq!((live.len(), dead.len()), (0, 2));
}
