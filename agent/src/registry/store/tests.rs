//! Damaged files, other layouts, other boots and namespaces.

mod fields;

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use ferrule_vif::{Addresses, Vif, VifKind};

use super::{
    layout::{self, MIGRATIONS, Migration},
    record, *,
};
use crate::{
    cluster::PodRef,
    registry::{Attachment, HostLink, HostSide, Key, NetnsId, State, Wishes},
};

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
        wishes: Wishes::default(),
        host: HostSide::Link(HostLink { ifname: "frabc".to_owned(), ifindex: number.into() }),
        created_at_ms: 1_700_000_000_000,
        created_since_boot_ns: 7,
        later: serde_json::Map::new(),
    }
}

fn attached(number: u8) -> (Key, Kept) {
    let attachment = attachment(number);
    (attachment.key.clone(), Kept { attachment: Some(attachment), cooldown: Vec::new() })
}

fn cooling(number: u8) -> (Key, Kept) {
    let released = Released::new([10, 0, 0, number].into(), Duration::from_secs(9));
    (attachment(number).key, Kept { attachment: None, cooldown: vec![released] })
}

fn identity(boot: &str, netns: &str) -> Identity {
    Identity { boot: boot.to_owned(), netns: netns.to_owned() }
}

fn open(state_dir: &Path) -> Result<Opened, StoreError> {
    open_as(state_dir, "boot", "4:1")
}

fn open_as(state_dir: &Path, boot: &str, netns: &str) -> Result<Opened, StoreError> {
    super::open(state_dir, &identity(boot, netns))
}

fn open_with(state_dir: &Path, migrations: &[Migration]) -> Result<Opened, StoreError> {
    super::open::open_with(state_dir, migrations, &identity("boot", "4:1"))
}

/// A complete store with the attachments 2 and 3, and the address of 4 in cooldown.
fn filled(state_dir: &Path) {
    let Opened { store, .. } = open(state_dir).unwrap();
    for (key, kept) in [attached(2), attached(3), cooling(4)] {
        store.put(&key, &kept).unwrap();
    }
    store.mark(true).unwrap();
}

fn path(state_dir: &Path, number: u8) -> PathBuf {
    state_dir.join("attachments").join(record::name(&attachment(number).key))
}

fn meta(state_dir: &Path) -> PathBuf {
    state_dir.join("attachments/meta")
}

/// All files of the store with their contents.
fn snapshot(state_dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = fs::read_dir(state_dir.join("attachments")).unwrap();
    let mut files: Vec<_> =
        entries.map(|it| it.unwrap().path()).map(|it| (it.clone(), fs::read(it).unwrap())).collect();
    files.sort();
    files
}

#[test]
fn a_record_is_one_readable_file() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&dir.path().join("attachments")), mode(&path(dir.path(), 2))), (0o700, 0o600));
    let text = fs::read_to_string(path(dir.path(), 2)).unwrap();
    let (header, json) = text.split_once('\n').unwrap();
    assert!(header.starts_with("crc32c:") && header.ends_with(" ferrule-attachment 3"), "{header}");
    let json: serde_json::Value = serde_json::from_str(json).unwrap();
    assert_eq!((&json["boot"], &json["netns"]), (&"boot".into(), &"4:1".into()));
    assert_eq!(json["attachment"]["pod"]["name"], "web-2");
    let text = fs::read_to_string(path(dir.path(), 4)).unwrap();
    assert!(text.contains(r#""cooldown":[{"address":"10.0.0.4","since_boot_ms":9000}]"#), "{text}");
    assert!(!text.contains("attachment\":"), "{text}");
}

#[test]
fn names_of_files_lead_back_to_the_keys_and_the_longest_fits() {
    for key in [
        "net/0123/eth0",
        "a.b-c_d/0.1/x@y",
        &format!("{}/{}/fifteen-bytes-x", "n".repeat(100), "c".repeat(128)),
    ] {
        let key = Key::try_from(key.to_owned()).unwrap();
        let name = record::name(&key);
        assert!(name.len() <= 255, "{name}");
        assert_eq!(record::key(&name), Some(key));
    }
    for name in
        ["meta", "new-1", "corrupt-1", "net:0123", "net:0123:eth0:x", "net/0123/eth0", "net:01/23:eth0"]
    {
        assert_eq!(record::key(name), None, "{name}");
    }
}

#[test]
fn contents_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(open(dir.path()).unwrap().condition, Condition::New);
    filled(dir.path());
    let before = snapshot(dir.path());
    let Opened { records, condition, .. } = open(dir.path()).unwrap();
    assert_eq!((records, condition), (vec![attached(2), attached(3), cooling(4)], Condition::Intact));
    assert_eq!(snapshot(dir.path()), before, "nothing is written");
}

