//! What the registry keeps, and what it refuses.

use std::path::Path;

use ferrule_proto::names::{ContainerId, IfName, NetworkName};

use super::*;

const RANGE: &str = "10.0.0.0/29";

fn open(directory: &Path) -> Result<Registry, RegistryError> {
    let registry = Registry::open(directory)?;
    registry.set_ranges(&[RANGE.parse().unwrap()], &[])?;
    Ok(registry)
}

fn draft(id: &str) -> NewAttachment {
    NewAttachment {
        key: Key {
            network: NetworkName::new("net").unwrap(),
            container_id: ContainerId::new(id).unwrap(),
            ifname: IfName::new("eth0").unwrap(),
        },
        pod: Pod { namespace: "default".to_owned(), name: id.to_owned(), uid: "u-1".to_owned() },
        netns: "/run/netns/x".into(),
        netns_id: NetnsId { dev: 4, ino: 4026531840 },
        with: None,
        allocation: Allocation::FromIpam { mtu: 1500 },
    }
}

fn given(id: &str, address: &str) -> NewAttachment {
    let addresses = Addresses { v4: Some(address.parse().unwrap()), v6: None };
    let vif = Vif {
        kind: VifKind::Veth,
        mac: addresses.mac(),
        mtu: 1500,
        addresses,
        gateways: Addresses::default(),
        is_default: true,
        routes: Vec::new(),
    };
    NewAttachment { allocation: Allocation::Fixed(vif), ..draft(id) }
}

fn attach(registry: &Registry, id: &str) -> Attachment {
    let reserved = registry.reserve(draft(id)).unwrap();
    let host = HostSide::Link(HostLink { ifname: "frx".to_owned(), ifindex: 7 });
    registry.advance(Attachment { host, ..reserved }, State::Attached).unwrap()
}

#[test]
fn an_attachment_is_the_same_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let registry = open(dir.path()).unwrap();
    let attached = attach(&registry, "a");
    drop(registry);
    let registry = open(dir.path()).unwrap();
    assert_eq!(registry.list(), std::slice::from_ref(&attached));
    assert_eq!(registry.get(&attached.key), Some(attached.clone()));
    let other = registry.reserve(draft("b")).unwrap();
    assert_ne!(other.vif.addresses, attached.vif.addresses, "the address is still taken");
}

#[test]
fn an_intent_survives_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let registry = open(dir.path()).unwrap();
    let reserved = registry.reserve(draft("a")).unwrap();
    registry.advance(reserved.clone(), State::Plugged).unwrap();
    drop(registry);
    assert_eq!(
        open(dir.path()).unwrap().list(),
        [reserved],
        "Plugged is not durable: it is undone as Reserved"
    );
}

#[test]
fn a_cancelled_address_is_the_next_and_a_released_one_rests_also_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let registry = open(dir.path()).unwrap();
    let cancelled = registry.reserve(draft("a")).unwrap();
    registry.cancel(&cancelled).unwrap();
    let used = attach(&registry, "b");
    assert_eq!(used.vif.addresses, cancelled.vif.addresses);
    registry.release(&used).unwrap();
    assert!(registry.list().is_empty());
    drop(registry);
    let registry = open(dir.path()).unwrap();
    let mut given = Vec::new();
    while let Ok(reserved) = registry.reserve(draft(&format!("c{}", given.len()))) {
        given.push(reserved.vif.addresses);
    }
    assert_eq!(given.len(), 4, "five, less the one that rests");
    assert!(!given.contains(&used.vif.addresses));
}

#[test]
fn a_second_agent_is_refused_and_told_who_the_first_is() {
    let dir = tempfile::tempdir().unwrap();
    let _first = open(dir.path()).unwrap();
    let error = open(dir.path()).err().unwrap().to_string();
    assert!(error.contains(&format!("(pid {})", std::process::id())), "{error}");
}

#[test]
fn attachments_outside_of_the_ranges_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let registry = open(dir.path()).unwrap();
    let attached = attach(&registry, "a");
    drop(registry);
    let moved = Registry::open(dir.path()).unwrap();
    moved.set_ranges(&["10.9.0.0/29".parse().unwrap()], &[]).unwrap();
    assert_eq!(moved.list(), std::slice::from_ref(&attached));
    moved.release(&attached).unwrap();
}

