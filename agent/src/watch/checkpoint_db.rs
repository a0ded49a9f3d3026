//! What the watches have told, and their positions, across a restart.
//!
//! It is a copy of what the API server has, in a file of its own: whatever is wrong with it, it is set aside, and the
//! watches list.

use std::{fs, path::Path};

use redb::TableDefinition;
use serde::{Deserialize, Serialize};

use super::{Batch, Memory, Remembered};
use crate::durable::{DurableDb, builder, catch_panic};

/// The durable copy.
pub struct CheckpointDb {
    database: DurableDb,
}

/// Of one source.
#[derive(Deserialize, Serialize)]
struct Position {
    schema: u32,
    identity: String,
    position: String,
}

/// What is kept of an object. It goes up when more is kept than before: a copy with less would be taken for all
/// there is.
const SCHEMA: u32 = 1;
/// Source → [`Position`] as JSON.
const POSITIONS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("positions");
/// Source and key → object as JSON.
const OBJECTS: TableDefinition<'_, (&str, &str), &[u8]> = TableDefinition::new("objects");

// === impl CheckpointDb ===

impl CheckpointDb {
    /// Opens the copy in a state directory, or begins a new one.
    ///
    /// # Errors
    /// If there can be none: the directory cannot be written, most likely.
    pub fn open(directory: &Path) -> Result<Self, redb::Error> {
        let path = directory.join("watch.redb");
        let cache = Self::try_open(&path).or_else(|error| {
            let aside = path.with_extension("redb.broken");
            tracing::warn!(?path, %error, ?aside, "the copy of what the watches told cannot be read: it is set aside");
            fs::rename(&path, aside).map_err(redb::Error::from)?;
            Self::try_open(&path)
        })?;
        Ok(cache)
    }

    /// All of it is verified first: redb panics over pages that are not what they say.
    fn try_open(path: &Path) -> Result<Self, redb::Error> {
        catch_panic(|| {
            let mut database = builder().create(path)?;
            database.check_integrity()?;
            let transaction = database.begin_write()?;
            transaction.open_table(POSITIONS)?;
            transaction.open_table(OBJECTS)?;
            transaction.commit()?;
            Ok(Self { database: DurableDb::new(database, path) })
        })
    }

    fn read(&self, source: &str, identity: &str) -> Result<Option<Remembered>, redb::Error> {
        self.database.read(|transaction| {
            let position = position(&transaction.open_table(POSITIONS)?, source)?;
            let Some(position) = position.filter(|it| it.identity == identity) else { return Ok(None) };
            let mut objects = Vec::new();
            for object in transaction.open_table(OBJECTS)?.range((source, "")..)? {
                let (key, json) = object?;
                if key.value().0 != source {
                    break;
                }
                objects.push(json.value().to_owned());
            }
            Ok(Some(Remembered { position: position.position, objects }))
        })
    }

    fn write(&self, source: &str, identity: &str, batch: &Batch) -> Result<(), redb::Error> {
        self.database.write(|transaction| {
            let mut positions = transaction.open_table(POSITIONS)?;
            let mut objects = transaction.open_table(OBJECTS)?;
            if batch.is_all || position(&positions, source)?.is_none_or(|it| it.identity != identity) {
                objects.retain(|(of, _), _| of != source)?;
            }
            for (key, json) in &batch.objects {
                match json {
                    Some(json) => objects.insert((source, key.as_str()), json.as_slice())?,
                    None => objects.remove((source, key.as_str()))?,
                };
            }
            let position =
                Position { schema: SCHEMA, identity: identity.to_owned(), position: batch.position.clone() };
            let json = serde_json::to_vec(&position).map_err(std::io::Error::from)?;
            positions.insert(source, json.as_slice())?;
            Ok(())
        })
    }
}

impl Memory for CheckpointDb {
    fn load(&self, source: &str, identity: &str) -> Option<Remembered> {
        self.read(source, identity).unwrap_or_else(|error| {
            tracing::warn!(path = ?self.database.path(), %error, "the copy of what the watches told cannot be read: listing");
            None
        })
    }

    fn save(
        &self,
        source: &str,
        identity: &str,
        batch: &Batch,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(self.write(source, identity, batch)?)
    }
}

