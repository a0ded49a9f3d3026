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
    damaged_store_is_rebuilt(|| Ok(fs::remove_file(STORE)?), "was lost").unwrap();
}

#[test]
fn empty_store_is_rebuilt_without_packet_loss() {
    damaged_store_is_rebuilt(|| Ok(fs::write(STORE, "")?), "was lost").unwrap();
}

#[test]
fn truncated_store_is_quarantined_and_rebuilt() {
    let cut = || {
        let bytes = fs::read(STORE)?;
        Ok(fs::write(STORE, bytes.get(..bytes.len() / 2).context("the store is too short")?)?)
    };
    damaged_store_is_rebuilt(cut, "is damaged").unwrap();
}

#[test]
fn corrupt_store_is_quarantined_and_rebuilt() {
    let garble = || {
        fs::write(STORE, "no database")?;
        Ok(())
    };
    damaged_store_is_rebuilt(garble, "is damaged").unwrap();
}

#[test]
fn unreadable_record_is_rebuilt_and_others_are_kept() {
    let spoil = || {
        let database = redb::Database::open(STORE)?;
        let transaction = database.begin_write()?;
        {
            let mut table = transaction.open_table(ATTACHMENTS)?;
            let key = table.first()?.context("no record")?.0.value().to_owned();
            table.insert(key.as_str(), b"{\"key\": 7}".as_slice())?;
        }
        Ok(transaction.commit()?)
    };
    damaged_store_is_rebuilt(spoil, "1 unreadable records").unwrap();
}

#[test]
fn missing_record_is_rebuilt() {
    let lose = || {
        let database = redb::Database::open(STORE)?;
        let transaction = database.begin_write()?;
        transaction.open_table(ATTACHMENTS)?.pop_first()?.context("no record")?;
        Ok(transaction.commit()?)
    };
    damaged_store_is_rebuilt(lose, "had lost attachments").unwrap();
}
