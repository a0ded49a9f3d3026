//! A store that fails, or is removed or changed, under the running agent.

use super::*;
use crate::chain::chain;

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

/// The operator has put an earlier copy of the store in its place, and the agent dies while it writes the
/// records again.
#[test]
fn store_that_is_replaced_by_an_earlier_copy_is_incomplete_until_all_records_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let registry = settled(dir.path());
    let (store, copy) = (dir.path().join("attachments"), dir.path().join("copy"));
    fs::create_dir(&copy).unwrap();
    for name in files(dir.path()) {
        fs::copy(store.join(&name), copy.join(name)).unwrap();
    }
    let added = attach(&registry, "c");
    fs::rename(&store, dir.path().join("moved")).unwrap();
    fs::rename(&copy, &store).unwrap();
    // The record of `c` cannot be written.
    let obstacle = file(dir.path(), "c");
    fs::create_dir_all(obstacle.join("in the way")).unwrap();
    registry.audit();
    assert!(registry.store_trouble().borrow().is_some());
    let list = registry.list();
    drop(registry);
    fs::remove_dir_all(obstacle).unwrap();
    let registry = open(dir.path()).unwrap();
    assert_eq!(*registry.condition(), Condition::Incomplete, "the next agent rebuilds the attachment");
    assert_eq!(registry.list(), list.into_iter().filter(|it| *it != added).collect::<Vec<_>>());
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
