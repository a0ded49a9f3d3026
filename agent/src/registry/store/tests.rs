//! Damaged stores, other layouts, other boots and namespaces.

mod power;

use std::{fs, path::PathBuf};

use super::{
    super::Key,
    schema::{MIGRATIONS, Migration, rewrite},
    *,
};
use crate::{
    cluster::PodRef,
    durable::tests::in_memory,
    registry::{HostLink, HostSide, NetnsId, State},
};
use ferrule_vif::{Vif, VifKind};
use redb::TableDefinition;

fn attachment(number: u8) -> Attachment {
    let addresses = Addresses { v4: Some([10, 0, 0, number].into()), v6: None };
    let (mac, gateways) = (addresses.mac(), Addresses::default());
    Attachment {
        key: Key::try_from(format!("net/{}/eth0", format!("{number:02x}").repeat(32))).unwrap(),
        state: State::Attached,
        pod: PodRef {
            namespace: "default".to_owned(),
            name: format!("web-{number}"),
            uid: format!("u-{number}"),
        },
        netns: format!("/run/netns/cni-{number}").into(),
        netns_id: NetnsId { dev: 4, ino: 4026531840 + u64::from(number) },
        vif: Vif {
            kind: VifKind::Veth,
            mac,
            mtu: 1500,
            addresses,
            is_ipv6_first: false,
            gateways,
            is_default: true,
            routes: Vec::new(),
        },
        with: None,
        host: HostSide::Link(HostLink { ifname: "frabc".to_owned(), ifindex: number.into() }),
        created_at_ms: 1_700_000_000_000,
        created_since_boot_ns: 7,
    }
}

/// The bytes of a store after a crash or a clean end (`closed`), and the contents that it may open with.
fn pods(directory: &Path, closed: bool) -> (Vec<u8>, Vec<Vec<Attachment>>) {
    let path = directory.join("made.redb");
    let Opened { store, .. } = Store::open(&path).unwrap();
    store.adopt(&[], &[], true).unwrap();
    for number in 2..32 {
        store.put(&attachment(number)).unwrap();
    }
    for number in [3, 9, 21] {
        let gone = attachment(number);
        store.remove(&gone.key, gone.vif.addresses, Duration::from_secs(9), Duration::ZERO).unwrap();
    }
    let before = store.load().unwrap().attachments;
    store.put(&attachment(40)).unwrap();
    let last = store.load().unwrap().attachments;
    assert_eq!(last.len(), 28);
    let crashed = fs::read(&path).unwrap();
    drop(store);
    let bytes = if closed { fs::read(&path).unwrap() } else { crashed };
    // redb takes a damaged last transaction for one that a crash interrupted.
    (bytes, if closed { vec![last] } else { vec![last, before] })
}

fn path(directory: &Path) -> PathBuf {
    directory.join("registry.redb")
}

impl Store {
    fn open(path: &Path) -> Result<Opened, StoreError> {
        open_with(path, schema::MIGRATIONS)
    }
}

fn open_with(path: &Path, migrations: &[Migration]) -> Result<Opened, StoreError> {
    Store::open_with(path, migrations, &identity("boot", "4:1"))
}

fn identity(boot: &str, netns: &str) -> Identity {
    Identity { boot: boot.to_owned(), netns: netns.to_owned() }
}

/// Opens a store with these bytes.
fn opened(bytes: &[u8]) -> (tempfile::TempDir, Opened) {
    let directory = in_memory();
    fs::write(path(directory.path()), bytes).unwrap();
    let opened = Store::open(&path(directory.path())).unwrap();
    (directory, opened)
}

/// A corrupted store opens, with records that were written, and is not `Intact` if it lacks some. Returns
/// whether the corruption was noticed.
fn no_silent_loss(what: &str, bytes: &[u8], held: &[Vec<Attachment>]) -> bool {
    let (_directory, Opened { contents, condition, store }) = opened(bytes);
    for it in &contents.attachments {
        let number = it.vif.addresses.v4.unwrap().octets()[3];
        assert!(*it == attachment(number), "{what}: {it:?}");
    }
    if condition == Condition::Intact {
        assert!(held.contains(&contents.attachments), "{what}");
    }
    if let Condition::Damaged { quarantined, .. } = &condition {
        assert!(fs::read(quarantined).unwrap() == bytes, "{what}: the quarantined file differs");
    }
    store.put(&attachment(50)).unwrap();
    assert_eq!(store.load().unwrap().attachments.len(), contents.attachments.len() + 1, "{what}");
    condition != Condition::Intact
}

