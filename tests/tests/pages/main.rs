//! The commands that pages of `docs/` show, and what they print: run, and compared with the page.
//!
//! Only the tests in `node.rs`, `nodes.rs` and `ferrulectl.rs` need root, and an agent.

mod ferrulectl;
mod node;
mod nodes;
mod page;

use std::fs;

use page::Page;

const PAGE: &str = "troubleshoot.md";
/// What `kubectl get networkpolicies,pods,namespaces -A -o yaml` prints of a small shop.
const CLUSTER: &str = include_str!("cluster.yaml");
const RULES: &str = include_str!("../../../deploy/monitoring/rules.yaml");

#[test]
fn settings_that_are_refused_are_shown() {
    for (page, block) in [(PAGE, "settings"), ("configure.md", "config-check")] {
        let page = Page::open(page).unwrap();
        fs::write(page.folder().join("agent.toml"), "vif_timout = 30\n").unwrap();
        page.compare(block).unwrap();
    }
}

#[test]
fn the_policy_that_denies_is_shown() {
    let page = Page::open(PAGE).unwrap();
    fs::write(page.folder().join("cluster.yaml"), CLUSTER).unwrap();
    page.compare("denied").unwrap();
    page.compare("dns").unwrap();
}

#[test]
fn a_policy_that_is_tried_before_it_is_applied_is_shown() {
    let page = Page::open("policy.md").unwrap();
    fs::write(page.folder().join("cluster.yaml"), CLUSTER).unwrap();
    let new = CLUSTER
        .replace("from: [{ podSelector: { matchLabels: { app: web } } }]", "from: [{ podSelector: {} }]");
    assert_ne!(new, CLUSTER, "the new policy admits all pods");
    fs::write(page.folder().join("new-policy.yaml"), new).unwrap();
    page.compare("trace").unwrap();
}

#[test]
fn alerts_link_to_published_runbooks_after_the_command_that_is_shown() {
    let page = Page::open("monitor.md").unwrap();
    let file = page.folder().join("rules.yaml");
    fs::write(&file, RULES).unwrap();
    page.succeed("runbook-url").unwrap();
    let linked = fs::read_to_string(file).unwrap();
    let lines = |text: &str, part: &str| text.lines().filter(|line| line.contains(part)).count();
    assert_eq!(lines(&linked, "runbook_url: https://"), lines(RULES, "runbook: "));
    assert_eq!(lines(&linked, "docs/runbooks.md"), 0, "{linked}");
}