/// The position of a source, unless an agent wrote it that kept less of each object than this one.
fn position(
    positions: &impl redb::ReadableTable<&'static str, &'static [u8]>,
    source: &str,
) -> Result<Option<Position>, redb::Error> {
    let json = positions.get(source)?;
    let position = json.and_then(|json| serde_json::from_slice::<Position>(json.value()).ok());
    Ok(position.filter(|it| it.schema == SCHEMA))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durable::tests::in_memory;

    fn batch(position: &str, objects: &[(&str, Option<&str>)]) -> Batch {
        let objects =
            objects.iter().map(|(key, json)| ((*key).to_owned(), json.map(|json| json.as_bytes().to_vec())));
        Batch { position: position.to_owned(), is_all: false, objects: objects.collect() }
    }

    fn loaded(cache: &CheckpointDb, source: &str, identity: &str) -> Option<(String, Vec<String>)> {
        let Remembered { position, objects } = cache.load(source, identity)?;
        Some((position, objects.into_iter().map(|json| String::from_utf8(json).unwrap()).collect()))
    }

    #[test]
    fn what_is_kept_is_there_after_a_restart_for_the_same_watch_only() {
        let dir = tempfile::tempdir().unwrap();
        let cache = CheckpointDb::open(dir.path()).unwrap();
        cache.save("pods", "cluster", &batch("7", &[("n/a", Some("1")), ("n/b", Some("2"))])).unwrap();
        cache.save("node", "cluster", &batch("3", &[("node", Some("9"))])).unwrap();
        cache.save("pods", "cluster", &batch("8", &[("n/a", None), ("n/c", Some("3"))])).unwrap();
        drop(cache);
        let cache = CheckpointDb::open(dir.path()).unwrap();
        let expected = ("8".to_owned(), vec!["2".to_owned(), "3".to_owned()]);
        assert_eq!(loaded(&cache, "pods", "cluster"), Some(expected));
        assert_eq!(loaded(&cache, "pods", "another cluster"), None);
        assert_eq!(loaded(&cache, "kuryrports", "cluster"), None);
        cache.save("pods", "another cluster", &batch("2", &[("n/z", Some("4"))])).unwrap();
        assert_eq!(loaded(&cache, "pods", "another cluster"), Some(("2".to_owned(), vec!["4".to_owned()])));
        assert_eq!(loaded(&cache, "node", "cluster").unwrap().1, ["9"]);
    }

    #[test]
    fn after_a_list_nothing_else_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let cache = CheckpointDb::open(dir.path()).unwrap();
        cache.save("pods", "cluster", &batch("7", &[("n/a", Some("1")), ("n/b", Some("2"))])).unwrap();
        cache.save("node", "cluster", &batch("3", &[("node", Some("9"))])).unwrap();
        let listed = Batch { is_all: true, ..batch("20", &[("n/c", Some("3"))]) };
        cache.save("pods", "cluster", &listed).unwrap();
        assert_eq!(loaded(&cache, "pods", "cluster"), Some(("20".to_owned(), vec!["3".to_owned()])));
        assert_eq!(loaded(&cache, "node", "cluster").unwrap().1, ["9"]);
    }

    #[test]
    fn wrong_bits_cost_no_more_than_the_copy() {
        let dir = in_memory();
        let path = dir.path().join("watch.redb");
        let cache = CheckpointDb::open(dir.path()).unwrap();
        let keys: Vec<_> = (0..100).map(|number| format!("n/{number}")).collect();
        let objects: Vec<_> = keys.iter().map(|key| (key.as_str(), Some("1"))).collect();
        cache.save("pods", "cluster", &batch("7", &objects)).unwrap();
        drop(cache);
        let bytes = fs::read(&path).unwrap();
        let used = bytes.len() - bytes.iter().rev().position(|byte| *byte != 0).unwrap();
        let mut lost = 0;
        for at in (0..used).step_by(1999) {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 7);
            fs::write(&path, flipped).unwrap();
            let cache = CheckpointDb::open(dir.path()).unwrap();
            match loaded(&cache, "pods", "cluster") {
                Some((_, objects)) => assert_eq!(objects.len(), 100, "a wrong bit at {at}"),
                None => lost += 1,
            }
            cache.save("pods", "cluster", &batch("8", &[("n/a", Some("1"))])).unwrap();
            assert!(loaded(&cache, "pods", "cluster").is_some(), "a wrong bit at {at}");
        }
        assert!(lost > 0, "no bit mattered");
    }

    #[test]
    fn a_copy_that_cannot_be_read_is_set_aside() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("watch.redb"), "no database").unwrap();
        let cache = CheckpointDb::open(dir.path()).unwrap();
        assert_eq!(loaded(&cache, "pods", "cluster"), None);
        assert_eq!(fs::read_to_string(dir.path().join("watch.redb.broken")).unwrap(), "no database");
    }
}
