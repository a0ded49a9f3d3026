//! What a log contains after updates, crashes, damage and failures.

use std::sync::Arc;

use super::{super::ObjectKey, *};

/// The JSON of an object.
struct Text(String);

impl Json for Text {
    fn write(&self, into: &mut Vec<u8>) -> serde_json::Result<()> {
        into.extend_from_slice(self.0.as_bytes());
        Ok(())
    }

    fn saved(&self) {}
}

fn update(position: &str, objects: &[(&str, Option<&str>)]) -> Update {
    let written = |json: &str| Entry::Written(Arc::new(Text(json.to_owned())));
    let key =
        |key: &str| key.split_once('/').map_or(ObjectKey::new("", key), |(n, it)| ObjectKey::new(n, it));
    let objects = objects.iter().map(|(name, json)| (key(name), json.map_or(Entry::Removed, written)));
    Update { position: position.to_owned(), replaces_all: false, objects: objects.collect() }
}

fn list(position: &str, objects: &[(&str, Option<&str>)]) -> Update {
    Update { replaces_all: true, ..update(position, objects) }
}

fn loaded(logs: &CheckpointLogs, watch: &str, identity: &str) -> Option<(String, Vec<String>)> {
    let Checkpoint { position, objects, .. } = logs.load(watch, identity)?;
    Some((position, objects.into_iter().map(|json| json.get().to_owned()).collect()))
}

fn checkpoint(position: &str, objects: &[&str]) -> Option<(String, Vec<String>)> {
    Some((position.to_owned(), objects.iter().map(|it| (*it).to_owned()).collect()))
}

fn pods(dir: &tempfile::TempDir) -> std::path::PathBuf {
    dir.path().join("watch/pods.log")
}

#[test]
fn a_checkpoint_survives_a_restart_for_the_same_watch_and_identity_only() {
    let dir = tempfile::tempdir().unwrap();
    let logs = CheckpointLogs::open(dir.path()).unwrap();
    logs.save("pods", "cluster", &list("7", &[("n/a", Some("1")), ("n/b", Some("2"))])).unwrap();
    logs.save("nodes", "cluster", &list("3", &[("node", Some("9"))])).unwrap();
    logs.save("pods", "cluster", &update("8", &[("n/a", None), ("n/c", Some("3"))])).unwrap();
    let logs = CheckpointLogs::open(dir.path()).unwrap();
    assert_eq!(loaded(&logs, "pods", "cluster"), checkpoint("8", &["2", "3"]));
    assert_eq!(loaded(&logs, "pods", "another cluster"), None);
    assert_eq!(loaded(&logs, "kuryrports", "cluster"), None);
    logs.save("pods", "another cluster", &list("2", &[("n/z", Some("4"))])).unwrap();
    assert_eq!(loaded(&logs, "pods", "another cluster"), checkpoint("2", &["4"]));
    assert_eq!(loaded(&logs, "nodes", "cluster"), checkpoint("3", &["9"]));
}

#[test]
fn a_checkpoint_has_the_time_of_its_last_update_however_often_agents_read_it() {
    let dir = tempfile::tempdir().unwrap();
    let logs = CheckpointLogs::open(dir.path()).unwrap();
    logs.save("pods", "cluster", &list("7", &[("n/a", Some("1"))])).unwrap();
    let earlier = SystemTime::now() - std::time::Duration::from_secs(3600);
    File::options().write(true).open(pods(&dir)).unwrap().set_modified(earlier).unwrap();
    for _ in 0..2 {
        let logs = CheckpointLogs::open(dir.path()).unwrap();
        assert_eq!(logs.load("pods", "cluster").unwrap().written, Some(earlier));
    }
    logs.save("pods", "cluster", &update("8", &[("n/b", Some("2"))])).unwrap();
    let written = CheckpointLogs::open(dir.path()).unwrap().load("pods", "cluster").unwrap().written;
    assert!(written > Some(earlier), "{written:?}");
}

#[test]
fn an_update_after_a_list_replaces_all_objects() {
    let dir = tempfile::tempdir().unwrap();
    let logs = CheckpointLogs::open(dir.path()).unwrap();
    logs.save("pods", "cluster", &list("7", &[("n/a", Some("1")), ("n/b", Some("2"))])).unwrap();
    logs.save("pods", "cluster", &list("20", &[("n/c", Some("3")), ("n/d", None)])).unwrap();
    logs.save("pods", "cluster", &update("21", &[("n/e", Some("4"))])).unwrap();
    assert_eq!(loaded(&logs, "pods", "cluster"), checkpoint("21", &["3", "4"]));
}