#[test]
fn truncated_zeroed_and_bit_flipped_stores_are_noticed() {
    for closed in [true, false] {
        let made = in_memory();
        let (bytes, held) = pods(made.path(), closed);
        assert!(!no_silent_loss("intact", &bytes, &held), "closed: {closed}");
        let mut damaged = 0;
        for part in 0..12 {
            let length = bytes.len() * part / 12 + part % 3;
            damaged += u32::from(no_silent_loss(
                &format!("truncated at {length}, closed: {closed}"),
                bytes.get(..length).unwrap(),
                &held,
            ));
        }
        assert!(damaged >= 11, "{damaged}");
        let used = bytes.len() - bytes.iter().rev().position(|byte| *byte != 0).unwrap();
        for start in (0..used).step_by(16 * 4096) {
            let mut holed = bytes.clone();
            holed[start..(start + 4096).min(bytes.len())].fill(0);
            no_silent_loss(&format!("zeroed page at {start}, closed: {closed}"), &holed, &held);
        }
        for at in (0..320).step_by(23).chain((512..used).step_by(49_999)) {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 8);
            no_silent_loss(&format!("flipped bit at {at}, closed: {closed}"), &flipped, &held);
        }
    }
}

#[test]
fn unreadable_record_does_not_affect_the_others() {
    let directory = tempfile::tempdir().unwrap();
    let path = path(directory.path());
    let Opened { store, .. } = Store::open(&path).unwrap();
    store.adopt(&[attachment(2), attachment(3), attachment(4)], &[], true).unwrap();
    let gone = attachment(5);
    store.remove(&gone.key, gone.vif.addresses, Duration::from_secs(9), Duration::ZERO).unwrap();
    let key = attachment(3).key.to_string();
    store
        .write(|transaction| {
            transaction.open_table(ATTACHMENTS)?.insert(key.as_str(), b"{}".as_slice())?;
            Ok(())
        })
        .unwrap();
    drop(store);
    let Opened { contents, condition, store } = Store::open(&path).unwrap();
    assert_eq!(contents.attachments, [attachment(2), attachment(4)]);
    assert_eq!(contents.cooldown, [([10, 0, 0, 5].into(), Duration::from_secs(9))]);
    assert!(matches!(condition, Condition::Damaged { why, .. } if why.contains(&key)));
    drop(store);
    assert_eq!(Store::open(&path).unwrap().condition, Condition::Incomplete, "until a rebuild");
}

#[test]
fn record_under_another_key_is_unreadable() {
    let json = serde_json::to_vec(&attachment(2)).unwrap();
    assert!(contents::decode(&attachment(2).key.to_string(), &json).is_ok());
    assert!(contents::decode(&attachment(3).key.to_string(), &json).is_err());
}

#[test]
fn expired_cooldowns_are_pruned() {
    let directory = in_memory();
    let Opened { store, .. } = Store::open(&path(directory.path())).unwrap();
    let (step, rest) = (Duration::from_millis(100), Duration::from_secs(3));
    for number in 0..250_u8 {
        let now = Duration::from_secs(100) + step * number.into();
        let address = Addresses { v4: Some([10, 0, 0, number].into()), v6: None };
        store.remove(&attachment(2).key, address, now, now - rest).unwrap();
        let cooldown = store.load().unwrap().cooldown;
        let must = usize::from(number.min(29)) + 1;
        assert!((must..=must + 10).contains(&cooldown.len()), "{number}: {}", cooldown.len());
        assert_eq!(cooldown.last(), Some(&([10, 0, 0, number].into(), now)));
    }
}

#[test]
fn only_the_newest_quarantined_files_are_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = path(directory.path());
    for number in 1..=5 {
        fs::write(&path, format!("garbage {number}")).unwrap();
        let Condition::Damaged { quarantined, .. } = Store::open(&path).unwrap().condition else { panic!() };
        assert_eq!(fs::read_to_string(quarantined).unwrap(), format!("garbage {number}"));
    }
    let mut names: Vec<_> = fs::read_dir(&directory).unwrap().map(|it| it.unwrap().file_name()).collect();
    names.sort_unstable();
    let expected =
        ["registry.redb", "registry.redb.corrupt-3", "registry.redb.corrupt-4", "registry.redb.corrupt-5"];
    assert_eq!(names, expected);
}

