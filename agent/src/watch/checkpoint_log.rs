//! Checkpoints in files: a log of changes for each watch, in `watch/` of the state directory.
//!
//! A log is a sequence of frames. A frame with a position commits the changes in it and in the frames before.
//! What follows the last position, as after a crash, is cut off. Checkpoints are a copy of the API server's
//! state: a damaged log is quarantined, and the watch lists.
//!
//! ```text
//! length:00000063
//! crc32c:1a2b3c4d ferrule-watch 2
//! {"identity":"https://10.0.0.1 …","position":"817"}
//! ["default/web-0",{"name":"web-0",…}]
//! ["default/web-1",null]
//! ```

use std::{
    collections::{BTreeMap, HashMap},
    error::Error,
    fs::{self, File},
    io::{self, BufReader, Read as _, Seek as _, Write as _},
    path::Path,
    sync::{Mutex, PoisonError},
};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::checkpoint::{Checkpoint, CheckpointStore, Entry, Json, SaveError, Update};
use crate::durable::{Directory, DirectoryError, seal, unseal};

/// The logs of a state directory.
pub struct CheckpointLogs {
    directory: Directory,
    /// The open logs, by watch. After a failed write, the end of a log is unknown, and the log is not open.
    open: Mutex<HashMap<String, Log>>,
}

/// A log that ends with a position.
struct Log {
    file: File,
    identity: String,
    length: u64,
    /// The length from which the log is compacted.
    limit: u64,
}

/// The first line of a frame.
#[derive(Serialize, Deserialize)]
struct Head<'a> {
    identity: &'a str,
    /// `None` if the next frame continues.
    position: Option<&'a str>,
}