#[test]
fn changes_without_a_list_are_no_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let logs = CheckpointLogs::open(dir.path()).unwrap();
    assert!(logs.save("pods", "cluster", &update("8", &[("n/a", Some("1"))])).is_err());
    assert_eq!(loaded(&logs, "pods", "cluster"), None);
    // Nor are changes to the objects of another cluster.
    logs.save("pods", "cluster", &list("7", &[("n/a", Some("1"))])).unwrap();
    for logs in [&logs, &CheckpointLogs::open(dir.path()).unwrap()] {
        assert!(logs.save("pods", "another cluster", &update("9", &[("n/b", Some("2"))])).is_err());
        assert_eq!(loaded(logs, "pods", "another cluster"), None);
        assert_eq!(loaded(logs, "pods", "cluster"), checkpoint("7", &["1"]));
    }
}

#[test]
fn a_log_cut_at_any_byte_has_its_last_whole_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let logs = CheckpointLogs::open(dir.path()).unwrap();
    logs.save("pods", "cluster", &list("7", &[("n/a", Some("1"))])).unwrap();
    let first = fs::metadata(pods(&dir)).unwrap().len();
    logs.save("pods", "cluster", &update("8", &[("n/a", Some("2"))])).unwrap();
    let bytes = fs::read(pods(&dir)).unwrap();
    for length in usize::try_from(first).unwrap()..=bytes.len() {
        fs::write(pods(&dir), &bytes[..length]).unwrap();
        let logs = CheckpointLogs::open(dir.path()).unwrap();
        let (position, object) = if length < bytes.len() { ("7", "1") } else { ("8", "2") };
        assert_eq!(loaded(&logs, "pods", "cluster"), checkpoint(position, &[object]), "cut at {length}");
        logs.save("pods", "cluster", &update("9", &[("n/a", Some("3"))])).unwrap();
        let logs = CheckpointLogs::open(dir.path()).unwrap();
        assert_eq!(loaded(&logs, "pods", "cluster"), checkpoint("9", &["3"]), "cut at {length}");
    }
}

#[test]
fn flipped_bits_cost_no_more_than_a_relist() {
    let dir = tempfile::tempdir().unwrap();
    let logs = CheckpointLogs::open(dir.path()).unwrap();
    logs.save("pods", "cluster", &list("7", &[("n/a", Some("1")), ("n/b", Some("2"))])).unwrap();
    let first = usize::try_from(fs::metadata(pods(&dir)).unwrap().len()).unwrap();
    logs.save("pods", "cluster", &update("8", &[("n/b", None)])).unwrap();
    let bytes = fs::read(pods(&dir)).unwrap();
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        fs::write(pods(&dir), &flipped).unwrap();
        let logs = CheckpointLogs::open(dir.path()).unwrap();
        let expected = if at < first { None } else { checkpoint("7", &["1", "2"]) };
        assert_eq!(loaded(&logs, "pods", "cluster"), expected, "byte {at}");
        logs.save("pods", "cluster", &list("9", &[("n/c", Some("3"))])).unwrap();
        let logs = CheckpointLogs::open(dir.path()).unwrap();
        assert_eq!(loaded(&logs, "pods", "cluster"), checkpoint("9", &["3"]), "byte {at}");
    }
}

/// Nothing waits for a disk: the length of a file may be durable before its content.
#[test]
fn zeros_behind_a_position_as_a_power_cut_leaves_them_cost_no_earlier_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let logs = CheckpointLogs::open(dir.path()).unwrap();
    logs.save("pods", "cluster", &list("7", &[("n/a", Some("1"))])).unwrap();
    let first = usize::try_from(fs::metadata(pods(&dir)).unwrap().len()).unwrap();
    logs.save("pods", "cluster", &update("8", &[("n/a", Some("2"))])).unwrap();
    let bytes = fs::read(pods(&dir)).unwrap();
    for from in first..=bytes.len() {
        let zeros = vec![0; bytes.len() - from + 4096];
        fs::write(pods(&dir), [&bytes[..from], &zeros].concat()).unwrap();
        let logs = CheckpointLogs::open(dir.path()).unwrap();
        let (position, object) = if from < bytes.len() { ("7", "1") } else { ("8", "2") };
        assert_eq!(loaded(&logs, "pods", "cluster"), checkpoint(position, &[object]), "zeros from {from}");
        logs.save("pods", "cluster", &update("9", &[("n/b", Some("3"))])).unwrap();
        let logs = CheckpointLogs::open(dir.path()).unwrap();
        assert_eq!(loaded(&logs, "pods", "cluster"), checkpoint("9", &[object, "3"]), "zeros from {from}");
    }
    assert!(!dir.path().join("watch/corrupt-1").exists());
}

