//! A store that is damaged under the running agent.

use super::*;

/// Damages the store of a running agent. The agent must notice, log, and restore every record, so that the
/// next agent finds an intact store. `adds`: an ADD follows at once, before any audit.
fn store_is_restored(
    damage: impl FnOnce() -> anyhow::Result<()> + Send,
    logged: &str,
    adds: bool,
) -> anyhow::Result<()> {
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        let before = files()?;
        let traffic = Traffic::begin(&a, &b)?;
        damage()?;
        let more = if adds { Some(node.attach("more")?) } else { None };
        sys::wait_until("the agent has restored its store", LIMIT, || {
            let found = files().unwrap_or_default();
            Ok(before.iter().all(|(path, bytes)| found.get(path) == Some(bytes))
                && node.log().contains(logged))
        })?;
        ensure!(node.http("/readyz")?.0 == 200);
        let attachments = identity(&node.attachments()?);
        node.kill_agent()?;
        if let Some(more) = &more {
            record_of(more)?;
        }
        node.start_again()?;
        ensure!(identity(&node.attachments()?) == attachments);
        ensure!(!node.log().contains("had lost attachments") && !node.log().contains("was lost"));
        ensure!(node.metric("ferrule_registry_rebuilds_total")? == 0.0, "the registry was rebuilt");
        lives_on(node, &a, &b)?;
        traffic.end()
    })
}

const RESTORED: &str = "was removed or replaced under the running agent: wrote all records again";

#[test]
fn removed_directory_is_written_again_by_an_audit() {
    store_is_restored(|| Ok(fs::remove_dir_all(STORE)?), RESTORED, false).unwrap();
}

#[test]
fn add_after_the_removal_of_the_directory_is_durable() {
    store_is_restored(|| Ok(fs::remove_dir_all(STORE)?), RESTORED, true).unwrap();
}

#[test]
fn add_after_the_replacement_of_the_directory_is_durable() {
    let replace = || {
        fs::rename(STORE, "/run/ferrule/aside")?;
        fs::create_dir(STORE)?;
        Ok(())
    };
    store_is_restored(replace, RESTORED, true).unwrap();
}

#[test]
fn removed_files_are_written_again() {
    let remove = || files()?.into_keys().try_for_each(|path| Ok(fs::remove_file(path)?));
    store_is_restored(remove, "was removed or changed under the running agent", false).unwrap();
}

#[test]
fn file_in_the_place_of_the_directory_is_reported_and_refuses_adds_until_it_is_moved_away() {
    with_agent(|node| {
        let a = node.attach("a")?;
        fs::rename(STORE, "/run/ferrule/aside")?;
        fs::write(STORE, "in the way")?;
        let pod = node.pod("b")?;
        let error = node.runtime()?.call("ADD", &pod)?.into_error()?;
        ensure!(error.code == 11 && error.to_string().contains("is a file, expected a directory"), "{error}");
        ensure!(node.http("/readyz")?.0 == 503);
        fs::remove_file(STORE)?;
        sys::wait_until("the agent is ready again", LIMIT, || Ok(node.http("/readyz")?.0 == 200))?;
        record_of(&a)?;
        node.runtime()?.add(&pod).map(drop)
    })
    .unwrap();
}