#[test]
fn a_large_record_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let Opened { store, .. } = open(dir.path()).unwrap();
    let (key, mut kept) = attached(2);
    let address = |number: u16| [10, 1, (number >> 8) as u8, number as u8].into();
    kept.cooldown = (0..10_000).map(|it| Released::new(address(it), Duration::from_secs(9))).collect();
    store.put(&key, &kept).unwrap();
    assert!(fs::metadata(path(dir.path(), 2)).unwrap().len() > 400_000);
    assert_eq!(open(dir.path()).unwrap().records, [(key, kept)]);
}

#[test]
fn a_key_of_which_nothing_is_kept_has_no_file() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let Opened { store, .. } = open(dir.path()).unwrap();
    for _ in 0..2 {
        store.put(&attachment(2).key, &Kept::default()).unwrap();
        assert!(!path(dir.path(), 2).exists());
        assert!(store.holds(&attachment(2).key, &Kept::default()).unwrap());
    }
    let (key, kept) = attached(3);
    assert!(store.holds(&key, &kept).unwrap() && !store.holds(&key, &Kept::default()).unwrap());
    assert_eq!(store.keys().unwrap(), [attachment(3).key, attachment(4).key]);
}

/// Each record is damaged in turn; the others are kept.
fn damage_is_noticed(dir: &Path, what: &str, damaged: &[u8], why: &str) {
    fs::write(path(dir, 2), damaged).unwrap();
    let Opened { store, records, condition } = open(dir).unwrap();
    assert_eq!(records, [attached(3), cooling(4)], "{what}");
    let Condition::Damaged { why: found, quarantined } = condition else { panic!("{what}: {condition:?}") };
    assert!(
        found.starts_with("1 damaged files, the first: \"net:0202") && found.contains(why),
        "{what}: {found}"
    );
    assert_eq!(fs::read(quarantined).unwrap(), damaged, "{what}");
    drop(store);
    assert_eq!(open(dir).unwrap().condition, Condition::Incomplete, "until a rebuild, {what}");
    filled(dir);
}

#[test]
fn every_truncation_and_every_flipped_bit_of_a_record_is_noticed_and_costs_no_other_record() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let bytes = fs::read(path(dir.path(), 2)).unwrap();
    for at in 0..bytes.len() {
        damage_is_noticed(dir.path(), &format!("cut at {at}"), &bytes[..at], "");
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        damage_is_noticed(dir.path(), &format!("flipped bit in byte {at}"), &flipped, "");
    }
}

#[test]
fn sealed_nonsense_and_a_record_of_another_key_are_damage() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let sealed = |json: &str| crate::durable::seal("ferrule-attachment", 3, json.as_bytes());
    damage_is_noticed(dir.path(), "no record", &sealed("{}"), "missing field");
    damage_is_noticed(dir.path(), "no JSON", &sealed("["), "");
    let other = fs::read(path(dir.path(), 3)).unwrap();
    damage_is_noticed(dir.path(), "another record", &other, "the record belongs to net/0303");
    // The attachment's own key counts, too.
    let text = String::from_utf8(other).unwrap().replacen(&"03".repeat(32), &"02".repeat(32), 1);
    let json = text.split_once('\n').unwrap().1;
    damage_is_noticed(dir.path(), "another attachment", &sealed(json), "the record belongs to net/0303");
    let meta = fs::read(meta(dir.path())).unwrap();
    damage_is_noticed(dir.path(), "another kind", &meta, "another kind");
}