/// What a log says of an object.
enum Line<'a> {
    Object(&'a dyn Json),
    Json(&'a RawValue),
    Removed,
}

/// What a log contains up to its last position.
#[derive(Default)]
struct Contents {
    identity: String,
    position: String,
    /// By key.
    objects: BTreeMap<String, Box<RawValue>>,
    /// The end of the last frame with a position.
    length: u64,
}

type Failure = Box<dyn Error + Send + Sync>;

const DIRECTORY: &str = "watch";
/// The checkpoints of builds with a database, and of those that watched one Node only.
const EARLIER: [&str; 2] = ["watch.redb", "watch/node.log"];
const KIND: &str = "ferrule-watch";
/// The layout of a frame and of the stored objects. It increases with each field that is stored in addition,
/// so that a checkpoint of an older agent is not mistaken for a complete one.
const LAYOUT: u64 = 3;
/// Bytes of `length:00000063` and a line feed.
const PREFIX: usize = 16;
/// Bytes of a body from which a new frame begins.
const FRAME: usize = 64 << 10;
/// Bytes of the largest frame that is read: one object can exceed [`FRAME`].
const MAX_FRAME: u64 = 32 << 20;
/// Bytes. A log is compacted when it exceeds twice its objects, and this.
const SLACK: u64 = 256 << 10;

// === impl CheckpointLogs ===

impl CheckpointLogs {
    /// Opens or creates the directory of the logs.
    ///
    /// # Errors
    /// If the directory cannot be opened or created.
    pub fn open(state_dir: &Path) -> Result<Self, DirectoryError> {
        let directory = Directory::open(&state_dir.join(DIRECTORY))?;
        if let Err(error) = directory.clear() {
            tracing::warn!(directory = ?directory.path(), %error, "cannot remove unfinished checkpoints");
        }
        // A copy: the watches list once, and then have checkpoints here.
        for earlier in EARLIER {
            let _ = fs::remove_file(state_dir.join(earlier));
        }
        Ok(Self { directory, open: Mutex::default() })
    }

    fn try_load(&self, watch: &str, identity: &str) -> Result<Option<Checkpoint>, Failure> {
        let Some((log, contents)) = self.reopen(watch)? else { return Ok(None) };
        self.open.lock().unwrap_or_else(PoisonError::into_inner).insert(watch.to_owned(), log);
        let Contents { position, objects, .. } = contents;
        let is_it = contents.identity == identity;
        Ok(is_it.then(|| Checkpoint { position, objects: objects.into_values().collect() }))
    }

    fn try_save(&self, watch: &str, identity: &str, update: &Update) -> Result<(), SaveError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let before = open.remove(watch);
        let log = if update.replaces_all {
            self.replace(watch, identity, update, before)?
        } else {
            let log = match before {
                Some(log) => Some(log),
                None => self.reopen(watch)?.map(|(log, _)| log),
            };
            let Some(mut log) = log.filter(|log| log.identity == identity) else {
                // The next write has all objects.
                return Err(SaveError::Failed("there is no checkpoint that the changes belong to".into()));
            };
            let changes = update.objects.iter().filter_map(|(key, entry)| match entry {
                Entry::Written(object) => Some((key.as_str(), Line::Object(object.as_ref()))),
                Entry::Removed => Some((key.as_str(), Line::Removed)),
                Entry::Kept => None,
            });
            log.length += append(&mut log.file, identity, &update.position, changes).map_err(failed)?;
            if log.length > log.limit || !self.directory.leads_to(&file_name(watch), &log.file) {
                let Contents { position, objects, .. } = read(&log.file).map_err(failed)?;
                let objects = objects.iter().map(|(key, json)| (key.as_str(), Line::Json(json)));
                self.create(watch, identity, &position, objects).map_err(failed)?
            } else {
                log
            }
        };
        open.insert(watch.to_owned(), log);
        Ok(())
    }

    /// Writes a log of all objects. Those that are kept come from the present one.
    fn replace(
        &self,
        watch: &str,
        identity: &str,
        update: &Update,
        before: Option<Log>,
    ) -> Result<Log, SaveError> {
        let keeps = update.objects.iter().any(|(_, entry)| matches!(entry, Entry::Kept));
        let kept = match before {
            _ if !keeps => None,
            Some(log) => Some(read(&log.file).map_err(failed)?),
            None => self.reopen(watch)?.map(|(_, contents)| contents),
        };
        let kept = kept.filter(|it| it.identity == identity).map(|it| it.objects).unwrap_or_default();
        let mut objects = Vec::with_capacity(update.objects.len());
        for (key, entry) in &update.objects {
            let line = match entry {
                Entry::Written(object) => Line::Object(object.as_ref()),
                Entry::Kept => Line::Json(kept.get(key.as_str()).ok_or(SaveError::Lost)?),
                Entry::Removed => continue,
            };
            objects.push((key.as_str(), line));
        }
        Ok(self.create(watch, identity, &update.position, objects.into_iter()).map_err(failed)?)
    }

    /// Opens the log of an earlier agent, or after a failed write; `None` if there is no usable one.
    fn reopen(&self, watch: &str) -> Result<Option<(Log, Contents)>, Failure> {
        let name = file_name(watch);
        let path = self.directory.path().join(&name);
        let file = match File::options().read(true).append(true).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        match read(&file) {
            Ok(contents) if contents.length > 0 => {
                file.set_len(contents.length)?;
                let live =
                    contents.objects.iter().map(|(key, json)| key.len() + json.get().len()).sum::<usize>();
                let limit = 2 * live as u64 + SLACK;
                let (identity, length) = (contents.identity.clone(), contents.length);
                Ok(Some((Log { file, identity, length, limit }, contents)))
            }
            // A crash has interrupted nothing before the first position: such a log is placed whole.
            Ok(_) => Err(self.quarantine(&name, "it has no position")),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Err(self.quarantine(&name, &error.to_string()))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Writes a log that replaces the watch's present one.
    fn create<'a>(
        &self,
        watch: &str,
        identity: &str,
        position: &str,
        objects: impl Iterator<Item = (&'a str, Line<'a>)>,
    ) -> io::Result<Log> {
        let mut length = 0;
        let file = self.directory.write_with(&file_name(watch), |file| {
            length = append(file, identity, position, objects)?;
            Ok(())
        })?;
        Ok(Log { file, identity: identity.to_owned(), length, limit: 2 * length + SLACK })
    }

    fn quarantine(&self, name: &str, why: &str) -> Failure {
        match self.directory.quarantine(name) {
            Ok(quarantined) => {
                format!("the file is damaged: {why}; quarantined it as {quarantined:?}").into()
            }
            Err(error) => format!("the file is damaged: {why}; cannot quarantine it: {error}").into(),
        }
    }
}

impl CheckpointStore for CheckpointLogs {
    fn load(&self, watch: &str, identity: &str) -> Option<Checkpoint> {
        self.try_load(watch, identity).unwrap_or_else(|error| {
            let directory = self.directory.path();
            tracing::warn!(watch, ?directory, %error, "cannot read the checkpoint; relisting");
            None
        })
    }

    fn has(&self, watch: &str) -> bool {
        !matches!(self.directory.path().join(file_name(watch)).try_exists(), Ok(false))
    }

    fn may_have_had(&self, watch: &str) -> bool {
        // What is quarantined may have been the watch's.
        self.has(watch) || self.directory.has_quarantined()
    }

    fn save(&self, watch: &str, identity: &str, update: &Update) -> Result<(), SaveError> {
        self.try_save(watch, identity, update)
    }

    fn remove(&self, watch: &str) -> io::Result<()> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(watch);
        if self.has(watch) { self.directory.remove(&file_name(watch)) } else { Ok(()) }
    }
}

fn failed(error: io::Error) -> Failure {
    error.into()
}

fn file_name(watch: &str) -> String {
    format!("{watch}.log")
}

