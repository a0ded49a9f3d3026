//! Addresses after their release, with a clock that the tests set.

use super::*;

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

#[test]
fn cooldown_of_an_interface_that_was_left_alone_is_made_durable_and_is_no_damage() {
    let dir = tempfile::tempdir().unwrap();
    let registry = open(dir.path()).unwrap();
    let key = new("left").key;
    let addresses = Addresses { v4: Some([10, 0, 0, 3].into()), v6: None };
    registry.leave(vec![LeftAddresses { key: key.clone(), ifindex: 9, addresses }]);
    registry.free_left(9);
    let kept = registry.kept(&key, None);
    let is_known = |kept| registry.table().has_outdated_file(&key, kept);
    assert!(is_known(&kept), "the agent began the cooldown itself");
    registry.audit();
    assert!(!is_known(&kept), "later changes of the file are another program's");
    NOW.set(1_000_000 + 30_000);
    assert!(is_known(&registry.kept(&key, None)), "the cooldown has ended");
    NOW.set(1_000_000 + 29_999);
    drop(registry);
    assert!(!allocatable(&open(dir.path()).unwrap()).contains(&"10.0.0.3".to_owned()));
}
