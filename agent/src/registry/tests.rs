//! Allocation, durability and refusals of the registry.

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
    let reserved = registry.reserve(new(id)).unwrap();
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
fn released_address_is_allocated_again_after_30_s_also_across_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let registry = open(dir.path()).unwrap();
    let used = attach(&registry, "a");
    assert_eq!(used.vif.addresses.to_string(), "10.0.0.2");
    registry.release(&used).unwrap();
    let others = ["10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"];
    NOW.set(1_000_000 + 29_999);
    assert_eq!(allocatable(&registry), others);
    drop(registry);
    let registry = open(dir.path()).unwrap();
    assert_eq!(allocatable(&registry), others);
    NOW.set(1_000_000 + 30_000);
    assert_eq!(allocatable(&registry).len(), 5);
}

#[test]
fn file_of_a_released_attachment_is_removed_after_30_s() {
    let dir = tempfile::tempdir().unwrap();
    let registry = open(dir.path()).unwrap();
    let (a, b) = (attach(&registry, "a"), attach(&registry, "b"));
    registry.release(&a).unwrap();
    registry.audit();
    assert_eq!(files(dir.path()), ["meta", "net:a:eth0", "net:b:eth0"]);
    NOW.set(1_000_000 + 29_999);
    registry.audit();
    assert!(file(dir.path(), "a").exists());
    NOW.set(1_000_000 + 30_000);
    registry.audit();
    assert_eq!(files(dir.path()), ["meta", "net:b:eth0"]);
    assert_eq!(registry.list(), [b]);
}

#[test]
fn second_attachment_of_a_container_keeps_the_cooldown_of_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let registry = open(dir.path()).unwrap();
    let first = attach(&registry, "a");
    registry.release(&first).unwrap();
    let second = attach(&registry, "a");
    assert_ne!(second.vif.addresses, first.vif.addresses);
    drop(registry);
    let registry = open(dir.path()).unwrap();
    assert_eq!(registry.list(), std::slice::from_ref(&second));
    assert_eq!(allocatable(&registry), ["10.0.0.4", "10.0.0.5", "10.0.0.6"]);
    NOW.set(1_000_000 + 10_000);
    registry.release(&second).unwrap();
    drop(registry);
    NOW.set(1_000_000 + 30_000);
    let registry = open(dir.path()).unwrap();
    assert_eq!(allocatable(&registry), ["10.0.0.2", "10.0.0.4", "10.0.0.5", "10.0.0.6"]);
}

#[test]
fn cancelled_reservation_keeps_the_cooldown_of_its_predecessor() {
    let dir = tempfile::tempdir().unwrap();
    let registry = open(dir.path()).unwrap();
    registry.release(&attach(&registry, "a")).unwrap();
    registry.cancel(&registry.reserve(new("a")).unwrap()).unwrap();
    drop(registry);
    assert_eq!(allocatable(&open(dir.path()).unwrap()).len(), 4);
}

#[test]
fn address_released_twice_cools_down_from_its_last_release() {
    let dir = tempfile::tempdir().unwrap();
    let registry = open(dir.path()).unwrap();
    registry.release(&registry.reserve(fixed("b", "10.0.0.2")).unwrap()).unwrap();
    NOW.set(1_000_000 + 20_000);
    registry.release(&registry.reserve(fixed("a", "10.0.0.2")).unwrap()).unwrap();
    drop(registry);
    NOW.set(1_000_000 + 30_000);
    let registry = open(dir.path()).unwrap();
    assert!(!allocatable(&registry).contains(&"10.0.0.2".to_owned()), "the first release does not count");
    NOW.set(1_000_000 + 50_000);
    assert!(allocatable(&registry).contains(&"10.0.0.2".to_owned()));
}

#[test]
fn address_released_before_new_ranges_stays_in_cooldown() {
    let dir = tempfile::tempdir().unwrap();
    let registry = open(dir.path()).unwrap();
    registry.release(&attach(&registry, "a")).unwrap();
    registry.set_ranges(range("10.0.0.0/30"), &[]);
    assert!(allocatable(&registry).is_empty());
    NOW.set(1_000_000 + 30_000);
    assert_eq!(allocatable(&registry), ["10.0.0.2"]);
}