/// Appends changes in frames of bounded size, the last one with the position. Returns the bytes written.
fn append<'a>(
    file: &mut File,
    identity: &str,
    position: &str,
    changes: impl Iterator<Item = (&'a str, Line<'a>)>,
) -> io::Result<u64> {
    let begin = |position| -> io::Result<Vec<u8>> {
        let mut body = serde_json::to_vec(&Head { identity, position })?;
        body.push(b'\n');
        Ok(body)
    };
    let mut length = 0;
    let mut end = |body: &[u8]| -> io::Result<()> {
        let frame = seal(KIND, LAYOUT, body);
        let mut bytes = format!("length:{:08x}\n", frame.len()).into_bytes();
        bytes.extend_from_slice(&frame);
        length += bytes.len() as u64;
        file.write_all(&bytes)
    };
    let mut lines = Vec::new();
    for (key, line) in changes {
        lines.push(b'[');
        serde_json::to_writer(&mut lines, key)?;
        lines.push(b',');
        match line {
            Line::Object(object) => object.write(&mut lines)?,
            Line::Json(json) => lines.extend_from_slice(json.get().as_bytes()),
            Line::Removed => lines.extend_from_slice(b"null"),
        }
        lines.extend_from_slice(b"]\n");
        if lines.len() >= FRAME {
            end(&[begin(None)?, std::mem::take(&mut lines)].concat())?;
        }
    }
    end(&[begin(Some(position))?, lines].concat())?;
    Ok(length)
}

/// Reads a log up to its last position. Damage is [`io::ErrorKind::InvalidData`].
fn read(mut file: &File) -> io::Result<Contents> {
    file.rewind()?;
    let mut input = BufReader::new(file);
    let (mut contents, mut pending, mut offset) = (Contents::default(), Vec::new(), 0);
    while let Some(frame) = read_frame(&mut input)? {
        offset += PREFIX as u64 + frame.len() as u64;
        let sealed = unseal(KIND, &frame).map_err(damaged)?;
        if sealed.layout != LAYOUT {
            return Err(damaged(format!("layout {}, expected {LAYOUT}", sealed.layout)));
        }
        let mut lines = sealed.body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let head: Head<'_> = serde_json::from_slice(lines.next().unwrap_or_default()).map_err(damaged)?;
        for line in lines {
            let (key, json): (String, Option<Box<RawValue>>) =
                serde_json::from_slice(line).map_err(damaged)?;
            pending.push((key, json));
        }
        let Some(position) = head.position else { continue };
        for (key, json) in pending.drain(..) {
            match json {
                Some(json) => drop(contents.objects.insert(key, json)),
                None => drop(contents.objects.remove(&key)),
            }
        }
        (contents.identity, contents.position) = (head.identity.to_owned(), position.to_owned());
        contents.length = offset;
    }
    Ok(contents)
}

/// The next frame; `None` at the end, and at a frame that was cut off.
fn read_frame(input: &mut impl io::Read) -> io::Result<Option<Vec<u8>>> {
    let mut prefix = Vec::with_capacity(PREFIX);
    input.take(PREFIX as u64).read_to_end(&mut prefix)?;
    if prefix.len() < PREFIX {
        return Ok(None);
    }
    let length = str::from_utf8(&prefix).ok().and_then(|it| it.strip_prefix("length:")?.strip_suffix('\n'));
    let length = length.and_then(|it| u64::from_str_radix(it, 16).ok()).filter(|it| *it <= MAX_FRAME);
    let length = length.ok_or_else(|| damaged("a frame without length"))?;
    let mut frame = Vec::new();
    input.take(length).read_to_end(&mut frame)?;
    Ok((frame.len() as u64 == length).then_some(frame))
}

fn damaged(why: impl Into<Failure>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
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
        let Checkpoint { position, objects } = logs.load(watch, identity)?;
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
        logs.save("pods", "cluster", &update("8", &[("n/b", None)])).unwrap();
        let bytes = fs::read(pods(&dir)).unwrap();
        let mut lost = 0;
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 8);
            fs::write(pods(&dir), &flipped).unwrap();
            let logs = CheckpointLogs::open(dir.path()).unwrap();
            match loaded(&logs, "pods", "cluster") {
                // A length that exceeds the file looks like a frame that was cut off.
                Some(found) => assert_eq!(Some(found), checkpoint("7", &["1", "2"]), "byte {at}"),
                None => lost += 1,
            }
            logs.save("pods", "cluster", &list("9", &[("n/c", Some("3"))])).unwrap();
            let logs = CheckpointLogs::open(dir.path()).unwrap();
            assert_eq!(loaded(&logs, "pods", "cluster"), checkpoint("9", &["3"]), "byte {at}");
        }
        assert!(lost > bytes.len() * 9 / 10, "{lost} of {}", bytes.len());
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
            logs.save("pods", "cluster", &update(&number.to_string(), &[("n/a", Some(json.as_str()))]))
                .unwrap();
            let length = fs::metadata(pods(&dir)).unwrap().len();
            assert!(length < 600 << 10, "{length} bytes after {number} changes of one object of 100 kB");
        }
        assert_eq!(loaded(&logs, "pods", "cluster"), checkpoint("40", &[&json, "1"]));
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
}