#[test]
fn newer_layout_is_refused_and_the_file_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let path = path(directory.path());
    let later: &[Migration] = &[MIGRATIONS[0], |_| Ok(())];
    let Opened { store, .. } = open_with(&path, later).unwrap();
    store.put(&attachment(2)).unwrap();
    // Also after a crash, which redb would repair.
    let crashed = fs::read(&path).unwrap();
    drop(store);
    for bytes in [fs::read(&path).unwrap(), crashed] {
        fs::write(&path, &bytes).unwrap();
        let error = Store::open(&path).err().unwrap();
        assert!(matches!(error, StoreError::Layout { found: 3, newest: 2, .. }), "{error}");
        assert!(fs::read(&path).unwrap() == bytes, "the file changed");
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1, "a file beside the store");
    }
}

fn of_boot(directory: &Path, boot: &str, netns: &str) -> Result<Opened, StoreError> {
    Store::open_as(&path(directory), &identity(boot, netns))
}

/// A store with two attachments, and an address in cooldown.
fn filled(directory: &Path, boot: &str, netns: &str) {
    let Opened { store, .. } = of_boot(directory, boot, netns).unwrap();
    store.adopt(&[attachment(2), attachment(3), attachment(4)], &[], true).unwrap();
    let gone = attachment(4);
    store.remove(&gone.key, gone.vif.addresses, Duration::from_secs(9), Duration::ZERO).unwrap();
}

#[test]
fn store_of_another_netns_is_refused_and_the_file_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path(), "boot", "4:1");
    let path = path(directory.path());
    let bytes = fs::read(&path).unwrap();
    let transaction = redb::Database::open(&path).unwrap().begin_write().unwrap();
    transaction.open_table(ATTACHMENTS).unwrap().insert("spoilt", b"{}".as_slice()).unwrap();
    transaction.commit().unwrap();
    let damaged = fs::read(&path).unwrap();
    for bytes in [bytes, damaged] {
        fs::write(&path, &bytes).unwrap();
        let error = of_boot(directory.path(), "boot", "4:2").err().unwrap();
        assert!(matches!(error, StoreError::OtherNetns { .. }), "{error}");
        assert!(error.to_string().contains("(4:1; this agent's is 4:2)"), "{error}");
        assert!(fs::read(&path).unwrap() == bytes, "the file changed");
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1, "a file beside the store");
    }
    let there = of_boot(directory.path(), "boot", "4:1").unwrap();
    assert_eq!(there.contents.attachments, [attachment(2), attachment(3)]);
    drop(there);
    // The salvaged store keeps the identity of the damaged one.
    assert!(of_boot(directory.path(), "boot", "4:2").is_err());
}

#[test]
fn records_of_an_earlier_boot_are_discarded() {
    for netns in ["4:1", "4:2"] {
        let directory = tempfile::tempdir().unwrap();
        filled(directory.path(), "boot", "4:1");
        for _ in 0..2 {
            let Opened { contents, condition, .. } = of_boot(directory.path(), "next", netns).unwrap();
            assert_eq!((contents.attachments, contents.cooldown), (vec![], vec![]));
            assert_eq!(condition, Condition::Incomplete, "until a rebuild");
            assert_eq!(contents.identity, Some(identity("next", netns)));
        }
        let Opened { store, .. } = of_boot(directory.path(), "next", netns).unwrap();
        store.adopt(&[attachment(5)], &[], true).unwrap();
        drop(store);
        let Opened { contents, condition, .. } = of_boot(directory.path(), "next", netns).unwrap();
        assert_eq!((contents.attachments, condition), (vec![attachment(5)], Condition::Intact));
    }
}

#[test]
fn salvaged_records_of_an_earlier_boot_are_discarded() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path(), "boot", "4:1");
    let transaction = redb::Database::open(path(directory.path())).unwrap().begin_write().unwrap();
    transaction.open_table(ATTACHMENTS).unwrap().insert("spoilt", b"{}".as_slice()).unwrap();
    transaction.commit().unwrap();
    let Opened { contents, condition, .. } = of_boot(directory.path(), "next", "4:1").unwrap();
    assert_eq!((contents.attachments, contents.cooldown), (vec![], vec![]));
    assert!(matches!(condition, Condition::Damaged { .. }), "{condition:?}");
}