/// Puts a file in the place of the store, so that every write fails.
fn break_store(directory: &Path) {
    fs::rename(directory.join("attachments"), directory.join("aside")).unwrap();
    fs::write(directory.join("attachments"), "in the way").unwrap();
}

#[test]
fn no_address_leaks_while_the_store_fails() {
    let dir = tempfile::tempdir().unwrap();
    let registry = open(dir.path()).unwrap();
    let attached = attach(&registry, "a");
    let trouble = registry.store_trouble();
    break_store(dir.path());
    for round in 0..20 {
        let error = registry.reserve(new(&format!("b{round}"))).unwrap_err();
        assert!(matches!(error, RegistryError::Store(_)), "{error}");
        assert!(registry.reserve(fixed("c", "192.0.2.1")).is_err());
    }
    let why = trouble.borrow().clone().unwrap();
    assert!(why.contains("is a file, expected a directory"), "{why}");
    // Nothing else has changed either.
    assert!(registry.release(&attached).is_err() && registry.cancel(&attached).is_err());
    assert!(registry.update(Attachment { state: State::Reserved, ..attached.clone() }).is_err());
    assert_eq!(registry.list(), std::slice::from_ref(&attached));
    fs::remove_file(dir.path().join("attachments")).unwrap();
    registry.audit();
    assert_eq!(*trouble.borrow(), None);
    assert_eq!(allocatable(&registry), ["10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"]);
    registry.reserve(fixed("c", "192.0.2.1")).unwrap();
    drop(registry);
    assert_eq!(open(dir.path()).unwrap().list()[0], attached);
}

/// Opens a registry whose store is complete, with the attachments `a` and `b`, and one released.
fn settled(directory: &Path) -> Registry {
    let registry = open(directory).unwrap();
    registry.adopt(Vec::new(), &[], true).unwrap();
    let (_, _, gone) = (attach(&registry, "a"), attach(&registry, "b"), attach(&registry, "gone"));
    registry.release(&gone).unwrap();
    registry
}

#[test]
fn store_that_is_removed_or_replaced_under_the_agent_is_written_again() {
    type Change = fn(&Path);
    let changes: [(&str, Change); 3] = [
        ("removed", |store| fs::remove_dir_all(store).unwrap()),
        ("moved away", |store| fs::rename(store, store.with_extension("moved")).unwrap()),
        ("replaced", |store| {
            fs::rename(store, store.with_extension("moved")).unwrap();
            fs::create_dir(store).unwrap();
            (0..9).for_each(|it| fs::write(store.join(format!("new-{it}")), "unfinished").unwrap());
        }),
    ];
    for (what, change) in changes {
        for audits in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let registry = settled(dir.path());
            change(&dir.path().join("attachments"));
            // The next write notices, too.
            let more = if audits {
                registry.audit();
                None
            } else {
                Some(attach(&registry, "c"))
            };
            let list = registry.list();
            assert_eq!(list.len(), 2 + usize::from(more.is_some()));
            drop(registry);
            let registry = open(dir.path()).unwrap();
            assert_eq!(registry.list(), list, "{what}");
            assert_eq!(*registry.condition(), Condition::Intact, "{what}");
            assert_eq!(allocatable(&registry).len(), 4 - list.len(), "the cooldown is kept, {what}");
        }
    }
}

#[test]
fn files_that_are_removed_or_changed_under_the_agent_are_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let registry = settled(dir.path());
    let path = |id| file(dir.path(), id);
    let intact = files(dir.path());
    fs::remove_file(path("a")).unwrap();
    fs::write(path("b"), "garbage").unwrap();
    fs::rename(path("gone"), path("stray")).unwrap();
    fs::remove_file(dir.path().join("attachments/meta")).unwrap();
    registry.audit();
    assert_eq!(files(dir.path()), intact);
    let list = registry.list();
    drop(registry);
    let registry = open(dir.path()).unwrap();
    assert_eq!((registry.list(), registry.condition()), (list, &Condition::Intact));
    assert_eq!(allocatable(&registry).len(), 2);
}

