//! Allocation, durability and refusals of the registry.

mod cooldown;
mod faults;
mod ranges;

use std::{cell::Cell, fs, path::PathBuf};

use ferrule_proto::names::{ContainerId, IfName, NetworkName};
use ferrule_vif::{Addresses, Vif, VifKind};

use super::*;

const RANGE: &str = "10.0.0.0/29";

fn range(range: &str) -> PodCidrs {
    PodCidrs::new(vec![range.parse().unwrap()]).unwrap()
}

thread_local! {
    /// The time since boot, in milliseconds.
    static NOW: Cell<u64> = const { Cell::new(1_000_000) };
}

fn now() -> Duration {
    Duration::from_millis(NOW.get())
}

fn open(directory: &Path) -> Result<Registry, RegistryError> {
    let registry = Registry::open_as(directory, &Identity::own().unwrap(), now)?;
    registry.set_ranges(range(RANGE), &[]);
    Ok(registry)
}

/// The file of a key.
fn file(directory: &Path, id: &str) -> PathBuf {
    directory.join(format!("attachments/net:{id}:eth0"))
}

/// The names of the files in the store.
fn files(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory.join("attachments")).unwrap();
    let mut names: Vec<_> = entries.map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

/// All addresses that can be allocated now.
fn allocatable(registry: &Registry) -> Vec<String> {
    let mut taken = Vec::new();
    while let Ok(reserved) = registry.reserve(new(&format!("probe{}", taken.len()))) {
        taken.push(reserved);
    }
    // In this order, the next probe allocates the same.
    taken.iter().rev().for_each(|it| registry.cancel(it).unwrap());
    let mut addresses: Vec<_> = taken.iter().map(|it| it.vif.addresses.to_string()).collect();
    addresses.sort_unstable();
    addresses
}

fn new(id: &str) -> NewAttachment {
    NewAttachment {
        key: Key {
            network: NetworkName::new("net").unwrap(),
            container_id: ContainerId::new(id).unwrap(),
            ifname: IfName::new("eth0").unwrap(),
        },
        pod: PodRef { namespace: "default".to_owned(), name: id.to_owned(), uid: "u-1".to_owned() },
        netns: "/run/netns/x".into(),
        netns_id: NetnsId { dev: 4, ino: 4026531840 },
        with: None,
        allocation: Allocation::FromIpam { mtu: 1500 },
        wishes: Wishes::default(),
    }
}

fn fixed(id: &str, address: &str) -> NewAttachment {
    let addresses = Addresses { v4: Some(address.parse().unwrap()), v6: None };
    let vif = Vif {
        kind: VifKind::Veth,
        mac: addresses.mac(),
        mtu: 1500,
        addresses,
        is_ipv6_first: false,
        gateways: Addresses::default(),
        is_default: true,
        routes: Vec::new(),
    };
    NewAttachment { allocation: Allocation::Fixed(vif), ..new(id) }
}

fn attach(registry: &Registry, id: &str) -> Attachment {
    plugged(registry, registry.reserve(new(id)).unwrap())
}

fn attach_fixed(registry: &Registry, id: &str) -> Attachment {
    plugged(registry, registry.reserve(fixed(id, "10.0.0.2")).unwrap())
}

fn plugged(registry: &Registry, reserved: Attachment) -> Attachment {
    let host = HostSide::Link(HostLink { ifname: "frx".to_owned(), ifindex: 7 });
    registry.advance(Attachment { host, ..reserved }, State::Attached).unwrap()
}

#[test]
fn attachment_survives_a_restart_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let registry = open(dir.path()).unwrap();
    let attached = attach(&registry, "a");
    drop(registry);
    let registry = open(dir.path()).unwrap();
    assert_eq!(registry.list(), std::slice::from_ref(&attached));
    assert_eq!(registry.get(&attached.key), Some(attached.clone()));
    let other = registry.reserve(new("b")).unwrap();
    assert_ne!(other.vif.addresses, attached.vif.addresses, "the address is still allocated");
}