#[test]
fn store_without_identity_is_trusted_once() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path(), "boot", "4:1");
    let transaction = redb::Database::open(path(directory.path())).unwrap().begin_write().unwrap();
    let table: TableDefinition<'_, &str, &str> = TableDefinition::new("identity");
    assert!(transaction.delete_table(table).unwrap());
    transaction.commit().unwrap();
    let Opened { contents, condition, .. } = of_boot(directory.path(), "another", "4:7").unwrap();
    assert_eq!(
        (contents.attachments, condition),
        (vec![attachment(2), attachment(3)], Condition::Intact),
        "as an earlier build left it"
    );
    assert!(matches!(of_boot(directory.path(), "another", "4:1"), Err(StoreError::OtherNetns { .. })));
    assert!(of_boot(directory.path(), "boot", "4:1").unwrap().contents.attachments.is_empty());
}

#[test]
fn io_error_is_not_damage() {
    let directory = tempfile::tempdir().unwrap();
    let in_the_way = path(directory.path());
    fs::create_dir(&in_the_way).unwrap();
    let error = Store::open(&in_the_way).err().unwrap();
    assert!(matches!(error, StoreError::Open { .. }), "{error}");
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
}

/// Made-up migrations: layout 1 had the pod's name at the top, and layout 2 times in seconds.
const TWO_STEPS: &[Migration] = &[
    |transaction| {
        rewrite(transaction, |record| {
            let pod = record.remove("pod_name").unwrap();
            record.insert(
                "pod".to_owned(),
                serde_json::json!({ "namespace": "default", "name": pod, "uid": "u-2" }),
            );
        })
    },
    |transaction| {
        rewrite(transaction, |record| {
            let seconds = record.remove("created_at").unwrap().as_u64().unwrap();
            record.insert("created_at_ms".to_owned(), (seconds * 1000).into());
        })
    },
];

fn old_store(path: &Path, layout: u64) {
    let Opened { store, .. } = open_with(path, &[]).unwrap();
    let mut record = serde_json::to_value(attachment(2)).unwrap();
    let fields = record.as_object_mut().unwrap();
    fields.remove("created_at_ms");
    fields.insert("created_at".to_owned(), 1_700_000_000.into());
    if layout == 1 {
        fields.remove("pod");
        fields.insert("pod_name".to_owned(), "web-2".into());
    }
    let (key, json) = (attachment(2).key.to_string(), serde_json::to_vec(&record).unwrap());
    let write = |transaction: &WriteTransaction| {
        transaction.open_table(ATTACHMENTS)?.insert(key.as_str(), json.as_slice())?;
        let mut meta = transaction.open_table(META)?;
        meta.insert(LAYOUT, layout)?;
        meta.remove(INCOMPLETE)?;
        Ok(())
    };
    store.write(write).unwrap();
}

#[test]
fn earlier_layouts_migrate_step_by_step() {
    for layout in [1, 2] {
        let directory = tempfile::tempdir().unwrap();
        let path = path(directory.path());
        old_store(&path, layout);
        let Opened { contents, condition, store } = open_with(&path, TWO_STEPS).unwrap();
        assert_eq!(
            (contents.attachments, condition),
            (vec![attachment(2)], Condition::Intact),
            "from {layout}"
        );
        assert_eq!(store.database.read(contents::layout).unwrap(), Some(3));
        drop(store);
        let again = open_with(&path, TWO_STEPS).unwrap();
        assert_eq!((again.contents.attachments, again.condition), (vec![attachment(2)], Condition::Intact));
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1, "no file was quarantined");
    }
}

#[test]
fn failed_migration_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = path(directory.path());
    old_store(&path, 1);
    let bytes = fs::read(&path).unwrap();
    let fails: &[Migration] = &[TWO_STEPS[0], |_| Err(redb::Error::Corrupted("an old record".to_owned()))];
    let Condition::Damaged { quarantined, why } = open_with(&path, fails).unwrap().condition else {
        panic!()
    };
    assert!(why.contains("an old record"), "{why}");
    assert!(fs::read(&quarantined).unwrap() == bytes, "partly migrated");
}

/// Records of layout 1 as agents wrote them: key → record.
const LAYOUT_1: &str = include_str!("tests/layout_1.json");

/// A whole store of layout 1 with the records of [`LAYOUT_1`] and one more.
fn layout_1_store(path: &Path, more: Option<(&str, &[u8])>) {
    let Opened { store, .. } = open_with(path, &[]).unwrap();
    let records: serde_json::Map<String, serde_json::Value> = serde_json::from_str(LAYOUT_1).unwrap();
    let write = |transaction: &WriteTransaction| {
        let mut table = transaction.open_table(ATTACHMENTS)?;
        for (key, record) in &records {
            table.insert(key.as_str(), record.to_string().as_bytes())?;
        }
        if let Some((key, record)) = more {
            table.insert(key, record)?;
        }
        transaction.open_table(META)?.remove(INCOMPLETE)?;
        Ok(())
    };
    store.write(write).unwrap();
}