#[test]
fn a_file_that_is_no_store_is_set_aside_and_said_to_be() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("registry.redb");
    fs::write(&path, "precious").unwrap();
    let registry = open(dir.path()).unwrap();
    let Condition::Damaged { aside, .. } = registry.condition() else { panic!("{:?}", registry.condition()) };
    assert_eq!(fs::read_to_string(aside).unwrap(), "precious");
    assert!(registry.list().is_empty());
}

#[test]
fn a_key_reads_back_what_it_prints() {
    let key = draft("a").key;
    assert_eq!(Key::try_from(key.to_string()).unwrap(), key);
    for text in ["", "a/b", "a/b/c/d", "a/../c", "a/b/lo"] {
        assert!(Key::try_from(text.to_owned()).is_err(), "{text:?}");
    }
}

#[test]
fn a_store_is_whole_only_when_somebody_has_looked_at_what_the_kernel_has() {
    let dir = tempfile::tempdir().unwrap();
    let condition = |registry: Registry| registry.condition().clone();
    assert_eq!(condition(open(dir.path()).unwrap()), Condition::New);
    let registry = open(dir.path()).unwrap();
    registry.adopt(Vec::new(), &[], false).unwrap();
    assert_eq!(condition(registry), Condition::Incomplete, "the first agent ended before it could look");
    let registry = open(dir.path()).unwrap();
    registry.adopt(Vec::new(), &[], true).unwrap();
    assert_eq!(condition(registry), Condition::Incomplete, "something was left");
    assert_eq!(condition(open(dir.path()).unwrap()), Condition::Intact);
}

#[test]
fn addresses_of_attachments_that_were_made_anew_are_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let first = {
        let elsewhere = tempfile::tempdir().unwrap();
        attach(&open(elsewhere.path()).unwrap(), "a")
    };
    let registry = open(dir.path()).unwrap();
    registry.adopt(vec![first.clone()], &[], true).unwrap();
    assert_eq!(registry.get(&first.key), Some(first.clone()));
    assert_ne!(registry.reserve(draft("b")).unwrap().vif.addresses, first.vif.addresses);
    // An earlier state of the store gives the address to somebody else, who is gone.
    let other = Attachment { key: draft("c").key, ..first.clone() };
    registry.adopt(vec![other.clone()], std::slice::from_ref(&first), true).unwrap();
    assert_eq!(registry.get(&first.key), None);
    drop(registry);
    let registry = open(dir.path()).unwrap();
    assert_eq!((registry.get(&first.key), registry.get(&other.key)), (None, Some(other)));
    assert_ne!(registry.reserve(draft("d")).unwrap().vif.addresses, first.vif.addresses);
}

#[test]
fn addresses_that_were_made_anew_the_other_way_round_are_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let registry = open(dir.path()).unwrap();
    let (a, b) = (attach(&registry, "a"), attach(&registry, "b"));
    let turned = vec![Attachment { vif: b.vif.clone(), ..a.clone() }, Attachment { vif: a.vif, ..b }];
    registry.adopt(turned.clone(), &[], true).unwrap();
    // Nothing rests any more by then.
    let later = since_boot() + COOLDOWN;
    while let Ok(taken) = registry.inner().ipam.take(later) {
        assert!(turned.iter().all(|it| it.vif.addresses != taken), "{taken} is in use");
    }
}

#[test]
fn an_agent_in_another_network_namespace_is_refused_and_one_after_a_reboot_begins_anew() {
    let dir = tempfile::tempdir().unwrap();
    let attached = attach(&open(dir.path()).unwrap(), "a");
    let own = Identity::own().unwrap();
    let elsewhere = Identity { netns: "4:1".to_owned(), ..own.clone() };
    let error = Registry::open_as(dir.path(), &elsewhere).err().unwrap().to_string();
    assert!(error.contains("hostNetwork: true") && error.contains("4:1"), "{error}");
    assert_eq!(open(dir.path()).unwrap().list(), [attached]);
    let rebooted = Registry::open_as(dir.path(), &Identity { boot: "next".to_owned(), ..own }).unwrap();
    assert_eq!((rebooted.list(), rebooted.is_complete()), (vec![], false));
}

