//! What is compared, and of which attachments.

use super::*;

#[test]
fn verify_finds_a_pods_end_that_is_down_and_accepts_what_a_chain_may_change() {
    let mut case = Case::new();
    assert_eq!(case.pod_end(), []);
    case.pod().mtu = 1400;
    case.pod().routes.clear();
    case.pod().neighbours.clear();
    assert_eq!(case.pod_end(), []);
    case.pod().up = false;
    assert_eq!(case.pod_end(), [Kind::PodLink]);
    assert_eq!(case.whole_node(), [], "healing does not read the pod's end");
}

#[test]
fn only_the_agents_own_links_and_devices_have_a_desired_state() {
    let device = || HostLink { ifname: "fra".to_owned(), ifindex: INDEX };
    let mut it = one("a", 2, INDEX);
    let links = good(&it).host.links;
    let mut actual = good(&it);
    actual.entries = Entries::of_none();
    for (host, is_ours, of_links) in [
        (HostSide::Link(device()), true, Presence::Present),
        (HostSide::Unplugged, false, Presence::Missing),
        (HostSide::None, false, Presence::Missing),
        // The driver owns the device: no stamp marks it, and nothing of it is compared.
        (HostSide::Representor(device()), false, Presence::Missing),
    ] {
        it.host = host.clone();
        actual.host = HostInventory { links: links.clone(), ..HostInventory::default() };
        assert_eq!(presence(&it, &links), of_links, "{host:?}");
        assert_eq!(desired(&it, PROGRAMS).is_some(), is_ours, "{host:?}");
        // Two filters, routes and neighbours of two families, four entries; all without the link's own facts.
        let found_kinds = kinds(&actual.deviations_of(&it));
        assert_eq!(found_kinds.len(), if is_ours { 10 } else { 0 }, "{host:?}: {found_kinds:?}");
    }
    // The entries of a representor's index are known, those of no device are strays.
    let of_device = Entries::of(INDEX, &one("a", 2, INDEX));
    for (host, strays) in [(HostSide::Representor(device()), 0), (HostSide::None, 2)] {
        it.host = host;
        let actual = Inventory { entries: of_device.clone(), programs: PROGRAMS, ..Inventory::default() };
        let found = kinds(&actual.deviations(from_ref(&it), from_ref(&it)));
        assert_eq!(found, vec![Kind::StrayEntry; strays], "VIFS and VIF_COUNTERS");
    }
}

#[test]
fn an_attachment_that_changes_during_the_read_is_skipped() {
    let it = one("a", 2, INDEX);
    let mut actual = good(&it);
    link(&mut actual).mtu = 1400;
    let mut changed = it.clone();
    changed.vif.mtu = 1400;
    assert_eq!(kinds(&actual.deviations(from_ref(&it), from_ref(&it))), [Kind::LinkMtu]);
    assert_eq!(actual.deviations(from_ref(&it), from_ref(&changed)), []);
}

#[test]
fn a_link_that_an_add_has_not_stamped_yet_is_not_the_attachments() {
    let it = one("a", 2, INDEX);
    let mut links = good(&it).host.links;
    let link = links.get_mut(&INDEX).unwrap();
    link.stamp = None;
    assert_eq!(presence(&it, &links), Presence::Restamped);
    for group in [UNSTAMPED, RETIRED] {
        links.get_mut(&INDEX).unwrap().group = group;
        assert_eq!(presence(&it, &links), Presence::Missing, "the reaper's");
    }
}

#[test]
fn a_pod_without_ipv4_needs_no_ipv4_forwarding() {
    let mut it = one("a", 2, INDEX);
    it.vif.addresses.v4 = None;
    let mut actual = good(&it);
    link(&mut actual).forwards_ipv4 = false;
    assert_eq!(actual.deviations_of(&it), []);
}

#[test]
fn later_plugins_may_lower_the_mtu_and_drop_routes() {
    let case = Case::new();
    let mut desired = desired(&case.attachment, PROGRAMS).unwrap();
    desired.pod.mtu = ExpectedMtu::AtMost(1500);
    desired.pod.routes.clear();
    let mut pod = good_pod(&case.attachment);
    (pod.mtu, pod.routes) = (1300, Vec::new());
    pod.neighbours.clear();
    let Inventory { host, entries, .. } = &case.actual;
    let found = |desired: &Desired<'_>, pod: &PodEndState| {
        let pod = PodEnd::Present(pod);
        kinds(&desired.diff(&Actual { host, entries, netns_exists: true, pod }))
    };
    assert_eq!(found(&desired, &pod), []);
    pod.mtu = 1600;
    assert_eq!(found(&desired, &pod), [Kind::PodMtu]);
    desired.pod.mtu = ExpectedMtu::Exactly(1600);
    assert_eq!(found(&desired, &pod), []);
}