fn host_of<'a>(contents: &'a Contents, key: &str) -> &'a HostSide {
    &contents.attachments.iter().find(|it| it.key.to_string() == key).unwrap().host
}

#[test]
fn layout_1_migrates_to_records_with_kind_and_host_side() {
    let directory = tempfile::tempdir().unwrap();
    let path = path(directory.path());
    layout_1_store(&path, None);
    for round in ["migrating", "reopening"] {
        let Opened { contents, condition, store } = Store::open(&path).unwrap();
        assert_eq!((condition, contents.attachments.len()), (Condition::Intact, 4), "{round}");
        assert_eq!(store.database.read(contents::layout).unwrap(), Some(2), "{round}");
        assert!(contents.attachments.iter().all(|it| it.vif.kind == VifKind::Veth));
        let link = |ifname: &str, ifindex| HostSide::Link(HostLink { ifname: ifname.to_owned(), ifindex });
        assert_eq!(*host_of(&contents, "cluster/0123/eth0"), link("fr8c1d5b0e", 41));
        assert_eq!(*host_of(&contents, "cluster/0123/net1"), link("fr2f60aa17", 43));
        assert_eq!(*host_of(&contents, "cluster/4567/eth0"), HostSide::Unplugged, "Reserved");
        assert_eq!(*host_of(&contents, "cluster/89ab/eth0"), link("frx", 7));
        let first = contents.attachments.iter().find(|it| it.key.container_id.as_str() == "89ab").unwrap();
        assert_eq!((&first.with, first.created_since_boot_ns, first.vif.is_default), (&None, 0, true));
        assert!(first.vif.routes.is_empty() && first.vif.gateways == Addresses::default());
    }
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 1, "no file was quarantined");
}

#[test]
fn migration_keeps_every_field_that_it_does_not_change() {
    let directory = tempfile::tempdir().unwrap();
    layout_1_store(&path(directory.path()), None);
    let Opened { contents, .. } = Store::open(&path(directory.path())).unwrap();
    let mut old: serde_json::Map<String, serde_json::Value> = serde_json::from_str(LAYOUT_1).unwrap();
    for attachment in &contents.attachments {
        let mut migrated = serde_json::to_value(attachment).unwrap();
        let old = old.get_mut(&attachment.key.to_string()).unwrap().as_object_mut().unwrap();
        old.remove("host");
        let migrated_vif = migrated["vif"].take();
        for (field, value) in old.remove("vif").unwrap().as_object().unwrap() {
            assert_eq!(migrated_vif[field], *value, "{}: vif.{field}", attachment.key);
        }
        for (field, value) in old {
            assert_eq!(migrated[field.as_str()], *value, "{}: {field}", attachment.key);
        }
    }
}

#[test]
fn migration_quarantines_a_store_with_an_unreadable_record_and_salvages_the_others() {
    let spoilt: [&[u8]; 3] = [b"{", b"[]", br#"{"vif": 7, "host": []}"#];
    for record in spoilt {
        let directory = tempfile::tempdir().unwrap();
        let path = path(directory.path());
        layout_1_store(&path, Some(("cluster/spoilt/eth0", record)));
        let Opened { contents, condition, .. } = Store::open(&path).unwrap();
        assert_eq!(contents.attachments.len(), 4);
        assert!(matches!(condition, Condition::Damaged { why, .. } if why.contains("cluster/spoilt/eth0")));
    }
}

#[test]
fn host_side_is_recorded_by_name() {
    let link = || HostLink { ifname: "frx".to_owned(), ifindex: 7 };
    let device = r#"{"ifname":"frx","ifindex":7}"#;
    for (side, json) in [
        (HostSide::Unplugged, r#""unplugged""#.to_owned()),
        (HostSide::None, r#""none""#.to_owned()),
        (HostSide::Link(link()), format!(r#"{{"link":{device}}}"#)),
        (HostSide::Representor(link()), format!(r#"{{"representor":{device}}}"#)),
    ] {
        assert_eq!(serde_json::to_string(&side).unwrap(), json);
        assert_eq!(serde_json::from_str::<HostSide>(&json).unwrap(), side);
    }
}