#[tokio::test]
async fn audit_leaves_a_locked_key_and_interrupted_work_alone() {
    let dir = tempfile::tempdir().unwrap();
    let registry = settled(dir.path());
    let a = registry.get(&new("a").key).unwrap();
    let locked = registry.lock(&a.key).await;
    fs::remove_file(file(dir.path(), "a")).unwrap();
    registry.audit();
    assert!(!file(dir.path(), "a").exists(), "its holder may be about to write the file");
    drop(locked);
    registry.audit();
    let before = fs::read(file(dir.path(), "a")).unwrap();
    registry.advance(a, State::Unplugging).unwrap();
    registry.audit();
    assert_eq!(fs::read(file(dir.path(), "a")).unwrap(), before);
}

#[tokio::test]
async fn audit_leaves_reservations_in_progress_and_groups_with_a_locked_key_alone() {
    let dir = tempfile::tempdir().unwrap();
    let registry = settled(dir.path());
    // The record of `b` is written, and the table does not have it yet.
    let b = registry.table().attachments.remove(&new("b").key).unwrap();
    registry.table().allocated.insert(b.key.clone(), b.vif.addresses);
    registry.audit();
    assert!(file(dir.path(), "b").exists());
    registry.table().allocated.remove(&b.key);
    registry.audit();
    assert!(!file(dir.path(), "b").exists(), "a stray");
    // An additional interface is under the lock of the requested one.
    let requested = new("a").key;
    let eth1 = Key { ifname: IfName::new("eth1").unwrap(), ..requested.clone() };
    let more = NewAttachment { key: eth1, with: Some(requested.clone()), ..fixed("a", "192.0.2.1") };
    registry.reserve(more).unwrap();
    let path = dir.path().join("attachments/net:a:eth1");
    let locked = registry.lock(&requested).await;
    fs::remove_file(&path).unwrap();
    registry.audit();
    assert!(!path.exists());
    drop(locked);
    registry.audit();
    assert!(path.exists());
}

#[test]
fn interrupted_work_is_written_again_in_its_durable_state() {
    let dir = tempfile::tempdir().unwrap();
    let registry = settled(dir.path());
    let a = registry.get(&new("a").key).unwrap();
    registry.advance(a.clone(), State::Unplugging).unwrap();
    let reserved = registry.reserve(new("c")).unwrap();
    registry.advance(reserved.clone(), State::Plugged).unwrap();
    fs::remove_dir_all(dir.path().join("attachments")).unwrap();
    registry.audit();
    drop(registry);
    let registry = open(dir.path()).unwrap();
    assert_eq!((registry.get(&a.key), registry.get(&reserved.key)), (Some(a), Some(reserved)));
}

#[test]
fn database_of_an_earlier_build_is_removed_once_its_attachments_are_rebuilt() {
    let dir = tempfile::tempdir().unwrap();
    let database = dir.path().join("registry.redb");
    fs::write(&database, "precious").unwrap();
    let registry = open(dir.path()).unwrap();
    assert_eq!(*registry.condition(), Condition::Upgraded);
    registry.adopt(Vec::new(), &[], false).unwrap();
    assert!(database.exists(), "an interface is not rebuilt");
    drop(registry);
    let registry = open(dir.path()).unwrap();
    assert_eq!(*registry.condition(), Condition::Upgraded);
    registry.adopt(Vec::new(), &[], true).unwrap();
    assert!(!database.exists());
    // The earlier build ran again meanwhile: these records are not all.
    drop(registry);
    fs::write(&database, "precious").unwrap();
    let registry = open(dir.path()).unwrap();
    assert_eq!((registry.condition(), registry.is_complete()), (&Condition::Upgraded, false));
}

#[test]
fn path_that_is_no_directory_is_refused_with_what_was_found() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("attachments"), "").unwrap();
    let error = chain(&open(dir.path()).err().unwrap());
    assert!(error.contains("is a file, expected a directory: move a file away"), "{error}");
    let error = chain(&open(&dir.path().join("attachments")).err().unwrap());
    assert!(
        error.contains("leads to a file, expected a directory") && error.contains("--state-dir"),
        "{error}"
    );
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