#[test]
fn damaged_or_missing_mark_makes_the_store_incomplete_and_keeps_the_records() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let bytes = fs::read(meta(dir.path())).unwrap();
    let all = [attached(2), attached(3), cooling(4)];
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        for damaged in [&flipped, &bytes[..at]] {
            fs::write(meta(dir.path()), damaged).unwrap();
            let Opened { records, condition, .. } = open(dir.path()).unwrap();
            assert_eq!(records, all, "byte {at}");
            let Condition::Damaged { quarantined, .. } = condition else {
                panic!("byte {at}: {condition:?}")
            };
            assert_eq!(fs::read(quarantined).unwrap(), damaged);
        }
    }
    fs::remove_file(meta(dir.path())).unwrap();
    let Opened { records, condition, .. } = open(dir.path()).unwrap();
    assert_eq!((records.as_slice(), condition), (all.as_slice(), Condition::New));
    assert_eq!(open(dir.path()).unwrap().condition, Condition::Incomplete);
}

#[test]
fn a_directory_or_a_fifo_in_the_place_of_a_record_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    fs::remove_file(path(dir.path(), 2)).unwrap();
    fs::create_dir(path(dir.path(), 2)).unwrap();
    fs::remove_file(path(dir.path(), 3)).unwrap();
    nix::unistd::mkfifo(&path(dir.path(), 3), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let Opened { records, condition, .. } = open(dir.path()).unwrap();
    assert_eq!(records, [cooling(4)]);
    assert!(matches!(condition, Condition::Damaged { why, .. } if why.starts_with("2 damaged files")));
}

#[test]
fn only_the_newest_16_quarantined_files_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    for number in 1..=20 {
        fs::write(path(dir.path(), 2), format!("garbage {number}")).unwrap();
        let Condition::Damaged { quarantined, .. } = open(dir.path()).unwrap().condition else { panic!() };
        assert_eq!(fs::read_to_string(quarantined).unwrap(), format!("garbage {number}"));
    }
    let kept: Vec<_> =
        snapshot(dir.path()).into_iter().filter(|(_, bytes)| bytes.starts_with(b"garbage")).collect();
    let mut kept: Vec<_> = kept.into_iter().map(|(_, bytes)| String::from_utf8(bytes).unwrap()).collect();
    kept.sort_by_key(|it| it.len());
    assert_eq!((kept.len(), kept[0].as_str()), (16, "garbage 5"));
}

#[test]
fn unfinished_files_are_removed_and_foreign_ones_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let before = snapshot(dir.path());
    fs::write(dir.path().join("attachments/new-7"), "unfinished").unwrap();
    let note = dir.path().join("attachments/README");
    fs::write(&note, "an operator's").unwrap();
    assert_eq!(open(dir.path()).unwrap().condition, Condition::Intact);
    fs::remove_file(note).unwrap();
    assert_eq!(snapshot(dir.path()), before);
    // The names that this agent's own files get.
    for name in ["new-0", "new-1", "new-2"] {
        fs::write(dir.path().join("attachments").join(name), "unfinished").unwrap();
    }
    fs::remove_file(meta(dir.path())).unwrap();
    assert_eq!(open(dir.path()).unwrap().condition, Condition::New);
    assert_eq!(snapshot(dir.path()).len(), before.len());
}

#[test]
fn a_later_layout_is_refused_and_nothing_changed() {
    for name in ["record", "meta"] {
        let dir = tempfile::tempdir().unwrap();
        filled(dir.path());
        // A damaged file, an unfinished one and one of another boot stay as well.
        fs::write(path(dir.path(), 3), "damaged").unwrap();
        fs::write(dir.path().join("attachments/new-7"), "unfinished").unwrap();
        let (path, kind) = match name {
            "meta" => (meta(dir.path()), "ferrule-registry"),
            _ => (path(dir.path(), 4), "ferrule-attachment"),
        };
        for layout in [4, 99, 2, 0] {
            fs::write(&path, crate::durable::seal(kind, layout, b"{}")).unwrap();
            let before = snapshot(dir.path());
            let error = open(dir.path()).err().unwrap();
            assert!(
                matches!(&error, StoreError::Layout { oldest: 3, newest: 3, found, .. } if *found == layout),
                "{error}"
            );
            assert_eq!(snapshot(dir.path()), before, "{name}");
        }
    }
}

#[test]
fn a_store_of_another_netns_is_refused_and_nothing_changed() {
    for kept in ["everything", "record", "meta"] {
        let dir = tempfile::tempdir().unwrap();
        filled(dir.path());
        if kept != "everything" {
            for (file, _) in snapshot(dir.path()) {
                let is_meta = file == meta(dir.path());
                if is_meta != (kept == "meta") {
                    fs::remove_file(file).unwrap();
                }
            }
        }
        fs::write(dir.path().join("attachments/new-7"), "unfinished").unwrap();
        let before = snapshot(dir.path());
        let error = open_as(dir.path(), "boot", "4:2").err().unwrap();
        assert!(matches!(error, StoreError::OtherNetns { .. }), "{error}");
        assert!(error.to_string().contains("(4:1; this agent's is 4:2)"), "{error}");
        assert_eq!(snapshot(dir.path()), before, "{kept}");
        assert!(open(dir.path()).is_ok());
    }
}