/// The agent is beyond the position before the damage, and keeps no copy of what the log has.
#[test]
fn a_running_agent_never_goes_on_from_an_earlier_position_of_a_damaged_log() {
    let dir = tempfile::tempdir().unwrap();
    let json = format!("\"{}\"", "x".repeat(300 << 10));
    let kept = |position: &str| {
        let mut update = list(position, &[("n/c", Some("3"))]);
        update.objects.push((ObjectKey::new("n", "a"), Entry::Kept));
        update
    };
    // A compaction, and a list that keeps an object.
    for next in [update("9", &[("n/b", Some(json.as_str()))]), kept("9")] {
        let logs = CheckpointLogs::open(dir.path()).unwrap();
        logs.save("pods", "cluster", &list("7", &[("n/a", Some("1"))])).unwrap();
        let first = usize::try_from(fs::metadata(pods(&dir)).unwrap().len()).unwrap();
        logs.save("pods", "cluster", &update("8", &[("n/a", Some("2"))])).unwrap();
        let mut bytes = fs::read(pods(&dir)).unwrap();
        bytes[first..].fill(0);
        fs::write(pods(&dir), bytes).unwrap();
        assert!(matches!(logs.save("pods", "cluster", &next), Err(SaveError::Failed(_))));
        assert!(matches!(logs.save("pods", "cluster", &kept("10")), Err(SaveError::Failed(_))));
        assert!(!pods(&dir).exists(), "quarantined");
        assert!(matches!(logs.save("pods", "cluster", &kept("11")), Err(SaveError::Lost)));
    }
}

#[test]
fn a_damaged_log_is_quarantined() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("watch")).unwrap();
    for damage in ["no log", "", "length:00000002\n{}"] {
        fs::write(pods(&dir), damage).unwrap();
        let logs = CheckpointLogs::open(dir.path()).unwrap();
        assert_eq!(loaded(&logs, "pods", "cluster"), None, "{damage:?}");
        assert!(!pods(&dir).exists(), "{damage:?}");
    }
    assert_eq!(fs::read_to_string(dir.path().join("watch/corrupt-1")).unwrap(), "no log");
}

#[test]
fn a_list_larger_than_a_frame_is_one_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let logs = CheckpointLogs::open(dir.path()).unwrap();
    let json = format!("\"{}\"", "x".repeat(1000));
    let keys: Vec<_> = (0..200).map(|number| format!("n/{number}")).collect();
    let objects: Vec<_> = keys.iter().map(|key| (key.as_str(), Some(json.as_str()))).collect();
    logs.save("pods", "cluster", &list("7", &[("n/a", Some("1"))])).unwrap();
    let before = fs::metadata(pods(&dir)).unwrap().len();
    logs.save("pods", "cluster", &update("8", &objects)).unwrap();
    assert_eq!(loaded(&logs, "pods", "cluster").unwrap().1.len(), 201);
    // Without its last frame, none of the update counts.
    let bytes = fs::read(pods(&dir)).unwrap();
    assert!(bytes.windows(7).filter(|it| *it == b"length:").count() > 3);
    fs::write(pods(&dir), &bytes[..bytes.len() - 1]).unwrap();
    let logs = CheckpointLogs::open(dir.path()).unwrap();
    assert_eq!(loaded(&logs, "pods", "cluster"), checkpoint("7", &["1"]));
    assert_eq!(fs::metadata(pods(&dir)).unwrap().len(), before, "the rest is cut off");
}

#[test]
fn a_log_of_many_changes_is_compacted_also_across_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let json = format!("\"{}\"", "x".repeat(100 << 10));
    let mut logs = CheckpointLogs::open(dir.path()).unwrap();
    logs.save("pods", "cluster", &list("0", &[("n/b", Some("1"))])).unwrap();
    for number in 1..=40 {
        if number % 3 == 0 {
            logs = CheckpointLogs::open(dir.path()).unwrap();
            logs.load("pods", "cluster").unwrap();
        }
        logs.save("pods", "cluster", &update(&number.to_string(), &[("n/a", Some(json.as_str()))])).unwrap();
        let length = fs::metadata(pods(&dir)).unwrap().len();
        assert!(length < 600 << 10, "{length} bytes after {number} changes of one object of 100 kB");
    }
    assert_eq!(loaded(&logs, "pods", "cluster"), checkpoint("40", &[&json, "1"]));
}

