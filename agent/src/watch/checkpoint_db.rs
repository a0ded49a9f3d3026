//! Checkpoints in a file of the state directory, `watch.redb`.
//!
//! They are a copy of the API server's state. A corrupt file is quarantined, and the watches relist.

use std::{fs, path::Path};

use redb::TableDefinition;
use serde::{Deserialize, Serialize};

use super::checkpoint::{Checkpoint, CheckpointStore, Update};
use crate::durable::{DurableDb, builder, catch_panic};

pub struct CheckpointDb {
    database: DurableDb,
}

#[derive(Deserialize, Serialize)]
struct Position {
    schema: u32,
    identity: String,
    position: String,
}

/// The schema version of stored objects. It increases with each field that is stored in addition, so that a
/// checkpoint of an older agent is not mistaken for a complete one.
const SCHEMA: u32 = 2;
/// Watch → [`Position`] as JSON.
const POSITIONS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("positions");
/// Watch and key → object as JSON.
const OBJECTS: TableDefinition<'_, (&str, &str), &[u8]> = TableDefinition::new("objects");

// === impl CheckpointDb ===

impl CheckpointDb {
    /// Opens or creates the file in a state directory. A corrupt file is renamed to `watch.redb.broken`.
    ///
    /// # Errors
    /// If the file can neither be opened nor be created.
    pub fn open(directory: &Path) -> Result<Self, redb::Error> {
        let path = directory.join("watch.redb");
        Self::try_open(&path).or_else(|error| {
            let quarantine = path.with_extension("redb.broken");
            tracing::warn!(?path, %error, ?quarantine, "corrupt checkpoints; quarantining the file and relisting");
            fs::rename(&path, quarantine).map_err(redb::Error::from)?;
            Self::try_open(&path)
        })
    }

    /// Verifies the whole file first, because redb panics over corrupt pages.
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

    fn read(&self, watch: &str, identity: &str) -> Result<Option<Checkpoint>, redb::Error> {
        self.database.read(|transaction| {
            let position = position(&transaction.open_table(POSITIONS)?, watch)?;
            let Some(position) = position.filter(|it| it.identity == identity) else { return Ok(None) };
            let mut objects = Vec::new();
            for object in transaction.open_table(OBJECTS)?.range((watch, "")..)? {
                let (key, json) = object?;
                if key.value().0 != watch {
                    break;
                }
                objects.push(json.value().to_owned());
            }
            Ok(Some(Checkpoint { position: position.position, objects }))
        })
    }

    fn write(&self, watch: &str, identity: &str, update: &Update) -> Result<(), redb::Error> {
        self.database.write(|transaction| {
            let mut positions = transaction.open_table(POSITIONS)?;
            let mut objects = transaction.open_table(OBJECTS)?;
            if update.replaces_all || position(&positions, watch)?.is_none_or(|it| it.identity != identity) {
                objects.retain(|(of, _), _| of != watch)?;
            }
            for (key, json) in &update.objects {
                match json {
                    Some(json) => objects.insert((watch, key.as_str()), json.as_slice())?,
                    None => objects.remove((watch, key.as_str()))?,
                };
            }
            let position =
                Position { schema: SCHEMA, identity: identity.to_owned(), position: update.position.clone() };
            let json = serde_json::to_vec(&position).map_err(std::io::Error::from)?;
            positions.insert(watch, json.as_slice())?;
            Ok(())
        })
    }
}

impl CheckpointStore for CheckpointDb {
    fn load(&self, watch: &str, identity: &str) -> Option<Checkpoint> {
        self.read(watch, identity).unwrap_or_else(|error| {
            tracing::warn!(watch, path = ?self.database.path(), %error, "cannot read the checkpoint; relisting");
            None
        })
    }

    fn save(
        &self,
        watch: &str,
        identity: &str,
        update: &Update,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(self.write(watch, identity, update)?)
    }
}