#[test]
fn records_of_an_earlier_boot_are_discarded() {
    for netns in ["4:1", "4:2"] {
        let dir = tempfile::tempdir().unwrap();
        filled(dir.path());
        for _ in 0..2 {
            let Opened { records, condition, .. } = open_as(dir.path(), "next", netns).unwrap();
            assert_eq!((records, condition), (vec![], Condition::Incomplete), "until a rebuild");
            assert_eq!(snapshot(dir.path()).len(), 1, "the mark");
        }
        let Opened { store, .. } = open_as(dir.path(), "next", netns).unwrap();
        let (key, kept) = attached(5);
        store.put(&key, &kept).unwrap();
        store.mark(true).unwrap();
        let Opened { records, condition, .. } = open_as(dir.path(), "next", netns).unwrap();
        assert_eq!((records, condition), (vec![attached(5)], Condition::Intact));
    }
}

/// No write waits for the disk: of each file, a power cut leaves the present content, an earlier one,
/// nothing, or garbage of any length. The next boot begins with an empty kernel, and must begin with an empty
/// registry.
#[test]
fn whatever_a_power_cut_leaves_the_next_boot_starts_without_records() {
    let mut random = fastrand::Rng::with_seed(7);
    for cut in 0..300 {
        let dir = tempfile::tempdir().unwrap();
        filled(dir.path());
        for (file, mut bytes) in snapshot(dir.path()) {
            match random.u8(..5) {
                0 => fs::remove_file(file).unwrap(),
                1 => fs::write(file, &bytes[..random.usize(..bytes.len())]).unwrap(),
                2 => {
                    let from = random.usize(..bytes.len());
                    bytes[from..].fill(0);
                    fs::write(file, bytes).unwrap();
                }
                3 => fs::rename(file, dir.path().join(format!("attachments/new-{cut}"))).unwrap(),
                _ => {}
            }
        }
        let Opened { store, records, condition } = open_as(dir.path(), "next", "4:7").unwrap();
        assert_eq!(records, [], "cut {cut}");
        assert_ne!(condition, Condition::Intact, "cut {cut}");
        store.mark(true).unwrap();
        assert_eq!(open_as(dir.path(), "next", "4:7").unwrap().condition, Condition::Intact);
    }
}

#[test]
fn records_that_a_power_cut_has_damaged_are_discarded_and_are_no_damage_of_the_store() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let zeros = vec![0; fs::read(path(dir.path(), 2)).unwrap().len()];
    fs::write(path(dir.path(), 2), zeros).unwrap();
    fs::write(path(dir.path(), 3), "").unwrap();
    fs::remove_file(path(dir.path(), 4)).unwrap();
    fs::create_dir(path(dir.path(), 4)).unwrap();
    let Opened { records, condition, .. } = open_as(dir.path(), "next", "4:7").unwrap();
    assert_eq!((records, condition), (vec![], Condition::Incomplete));
    assert!(!path(dir.path(), 2).exists() && !path(dir.path(), 3).exists() && !path(dir.path(), 4).exists());
    // The same in the boot of the records is damage.
    filled(dir.path());
    fs::write(path(dir.path(), 3), "").unwrap();
    assert!(matches!(open(dir.path()).unwrap().condition, Condition::Damaged { .. }));
}

#[test]
fn an_unreadable_store_is_not_taken_for_damage() {
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("attachments", dir.path().join("attachments")).unwrap();
    let error = open(dir.path()).err().unwrap();
    assert!(matches!(error, StoreError::Directory(_)), "{error}");
}

/// Two later layouts: the first renames a field, the second changes its unit.
const TWO_STEPS: &[Migration] = &[
    |record| {
        if let Some(netns) = record.remove("network_namespace") {
            record.insert("netns".to_owned(), netns);
        }
    },
    |record| {
        for released in record.get_mut("cooldown").and_then(|it| it.as_array_mut()).into_iter().flatten() {
            if let Some(seconds) = released["since_boot_s"].as_u64() {
                released["since_boot_ms"] = (seconds * 1000).into();
            }
        }
    },
];

