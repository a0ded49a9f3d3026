//! Attachments and cooldowns while the ranges change.

use super::*;

#[test]
fn an_address_released_while_other_ranges_are_set_cools_down_when_its_range_returns() {
    let dir = tempfile::tempdir().unwrap();
    let registry = open(dir.path()).unwrap();
    let attached = attach(&registry, "a");
    registry.set_ranges(range("10.9.0.0/29"), &[]);
    registry.release(&attached).unwrap();
    registry.set_ranges(range(RANGE), &[]);
    let mut given = Vec::new();
    while let Ok(reserved) = registry.reserve(new(&format!("c{}", given.len()))) {
        given.push(reserved.vif.addresses.to_string());
    }
    assert_eq!(given, ["10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"]);
    let later = now() + Duration::from_secs(30);
    assert_eq!(registry.table().ipam.allocate(later).unwrap(), attached.vif.addresses);
}

#[test]
fn withdrawn_ranges_give_no_address_and_leave_attachments() {
    let dir = tempfile::tempdir().unwrap();
    let registry = open(dir.path()).unwrap();
    let attached = attach(&registry, "a");
    assert_eq!(registry.outside(&[]), []);
    registry.withdraw_ranges("the Node was deleted".to_owned());
    let refused = registry.reserve(new("b")).unwrap_err();
    assert!(matches!(refused, RegistryError::NoAddress(_)), "{refused}");
    assert_eq!(registry.list(), std::slice::from_ref(&attached));
    assert_eq!(registry.families(), (true, false), "the node still forwards for the pod");
    let outside = [(attached.key.clone(), attached.pod.clone(), "10.0.0.2".to_owned())];
    assert_eq!(registry.outside(&[]), outside);
    assert_eq!(registry.outside(&["10.0.0.0/30".parse().unwrap()]), [], "the operator allows it");
    registry.set_ranges(range("10.9.0.0/29"), &[]);
    assert_eq!(registry.outside(&[]), outside);
    assert_eq!(registry.reserve(new("b")).unwrap().vif.addresses.to_string(), "10.9.0.2");
    assert_eq!(registry.outside(&[]), outside, "the new one is inside");
    registry.release(&attached).unwrap();
    assert_eq!(registry.outside(&[]), []);
}
