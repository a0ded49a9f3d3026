//! Stores of earlier and later layouts.

use super::*;

#[test]
fn store_of_a_newer_layout_is_refused_and_kept() {
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        let traffic = Traffic::begin(&a, &b)?;
        let set = |layout: u64| -> anyhow::Result<u64> {
            let database = redb::Database::open(STORE)?;
            let transaction = database.begin_write()?;
            let before = transaction.open_table(META)?.insert("schema", layout)?.map(|it| it.value());
            transaction.commit()?;
            before.context("the store has no layout")
        };
        node.kill_agent()?;
        let before = set(99)?;
        let bytes = fs::read(STORE)?;
        let error =
            node.start_again().map_or_else(|error| format!("{error:#}"), |()| "the agent started".to_owned());
        ensure!(error.contains("has layout 99") && error.contains("a newer agent wrote the file"), "{error}");
        ensure!(fs::read(STORE)? == bytes, "the store was written to");
        set(before)?;
        node.start_again()?;
        lives_on(node, &a, &b)?;
        traffic.end()
    })
    .unwrap();
}

/// Rewrites the store as an agent of layout 1 would have written it.
fn downgrade_to_layout_1() -> anyhow::Result<()> {
    let database = redb::Database::open(STORE)?;
    let transaction = database.begin_write()?;
    let mut table = transaction.open_table(ATTACHMENTS)?;
    let records =
        table.iter()?.map(|it| it.map(|(key, json)| (key.value().to_owned(), json.value().to_vec())));
    for (key, json) in records.collect::<Result<Vec<_>, _>>()? {
        let mut record: Value = serde_json::from_slice(&json)?;
        let fields = record.as_object_mut().context("the record is not an object")?;
        let link = fields.get("host").and_then(|host| host.get("link")).cloned().context("no host link")?;
        fields.insert("host".to_owned(), link);
        let vif = fields.get_mut("vif").and_then(Value::as_object_mut).context("no VIF")?;
        vif.remove("kind").context("no kind")?;
        table.insert(key.as_str(), serde_json::to_vec(&record)?.as_slice())?;
    }
    drop(table);
    transaction.open_table(META)?.insert("schema", 1)?;
    Ok(transaction.commit()?)
}

#[test]
fn registry_of_layout_1_migrates_without_packet_loss() {
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        let traffic = Traffic::begin(&a, &b)?;
        let before = node.kernel_state()?;
        node.kill_agent()?;
        downgrade_to_layout_1()?;
        node.start_again()?;
        ensure!(node.kernel_state()? == before, "{:#?}\nwas {before:#?}", node.kernel_state()?);
        lives_on(node, &a, &b)?;
        traffic.end()
    })
    .unwrap();
}