#[test]
fn a_log_that_cannot_be_compacted_stays_and_grows_until_it_can() {
    let dir = tempfile::tempdir().unwrap();
    let json = format!("\"{}\"", "x".repeat(100 << 10));
    let logs = CheckpointLogs::open(dir.path()).unwrap();
    logs.save("pods", "cluster", &list("0", &[("n/b", Some("1"))])).unwrap();
    // The name of the next unfinished file is taken.
    fs::write(dir.path().join("watch/new-1"), "").unwrap();
    let change = |number: u32| {
        logs.save("pods", "cluster", &update(&number.to_string(), &[("n/a", Some(json.as_str()))])).unwrap();
        fs::metadata(pods(&dir)).unwrap().len() >> 10
    };
    // The third change exceeds the limit of 256 KiB, and the fifth one and a half times the length then.
    let lengths: Vec<_> = (1..=6).map(change).collect();
    assert_eq!(lengths, [100, 200, 300, 400, 100, 200]);
    assert_eq!(loaded(&logs, "pods", "cluster"), checkpoint("6", &[&json, "1"]));
}

#[test]
fn a_log_that_was_removed_or_replaced_is_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let logs = CheckpointLogs::open(dir.path()).unwrap();
    logs.save("pods", "cluster", &list("7", &[("n/a", Some("1"))])).unwrap();
    fs::remove_file(pods(&dir)).unwrap();
    logs.save("pods", "cluster", &update("8", &[("n/b", Some("2"))])).unwrap();
    fs::rename(pods(&dir), dir.path().join("elsewhere")).unwrap();
    fs::write(pods(&dir), "another").unwrap();
    logs.save("pods", "cluster", &update("9", &[("n/c", Some("3"))])).unwrap();
    let logs = CheckpointLogs::open(dir.path()).unwrap();
    assert_eq!(loaded(&logs, "pods", "cluster"), checkpoint("9", &["1", "2", "3"]));
}

#[test]
fn a_list_keeps_objects_as_they_are_in_the_log_before() {
    let dir = tempfile::tempdir().unwrap();
    let logs = CheckpointLogs::open(dir.path()).unwrap();
    let kept = |position: &str, names: &[&str]| {
        let mut update = list(position, &[("n/c", Some("3"))]);
        update.objects.extend(names.iter().map(|it| (ObjectKey::new("n", it), Entry::Kept)));
        update
    };
    logs.save("pods", "cluster", &list("7", &[("n/a", Some("1")), ("n/b", Some("2"))])).unwrap();
    logs.save("pods", "cluster", &kept("8", &["a"])).unwrap();
    assert_eq!(loaded(&logs, "pods", "cluster"), checkpoint("8", &["1", "3"]));
    let logs = CheckpointLogs::open(dir.path()).unwrap();
    logs.save("pods", "cluster", &kept("9", &["a"])).unwrap();
    assert_eq!(loaded(&logs, "pods", "cluster"), checkpoint("9", &["1", "3"]));
    let lost = logs.save("pods", "cluster", &kept("10", &["a", "b"]));
    assert!(matches!(lost, Err(SaveError::Lost)));
    assert_eq!(loaded(&logs, "pods", "cluster"), checkpoint("9", &["1", "3"]), "the log before stays");
    let elsewhere = logs.save("pods", "another cluster", &kept("10", &["a"]));
    assert!(matches!(elsewhere, Err(SaveError::Lost)));
}

#[test]
fn a_checkpoint_that_is_removed_is_gone_with_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let logs = CheckpointLogs::open(dir.path()).unwrap();
    logs.remove("pods").unwrap();
    logs.save("pods", "cluster", &list("7", &[("n/a", Some("1"))])).unwrap();
    assert!(logs.has("pods") && !logs.has("nodes"));
    logs.remove("pods").unwrap();
    assert!(!logs.has("pods") && !pods(&dir).exists());
    assert!(logs.save("pods", "cluster", &update("8", &[("n/b", Some("2"))])).is_err());
    assert_eq!(loaded(&logs, "pods", "cluster"), None);
}

#[test]
fn a_failed_write_loses_no_earlier_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let logs = CheckpointLogs::open(dir.path()).unwrap();
    logs.save("pods", "cluster", &list("7", &[("n/a", Some("1"))])).unwrap();
    // A file that refuses every write, as a full disk does.
    let full = File::options().read(true).append(true).open("/dev/full").unwrap();
    logs.open.lock().unwrap().get_mut("pods").unwrap().file = full;
    assert!(logs.save("pods", "cluster", &update("8", &[("n/b", Some("2"))])).is_err());
    logs.save("pods", "cluster", &update("9", &[("n/b", Some("2")), ("n/c", Some("3"))])).unwrap();
    assert_eq!(loaded(&logs, "pods", "cluster"), checkpoint("9", &["1", "2", "3"]));
}