/// The position of a watch, unless an agent with another schema version wrote it.
fn position(
    positions: &impl redb::ReadableTable<&'static str, &'static [u8]>,
    watch: &str,
) -> Result<Option<Position>, redb::Error> {
    let json = positions.get(watch)?;
    let position = json.and_then(|json| serde_json::from_slice::<Position>(json.value()).ok());
    Ok(position.filter(|it| it.schema == SCHEMA))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durable::tests::in_memory;

    fn update(position: &str, objects: &[(&str, Option<&str>)]) -> Update {
        let objects =
            objects.iter().map(|(key, json)| ((*key).to_owned(), json.map(|json| json.as_bytes().to_vec())));
        Update { position: position.to_owned(), replaces_all: false, objects: objects.collect() }
    }

    fn loaded(db: &CheckpointDb, watch: &str, identity: &str) -> Option<(String, Vec<String>)> {
        let Checkpoint { position, objects } = db.load(watch, identity)?;
        Some((position, objects.into_iter().map(|json| String::from_utf8(json).unwrap()).collect()))
    }

    #[test]
    fn a_checkpoint_survives_a_restart_for_the_same_watch_and_identity_only() {
        let dir = tempfile::tempdir().unwrap();
        let db = CheckpointDb::open(dir.path()).unwrap();
        db.save("pods", "cluster", &update("7", &[("n/a", Some("1")), ("n/b", Some("2"))])).unwrap();
        db.save("node", "cluster", &update("3", &[("node", Some("9"))])).unwrap();
        db.save("pods", "cluster", &update("8", &[("n/a", None), ("n/c", Some("3"))])).unwrap();
        drop(db);
        let db = CheckpointDb::open(dir.path()).unwrap();
        let expected = ("8".to_owned(), vec!["2".to_owned(), "3".to_owned()]);
        assert_eq!(loaded(&db, "pods", "cluster"), Some(expected));
        assert_eq!(loaded(&db, "pods", "another cluster"), None);
        assert_eq!(loaded(&db, "kuryrports", "cluster"), None);
        db.save("pods", "another cluster", &update("2", &[("n/z", Some("4"))])).unwrap();
        assert_eq!(loaded(&db, "pods", "another cluster"), Some(("2".to_owned(), vec!["4".to_owned()])));
        assert_eq!(loaded(&db, "node", "cluster").unwrap().1, ["9"]);
    }

    #[test]
    fn an_update_after_a_list_replaces_all_objects() {
        let dir = tempfile::tempdir().unwrap();
        let db = CheckpointDb::open(dir.path()).unwrap();
        db.save("pods", "cluster", &update("7", &[("n/a", Some("1")), ("n/b", Some("2"))])).unwrap();
        db.save("node", "cluster", &update("3", &[("node", Some("9"))])).unwrap();
        let listed = Update { replaces_all: true, ..update("20", &[("n/c", Some("3"))]) };
        db.save("pods", "cluster", &listed).unwrap();
        assert_eq!(loaded(&db, "pods", "cluster"), Some(("20".to_owned(), vec!["3".to_owned()])));
        assert_eq!(loaded(&db, "node", "cluster").unwrap().1, ["9"]);
    }

    #[test]
    fn flipped_bits_cost_no_more_than_a_relist() {
        let dir = in_memory();
        let path = dir.path().join("watch.redb");
        let db = CheckpointDb::open(dir.path()).unwrap();
        let keys: Vec<_> = (0..100).map(|number| format!("n/{number}")).collect();
        let objects: Vec<_> = keys.iter().map(|key| (key.as_str(), Some("1"))).collect();
        db.save("pods", "cluster", &update("7", &objects)).unwrap();
        drop(db);
        let bytes = fs::read(&path).unwrap();
        let used = bytes.len() - bytes.iter().rev().position(|byte| *byte != 0).unwrap();
        let mut lost = 0;
        for at in (0..used).step_by(1999) {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 7);
            fs::write(&path, flipped).unwrap();
            let db = CheckpointDb::open(dir.path()).unwrap();
            match loaded(&db, "pods", "cluster") {
                Some((_, objects)) => assert_eq!(objects.len(), 100, "flipped bit at byte {at}"),
                None => lost += 1,
            }
            db.save("pods", "cluster", &update("8", &[("n/a", Some("1"))])).unwrap();
            assert!(loaded(&db, "pods", "cluster").is_some(), "flipped bit at byte {at}");
        }
        assert!(lost > 0, "no flipped bit was detected");
    }

    #[test]
    fn a_corrupt_file_is_quarantined() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("watch.redb"), "no database").unwrap();
        let db = CheckpointDb::open(dir.path()).unwrap();
        assert_eq!(loaded(&db, "pods", "cluster"), None);
        assert_eq!(fs::read_to_string(dir.path().join("watch.redb.broken")).unwrap(), "no database");
    }
}