#[test]
fn creation_and_release_are_recorded_by_the_clock_that_cannot_be_set() {
    let dir = tempfile::tempdir().unwrap();
    let began = since_boot();
    let registry = Registry::open(dir.path()).unwrap();
    let attached = attach_fixed(&registry, "a");
    let created = Duration::from_nanos(attached.created_since_boot_ns);
    registry.release(&attached).unwrap();
    let released = registry.kept(&attached.key, None).cooldown[0].at();
    let ended = since_boot();
    assert!(began <= created && created <= ended, "{created:?}");
    // Milliseconds are recorded.
    assert!(began.as_millis() <= released.as_millis() && released <= ended, "{released:?}");
}

#[test]
fn crash_after_plug_leaves_the_durable_reservation() {
    let dir = tempfile::tempdir().unwrap();
    let registry = open(dir.path()).unwrap();
    let reserved = registry.reserve(new("a")).unwrap();
    registry.advance(reserved.clone(), State::Plugged).unwrap();
    drop(registry);
    assert_eq!(open(dir.path()).unwrap().list(), [reserved], "Plugged is not durable");
}

#[test]
fn cancelled_address_is_allocated_next_and_released_one_cools_down_across_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let registry = open(dir.path()).unwrap();
    let cancelled = registry.reserve(new("a")).unwrap();
    registry.cancel(&cancelled).unwrap();
    let used = attach(&registry, "b");
    assert_eq!(used.vif.addresses, cancelled.vif.addresses);
    registry.release(&used).unwrap();
    assert!(registry.list().is_empty());
    drop(registry);
    let registry = open(dir.path()).unwrap();
    let mut given = Vec::new();
    while let Ok(reserved) = registry.reserve(new(&format!("c{}", given.len()))) {
        given.push(reserved.vif.addresses);
    }
    assert_eq!(given.len(), 4, "five, without the one in cooldown");
    assert!(!given.contains(&used.vif.addresses));
}

#[test]
fn second_agent_on_the_state_directory_is_refused_with_the_pid_of_the_first() {
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
    moved.set_ranges(range("10.9.0.0/29"), &[]);
    assert_eq!(moved.list(), std::slice::from_ref(&attached));
    moved.release(&attached).unwrap();
}

#[test]
fn store_is_intact_only_after_a_complete_rebuild() {
    let dir = tempfile::tempdir().unwrap();
    let condition = |registry: Registry| registry.condition().clone();
    assert_eq!(condition(open(dir.path()).unwrap()), Condition::New);
    let registry = open(dir.path()).unwrap();
    registry.adopt(Vec::new(), &[], false).unwrap();
    assert_eq!(condition(registry), Condition::Incomplete, "the first agent ended before a rebuild");
    let registry = open(dir.path()).unwrap();
    registry.adopt(Vec::new(), &[], true).unwrap();
    assert_eq!(condition(registry), Condition::Incomplete, "the rebuild was not complete");
    assert_eq!(condition(open(dir.path()).unwrap()), Condition::Intact);
}

#[test]
fn addresses_of_adopted_attachments_are_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let first = {
        let elsewhere = tempfile::tempdir().unwrap();
        attach(&open(elsewhere.path()).unwrap(), "a")
    };
    let registry = open(dir.path()).unwrap();
    registry.adopt(vec![first.clone()], &[], true).unwrap();
    assert_eq!(registry.get(&first.key), Some(first.clone()));
    assert_ne!(registry.reserve(new("b")).unwrap().vif.addresses, first.vif.addresses);
    // A stale record holds the address for a sandbox that is gone.
    let other = Attachment { key: new("c").key, ..first.clone() };
    registry.adopt(vec![other.clone()], std::slice::from_ref(&first), true).unwrap();
    assert_eq!(registry.get(&first.key), None);
    drop(registry);
    let registry = open(dir.path()).unwrap();
    assert_eq!((registry.get(&first.key), registry.get(&other.key)), (None, Some(other)));
    assert_ne!(registry.reserve(new("d")).unwrap().vif.addresses, first.vif.addresses);
}

