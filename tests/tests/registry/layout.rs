//! Stores of earlier builds and of later layouts.

use super::*;

#[test]
fn store_of_a_later_layout_is_refused_and_kept() {
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        let traffic = Traffic::begin(&a, &b)?;
        node.kill_agent()?;
        for path in [record_of(&a)?, Path::new(STORE).join("meta")] {
            let (kind, json) = record::read(&path)?;
            let (name, layout) = kind.split_once(' ').context("no layout")?;
            ensure!(layout == "3", "{kind}");
            record::write(&path, &format!("{name} 99"), &json)?;
            let before = files()?;
            let error = node
                .start_again()
                .map_or_else(|error| format!("{error:#}"), |()| "the agent started".to_owned());
            ensure!(
                error.contains("has layout 99")
                    && error.contains("another version of the agent wrote the file"),
                "{error}"
            );
            ensure!(files()? == before, "the store was written to");
            record::write(&path, &kind, &json)?;
        }
        node.start_again()?;
        ensure!(node.metric("ferrule_registry_rebuilds_total")? == 0.0);
        lives_on(node, &a, &b)?;
        traffic.end()
    })
    .unwrap();
}

#[test]
fn registry_of_a_build_with_a_database_is_rebuilt_without_packet_loss_and_the_database_removed() {
    const DATABASE: &str = "/run/ferrule/registry.redb";
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        let traffic = Traffic::begin(&a, &b)?;
        let (before, state) = (identity(&node.attachments()?), node.kernel_state()?);
        node.kill_agent()?;
        fs::remove_dir_all(STORE)?;
        fs::write(DATABASE, "redb")?;
        fs::write("/run/ferrule/watch.redb", "redb")?;
        node.start_again()?;
        ensure!(node.log().contains("an earlier build has left its registry in a database"));
        ensure!(!Path::new(DATABASE).exists());
        ensure!(identity(&node.attachments()?) == before, "{:#?}\nwas {before:#?}", node.attachments()?);
        ensure!(node.kernel_state()? == state, "{:#?}\nwas {state:#?}", node.kernel_state()?);
        ensure!(node.metric("ferrule_registry_rebuilds_total")? == 0.0, "no alert for an upgrade");
        lives_on(node, &a, &b)?;
        traffic.end()
    })
    .unwrap();
}
