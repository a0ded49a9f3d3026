//! The commands that pages of `docs/` show, and what they print: run, and compared with the page.
//!
//! Only the tests in `node.rs` and `ferrulectl.rs` need root, and an agent.

mod ferrulectl;
mod node;
mod page;

use std::fs;

use page::Page;

const PAGE: &str = "troubleshoot.md";
/// What `kubectl get networkpolicies,pods,namespaces -A -o yaml` prints of a small shop.
const CLUSTER: &str = include_str!("cluster.yaml");

#[test]
fn settings_that_are_refused_are_shown() {
    let page = Page::open(PAGE).unwrap();
    fs::write(page.folder().join("agent.toml"), "vif_timout = 30\n").unwrap();
    page.compare("settings").unwrap();
}

#[test]
fn the_policy_that_denies_is_shown() {
    let page = Page::open(PAGE).unwrap();
    fs::write(page.folder().join("cluster.yaml"), CLUSTER).unwrap();
    page.compare("denied").unwrap();
    page.compare("dns").unwrap();
}