#[test]
fn failed_adoption_leaves_no_address_with_two_records_and_the_store_incomplete() {
    let dir = tempfile::tempdir().unwrap();
    let registry = open(dir.path()).unwrap();
    let first = attach(&registry, "a");
    // Nothing can be written under the new key.
    fs::create_dir(file(dir.path(), "c")).unwrap();
    let other = Attachment { key: new("c").key, ..first.clone() };
    assert!(registry.adopt(vec![other], std::slice::from_ref(&first), true).is_err());
    assert!(!file(dir.path(), "a").exists(), "removed before the address gets another record");
    let mark = fs::read_to_string(dir.path().join("attachments/meta")).unwrap();
    assert!(mark.contains(r#""complete":false"#) && !registry.is_complete(), "{mark}");
}

#[test]
fn key_of_a_reservation_in_progress_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let registry = open(dir.path()).unwrap();
    registry.table().allocated.insert(new("a").key, Addresses::default());
    assert!(matches!(registry.reserve(new("a")), Err(RegistryError::KeyTaken(_))));
}

#[test]
fn addresses_swapped_by_adopted_attachments_are_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let registry = open(dir.path()).unwrap();
    let (a, b) = (attach(&registry, "a"), attach(&registry, "b"));
    let turned = vec![Attachment { vif: b.vif.clone(), ..a.clone() }, Attachment { vif: a.vif, ..b }];
    registry.adopt(turned.clone(), &[], true).unwrap();
    // Every cooldown has ended by then.
    let later = now() + Duration::from_secs(30);
    while let Ok(taken) = registry.table().ipam.allocate(later) {
        assert!(turned.iter().all(|it| it.vif.addresses != taken), "{taken} is in use");
    }
}

#[test]
fn store_of_another_netns_is_refused_and_of_another_boot_discarded() {
    let dir = tempfile::tempdir().unwrap();
    let attached = attach(&open(dir.path()).unwrap(), "a");
    let own = Identity::own().unwrap();
    let elsewhere = Identity { netns: "4:1".to_owned(), ..own.clone() };
    let error = Registry::open_as(dir.path(), &elsewhere, now).err().unwrap().to_string();
    assert!(error.contains("hostNetwork: true") && error.contains("4:1"), "{error}");
    assert_eq!(open(dir.path()).unwrap().list(), [attached]);
    let next = Identity { boot: "next".to_owned(), ..own };
    let rebooted = Registry::open_as(dir.path(), &next, now).unwrap();
    assert_eq!((rebooted.list(), rebooted.is_complete()), (vec![], false));
}

#[test]
fn fixed_address_in_use_is_refused_and_skipped_by_the_ipam() {
    let dir = tempfile::tempdir().unwrap();
    let registry = open(dir.path()).unwrap();
    let first = registry.reserve(fixed("a", "10.0.0.2")).unwrap();
    assert!(
        matches!(registry.reserve(fixed("b", "10.0.0.2")), Err(RegistryError::InUse { by, .. }) if by == first.key)
    );
    let next = registry.reserve(new("c")).unwrap();
    assert_eq!(next.vif.addresses.to_string(), "10.0.0.3", "the IPAM skips the fixed address");
    registry.release(&first).unwrap();
    registry.reserve(fixed("b", "10.0.0.2")).unwrap();
}

#[test]
fn without_ranges_attachments_are_listed_and_fixed_addresses_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let attached = attach(&open(dir.path()).unwrap(), "a");
    let registry = Registry::open(dir.path()).unwrap();
    assert_eq!(registry.list(), std::slice::from_ref(&attached));
    assert_eq!(*registry.ranges().borrow(), Ranges::Awaited);
    registry.reserve(fixed("b", "10.0.0.5")).unwrap();
    registry.set_ranges(range(RANGE), &["10.0.0.3".parse().unwrap()]);
    assert_eq!(registry.reserve(new("c")).unwrap().vif.addresses.to_string(), "10.0.0.4");
    assert_eq!(registry.reserve(new("d")).unwrap().vif.addresses.to_string(), "10.0.0.6");
}