#[test]
fn earlier_layouts_migrate_step_by_step() {
    for layout in [3, 4] {
        let dir = tempfile::tempdir().unwrap();
        filled(dir.path());
        let text = fs::read_to_string(path(dir.path(), 4)).unwrap();
        let mut json =
            text.split_once('\n').unwrap().1.replace(r#""since_boot_ms":9000"#, r#""since_boot_s":9"#);
        if layout == 3 {
            json = json.replace(r#""netns":"4:1""#, r#""network_namespace":"4:1""#);
        }
        fs::write(path(dir.path(), 4), crate::durable::seal("ferrule-attachment", layout, json.as_bytes()))
            .unwrap();
        let Opened { records, condition, .. } = open_with(dir.path(), TWO_STEPS).unwrap();
        assert_eq!(condition, Condition::Intact, "from {layout}");
        assert_eq!(records, [attached(2), attached(3), cooling(4)], "from {layout}");
        assert_eq!(snapshot(dir.path()).len(), 4, "no file was quarantined");
    }
}

/// Files of layout 3, as agents wrote them. Every later agent must read them.
#[test]
fn files_of_layout_3_are_read() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("attachments")).unwrap();
    let golden = include_str!("tests/layout_3.txt");
    for file in golden.split("---- ").skip(1) {
        let (name, content) = file.split_once('\n').unwrap();
        fs::write(dir.path().join("attachments").join(name), content).unwrap();
    }
    let boot = "0f5d3a51-32d8-4f0a-9d2b-5f3c1c0b7a11";
    let Opened { records, condition, .. } = open_as(dir.path(), boot, "4:4026531840").unwrap();
    assert_eq!(condition, Condition::Intact);
    let [(requested, first), (additional, second), (reserved, third), (released, fourth), (_, wishing)] =
        records.as_slice()
    else {
        panic!("{records:#?}")
    };
    assert_eq!(requested.to_string(), "cluster/0123/eth0");
    let first = first.attachment.as_ref().unwrap();
    assert_eq!(first.host, HostSide::Link(HostLink { ifname: "fr8c1d5b0e".to_owned(), ifindex: 41 }));
    assert_eq!((first.vif.addresses.to_string().as_str(), first.vif.mtu), ("10.0.0.2 fd00::2", 1450));
    assert_eq!((first.vif.routes.len(), first.created_since_boot_ns), (2, 81_234_567_890));
    let second = second.attachment.as_ref().unwrap();
    assert_eq!(
        (additional.to_string().as_str(), second.with.as_ref()),
        ("cluster/0123/net1", Some(requested))
    );
    assert_eq!(reserved.to_string(), "cluster/4567/eth0");
    let (cooldown, third) = (&third.cooldown, third.attachment.as_ref().unwrap());
    assert_eq!((third.state, &third.host), (State::Reserved, &HostSide::Unplugged));
    assert_eq!(*cooldown, [Released::new([10, 0, 0, 9].into(), Duration::from_millis(82_000))]);
    assert_eq!((released.to_string().as_str(), &fourth.attachment), ("cluster/89ab/eth0", &None));
    assert_eq!(fourth.cooldown.len(), 2);
    // As the commit f9d5709 wrote ports and limits, which later releases upgrade from.
    let wishing = wishing.attachment.as_ref().unwrap();
    let ports: Vec<_> = wishing.wishes.host_ports.iter().map(ToString::to_string).collect();
    assert_eq!(ports, ["TCP 8080", "UDP 192.0.2.1:53"]);
    let rates = [wishing.wishes.ingress, wishing.wishes.egress].map(Option::unwrap);
    assert_eq!(
        rates.map(|it| (it.bits, it.burst_bits)),
        [(10_000_000, 4_294_967_295), (20_000_000, 800_000)]
    );
    assert!(wishing.vif.is_ipv6_first && wishing.wishes.later.is_empty() && wishing.later.is_empty());
    assert_eq!((wishing.vif.routes[0].mtu, wishing.vif.routes[0].advmss), (Some(1400), Some(1360)));
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

#[test]
fn this_agent_writes_layout_3() {
    assert_eq!(layout::newest(MIGRATIONS), 3);
}
