//! Checkpoints in files: a log of changes for each watch, in `watch/` of the state directory.
//!
//! A log is a sequence of frames. A frame with a position commits the changes in it and in the frames before.
//! What follows the last position, as after a crash, is cut off. No write waits for a disk: a power cut may
//! leave zeros there. So an agent that starts drops the damaged end of a log behind a position, and the watch
//! resumes from there. Checkpoints are a copy of the API server's state: a log that is damaged elsewhere is
//! quarantined, and the watch lists.
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
    time::SystemTime,
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

/// A frame as it was read.
struct Frame {
    /// With the length before it.
    bytes: u64,
    identity: String,
    /// `None` if the next frame continues.
    position: Option<String>,
    /// By key; `None` for a removed object.
    changes: Vec<(String, Option<Box<RawValue>>)>,
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
    /// Why nothing behind that frame was read.
    damage: Option<String>,
    /// When the file was changed last, if an earlier agent has written it.
    written: Option<SystemTime>,
}

/// What the damaged end of a log means.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DamagedEnd {
    /// The watch resumes before it.
    IsDropped,
    /// The watch is beyond it already.
    IsLost,
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
        let Some((log, contents)) = self.reopen(watch, DamagedEnd::IsDropped)? else { return Ok(None) };
        self.open.lock().unwrap_or_else(PoisonError::into_inner).insert(watch.to_owned(), log);
        let Contents { position, objects, written, .. } = contents;
        let is_it = contents.identity == identity;
        Ok(is_it.then(|| Checkpoint { position, objects: objects.into_values().collect(), written }))
    }

    fn try_save(&self, watch: &str, identity: &str, update: &Update) -> Result<(), SaveError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let before = open.remove(watch);
        let log = if update.replaces_all {
            self.replace(watch, identity, update, before)?
        } else {
            let log = match before {
                Some(log) => Some(log),
                None => self.reopen(watch, DamagedEnd::IsLost)?.map(|(log, _)| log),
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
            let is_in_place = self.directory.leads_to(&file_name(watch), &log.file);
            if log.length > log.limit || !is_in_place {
                let Contents { position, objects, .. } = log.read().map_err(failed)?;
                let objects = objects.iter().map(|(key, json)| (key.as_str(), Line::Json(json)));
                match self.create(watch, identity, &position, objects) {
                    Ok(compacted) => compacted,
                    // The update is durable. Another attempt for each one would read the whole log each time.
                    Err(error) if is_in_place => {
                        log.limit = log.length + log.length / 2;
                        let (bytes, limit) = (log.length, log.limit);
                        tracing::warn!(watch, %error, bytes, limit, "cannot compact the checkpoint; it grows up to a limit");
                        log
                    }
                    Err(error) => return Err(failed(error).into()),
                }
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
            Some(log) => Some(log.read().map_err(failed)?),
            None => self.reopen(watch, DamagedEnd::IsLost)?.map(|(_, contents)| contents),
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
    fn reopen(&self, watch: &str, end: DamagedEnd) -> Result<Option<(Log, Contents)>, Failure> {
        let name = file_name(watch);
        let path = self.directory.path().join(&name);
        let file = match File::options().read(true).append(true).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        match read(&file) {
            Ok(Contents { damage: Some(why), .. }) if end == DamagedEnd::IsLost => {
                Err(self.quarantine(&name, &why))
            }
            Ok(mut contents) if contents.length > 0 => {
                let metadata = file.metadata()?;
                contents.written = metadata.modified().ok();
                // Would set the file's time, also if nothing is cut off.
                if metadata.len() > contents.length {
                    let bytes = metadata.len() - contents.length;
                    let why = contents.damage.as_deref().unwrap_or("its last frames are not complete");
                    tracing::warn!(
                        watch,
                        bytes,
                        why,
                        position = contents.position,
                        "dropped the end of the checkpoint behind its last position"
                    );
                    file.set_len(contents.length)?;
                }
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

// === impl Log ===

impl Log {
    /// All that was written. Damage is [`io::ErrorKind::InvalidData`].
    fn read(&self) -> io::Result<Contents> {
        let contents = read(&self.file)?;
        if contents.length == self.length {
            return Ok(contents);
        }
        let (length, expected) = (contents.length, self.length);
        let why = contents.damage.unwrap_or_else(|| "a frame that was cut off".to_owned());
        Err(damaged(format!("its last position is at byte {length}, expected at {expected}: {why}")))
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

/// Reads a log up to its last position. Damage before the first one is [`io::ErrorKind::InvalidData`].
fn read(mut file: &File) -> io::Result<Contents> {
    file.rewind()?;
    let mut input = BufReader::new(file);
    let (mut contents, mut pending, mut offset) = (Contents::default(), Vec::new(), 0);
    loop {
        let frame = match read_frame(&mut input) {
            Ok(Some(frame)) => frame,
            Ok(None) => break,
            Err(error) if error.kind() == io::ErrorKind::InvalidData && contents.length > 0 => {
                contents.damage = Some(error.to_string());
                break;
            }
            Err(error) => return Err(error),
        };
        offset += frame.bytes;
        pending.extend(frame.changes);
        let Some(position) = frame.position else { continue };
        for (key, json) in pending.drain(..) {
            match json {
                Some(json) => drop(contents.objects.insert(key, json)),
                None => drop(contents.objects.remove(&key)),
            }
        }
        (contents.identity, contents.position, contents.length) = (frame.identity, position, offset);
    }
    Ok(contents)
}

/// The next frame; `None` at the end, and at a frame that was cut off. Damage is
/// [`io::ErrorKind::InvalidData`].
fn read_frame(input: &mut impl io::Read) -> io::Result<Option<Frame>> {
    let Some(bytes) = read_sealed(input)? else { return Ok(None) };
    let sealed = unseal(KIND, &bytes).map_err(damaged)?;
    if sealed.layout != LAYOUT {
        return Err(damaged(format!("layout {}, expected {LAYOUT}", sealed.layout)));
    }
    let mut lines = sealed.body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let head: Head<'_> = serde_json::from_slice(lines.next().unwrap_or_default()).map_err(damaged)?;
    let changes =
        lines.map(|line| serde_json::from_slice(line).map_err(damaged)).collect::<io::Result<_>>()?;
    Ok(Some(Frame {
        bytes: (PREFIX + bytes.len()) as u64,
        identity: head.identity.to_owned(),
        position: head.position.map(str::to_owned),
        changes,
    }))
}

/// The next frame with its seal, without its length.
fn read_sealed(input: &mut impl io::Read) -> io::Result<Option<Vec<u8>>> {
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
mod tests;