#[test]
fn additional_interfaces_belong_to_the_group_of_the_requested_one() {
    let dir = tempfile::tempdir().unwrap();
    let registry = open(dir.path()).unwrap();
    let first = attach(&registry, "a");
    let eth1 = Key { ifname: IfName::new("eth1").unwrap(), ..first.key.clone() };
    let with = Some(first.key.clone());
    let second =
        registry.reserve(NewAttachment { key: eth1.clone(), with, ..fixed("a", "10.0.0.5") }).unwrap();
    assert_eq!(registry.group(&first.key), [first.clone(), second.clone()]);
    assert!(registry.group(&eth1).is_empty(), "not a runtime key");
    assert_eq!(second.runtime_key(), first.key);
    let unknown = Key { ifname: IfName::new("eth2").unwrap(), ..eth1.clone() };
    for (key, of) in [(&eth1, &first.key), (&first.key, &first.key), (&unknown, &unknown)] {
        assert_eq!(registry.runtime_key(key), *of);
    }
    assert!(matches!(
        registry.reserve(NewAttachment { key: eth1, ..new("a") }),
        Err(RegistryError::KeyTaken(_))
    ));
}

#[test]
fn concurrent_reservations_of_one_address_do_not_both_succeed() {
    let dir = tempfile::tempdir().unwrap();
    let registry = open(dir.path()).unwrap();
    // Outside of the IPAM's ranges, only the table prevents the conflict.
    for round in 0..50 {
        let address = format!("192.0.2.{}", round + 1);
        let both = std::thread::scope(|scope| {
            let reserve = |id: String| {
                let (registry, address) = (&registry, &address);
                scope.spawn(move || registry.reserve(fixed(&id, address)).is_ok())
            };
            let threads = [reserve(format!("a{round}")), reserve(format!("b{round}"))];
            threads.map(|thread| thread.join().unwrap())
        });
        assert_eq!(both.iter().filter(|succeeded| **succeeded).count(), 1, "round {round}");
    }
}

#[test]
fn network_gateway_and_broadcast_addresses_are_not_allocated_after_a_fixed_use() {
    let dir = tempfile::tempdir().unwrap();
    let registry = open(dir.path()).unwrap();
    for address in ["10.0.0.0", "10.0.0.1", "10.0.0.7"] {
        let reserved = registry.reserve(fixed("a", address)).unwrap();
        registry.cancel(&reserved).unwrap();
        let next = registry.reserve(new("b")).unwrap();
        assert_eq!(next.vif.addresses.to_string(), "10.0.0.2", "after {address}");
        registry.cancel(&next).unwrap();
    }
}

#[test]
fn an_attachment_is_found_by_interface_and_address_until_it_is_released_and_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open(directory.path()).unwrap();
    let reserved = registry.reserve(new("a")).unwrap();
    let address = reserved.vif.addresses.iter().next().unwrap();
    let found = |registry: &Registry| {
        (registry.behind(7).map(|it| it.key.clone()), registry.of_address(address).map(|it| it.key.clone()))
    };
    assert_eq!(found(&registry), (None, Some(reserved.key.clone())));
    let attached = plugged(&registry, reserved);
    let key = Some(attached.key.clone());
    assert_eq!(found(&registry), (key.clone(), key.clone()));
    assert_eq!(registry.owners().len(), 1);
    drop(registry);
    let registry = open(directory.path()).unwrap();
    assert_eq!(found(&registry), (key.clone(), key));
    registry.release(&attached).unwrap();
    assert_eq!(found(&registry), (None, None));
    assert_eq!(registry.owners(), []);
}
