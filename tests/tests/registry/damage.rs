//! A missing or damaged store is rebuilt while packets flow.

use super::*;

/// Stops the agent, damages its store and restarts the agent; pods and runtime must not notice.
fn damaged_store_is_rebuilt(
    damage: impl FnOnce() -> anyhow::Result<()> + Send,
    logged: &str,
) -> anyhow::Result<()> {
    with_agent(|node| {
        let clean = node.kernel_state()?;
        // Makes the store contain a released address in cooldown as well.
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        let before = identity(&node.attachments()?);
        let state = node.kernel_state()?;
        let traffic = Traffic::begin(&a, &b)?;
        node.kill_agent()?;
        damage()?;
        node.start_again()?;
        ensure!(node.log().contains(logged), "{logged:?} is not logged");
        let after = identity(&node.attachments()?);
        ensure!(after == before, "attachments {after:#?}\nbefore: {before:#?}");
        ensure!(node.kernel_state()? == state);
        lives_on(node, &a, &b)?;
        ensure!(node.metric("ferrule_registry_rebuilds_total")? == 1.0);
        node.kill_agent()?;
        node.start_again()?;
        ensure!(node.metric("ferrule_registry_rebuilds_total")? == 0.0, "the registry was rebuilt again");
        traffic.end()?;
        let runtime = node.runtime()?;
        runtime.del(&a)?;
        runtime.del(&b)?;
        ensure!(node.attachments()?.is_empty());
        node.wait_for_kernel_state(&clean)
    })
}

#[test]
fn missing_store_is_rebuilt_without_packet_loss() {
    damaged_store_is_rebuilt(|| Ok(fs::remove_dir_all(STORE)?), "was lost").unwrap();
}

#[test]
fn store_without_its_mark_and_a_record_is_rebuilt_without_packet_loss() {
    let lose = || {
        fs::remove_file(a_record()?)?;
        Ok(fs::remove_file(Path::new(STORE).join("meta"))?)
    };
    damaged_store_is_rebuilt(lose, "was lost").unwrap();
}

#[test]
fn empty_files_are_quarantined_and_rebuilt_without_packet_loss() {
    let empty = || files()?.into_keys().try_for_each(|path| Ok(fs::write(path, "")?));
    damaged_store_is_rebuilt(empty, "is damaged").unwrap();
}

#[test]
fn truncated_files_are_quarantined_and_rebuilt() {
    let cut = || {
        for (path, bytes) in files()? {
            fs::write(path, bytes.get(..bytes.len() / 2).context("the file is too short")?)?;
        }
        Ok(())
    };
    damaged_store_is_rebuilt(cut, "is damaged").unwrap();
}

#[test]
fn corrupt_files_are_quarantined_and_rebuilt() {
    let garble = || files()?.into_keys().try_for_each(|path| Ok(fs::write(path, "no record")?));
    damaged_store_is_rebuilt(garble, "is damaged").unwrap();
}

/// The first record.
fn a_record() -> anyhow::Result<PathBuf> {
    files()?.into_keys().find(|path| path.to_string_lossy().contains(':')).context("no record")
}

#[test]
fn unreadable_record_is_rebuilt_and_others_are_kept() {
    let spoil = || record::write(&a_record()?, "ferrule-attachment 3", &serde_json::json!({ "key": 7 }));
    damaged_store_is_rebuilt(spoil, "1 damaged files").unwrap();
}

#[test]
fn missing_record_is_rebuilt() {
    damaged_store_is_rebuilt(|| Ok(fs::remove_file(a_record()?)?), "had lost attachments").unwrap();
}