#[test]
fn an_address_that_was_decided_for_one_pod_is_no_others() {
    let dir = tempfile::tempdir().unwrap();
    let registry = open(dir.path()).unwrap();
    let first = registry.reserve(given("a", "10.0.0.2")).unwrap();
    assert!(
        matches!(registry.reserve(given("b", "10.0.0.2")), Err(RegistryError::InUse { by, .. }) if by == first.key)
    );
    let next = registry.reserve(draft("c")).unwrap();
    assert_eq!(next.vif.addresses.to_string(), "10.0.0.3", "the IPAM passes over it");
    registry.release(&first).unwrap();
    registry.reserve(given("b", "10.0.0.2")).unwrap();
}

#[test]
fn until_there_are_ranges_the_registry_knows_its_attachments_and_gives_no_address() {
    let dir = tempfile::tempdir().unwrap();
    let attached = attach(&open(dir.path()).unwrap(), "a");
    let registry = Registry::open(dir.path()).unwrap();
    assert_eq!(registry.list(), std::slice::from_ref(&attached));
    assert!(registry.ranges().borrow().is_empty());
    registry.reserve(given("b", "10.0.0.5")).unwrap();
    registry.set_ranges(&[RANGE.parse().unwrap()], &["10.0.0.3".parse().unwrap()]).unwrap();
    assert_eq!(registry.reserve(draft("c")).unwrap().vif.addresses.to_string(), "10.0.0.4");
    assert_eq!(registry.reserve(draft("d")).unwrap().vif.addresses.to_string(), "10.0.0.6");
}

#[test]
fn further_interfaces_belong_to_the_one_that_the_runtime_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let registry = open(dir.path()).unwrap();
    let first = attach(&registry, "a");
    let eth1 = Key { ifname: IfName::new("eth1").unwrap(), ..first.key.clone() };
    let with = Some(first.key.clone());
    let second =
        registry.reserve(NewAttachment { key: eth1.clone(), with, ..given("a", "10.0.0.5") }).unwrap();
    assert_eq!(registry.group(&first.key), [first.clone(), second.clone()]);
    assert!(registry.group(&eth1).is_empty(), "the runtime does not know it");
    assert_eq!(second.runtime_key(), first.key);
    assert!(matches!(
        registry.reserve(NewAttachment { key: eth1, ..draft("a") }),
        Err(RegistryError::KeyTaken(_))
    ));
}

#[test]
fn pain_3_two_that_ask_for_one_address_at_the_same_time_do_not_both_get_it() {
    let dir = tempfile::tempdir().unwrap();
    let registry = open(dir.path()).unwrap();
    // Outside of the IPAM's ranges, where nothing but the registry knows who has what.
    for round in 0..50 {
        let address = format!("192.0.2.{}", round + 1);
        let both = std::thread::scope(|scope| {
            let ask = |id: String| {
                let (registry, address) = (&registry, &address);
                scope.spawn(move || registry.reserve(given(&id, address)).is_ok())
            };
            let threads = [ask(format!("a{round}")), ask(format!("b{round}"))];
            threads.map(|thread| thread.join().unwrap())
        });
        assert_eq!(both.iter().filter(|got| **got).count(), 1, "round {round}");
    }
}

#[test]
fn an_address_that_nobody_is_given_by_chance_is_not_given_after_it_was_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let registry = open(dir.path()).unwrap();
    for address in ["10.0.0.0", "10.0.0.1", "10.0.0.7"] {
        let asked = registry.reserve(given("a", address)).unwrap();
        registry.cancel(&asked).unwrap();
        let next = registry.reserve(draft("b")).unwrap();
        assert_eq!(next.vif.addresses.to_string(), "10.0.0.2", "after {address}");
        registry.cancel(&next).unwrap();
    }
}
