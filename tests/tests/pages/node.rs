//! Blocks that show a node on which something is wrong.

use std::{fs, path::Path, time::Duration};

use anyhow::ensure;
use ferrule_tests::{
    chain::Chain,
    node::{Node, PINS, POD_V4, on_node, with_agent},
    pod::Pod,
    sys,
};
use serde_json::json;

use super::{PAGE, page::Page};

pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// A pod of the shop, without an interface.
fn of_shop(node: &Node, name: &str) -> anyhow::Result<Pod> {
    Ok(Pod { namespace: "shop".to_owned(), ..node.pod(name)? })
}

pub(crate) fn attach(node: &Node, name: &str) -> anyhow::Result<Pod> {
    let mut pod = of_shop(node, name)?;
    pod.attached(&node.runtime()?.add(&pod)?)?;
    Ok(pod)
}

fn refuse(node: &Node, name: &str) -> anyhow::Result<()> {
    let pod = of_shop(node, name)?;
    ensure!(node.runtime()?.add(&pod).is_err(), "{name} is attached");
    Ok(())
}

#[test]
fn a_pod_without_an_address_and_whose_the_addresses_are_is_shown() {
    on_node(|node| {
        node.start_agent(&["10.244.0.0/30"])?;
        attach(node, "db-0")?;
        refuse(node, "web-0")?;
        let page = Page::open(PAGE)?;
        page.compare("add-fails")?;
        page.compare("addresses")
    })
    .unwrap();
}

#[test]
fn a_pod_that_has_lost_its_address_and_an_agent_that_is_gone_are_shown() {
    with_agent(|node| {
        let pod = attach(node, "web-0")?;
        let page = Page::open(PAGE)?;
        pod.run(&format!("ip addr flush dev eth0 to {}", pod.addresses[0]))?;
        page.compare("no-network")?;
        node.stop_agent()?;
        page.compare("no-agent")
    })
    .unwrap();
}

#[test]
fn a_node_that_is_not_ready_is_shown() {
    on_node(|node| {
        fs::create_dir_all("/run/small")?;
        sys::run("mount -t tmpfs -o size=256k tmpfs /run/small")?;
        node.start_agent_with(&["--standalone", "--pod-cidr", POD_V4, "--state-dir", "/run/small"])?;
        // The file grows until space runs out.
        let _ = fs::write("/run/small/others", vec![1; 4 << 20]);
        refuse(node, "web-0")?;
        sys::wait_until("no other component is starting", TIMEOUT, || {
            Ok(!sys::run("curl -s 127.0.0.1:9469/readyz?verbose")?.contains("(starting"))
        })?;
        Page::open(PAGE)?.compare("not-ready")
    })
    .unwrap();
}

#[test]
fn a_full_map_is_shown() {
    on_node(|node| {
        node.start_agent_with(&["--standalone", "--pod-cidr", POD_V4, "--max-endpoints", "1"])?;
        attach(node, "web-0")?;
        refuse(node, "web-1")?;
        Page::open(PAGE)?.compare("map-full")
    })
    .unwrap();
}

#[test]
fn a_port_of_the_node_that_another_pod_has_is_shown() {
    with_agent(|node| {
        let port = json!([{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }]);
        let plugin = json!({ "type": "ferrule", "capabilities": { "portMappings": true } });
        let chain = || Chain::new("1.0.0", [plugin.clone()]).with("portMappings", port.clone());
        chain().add(&of_shop(node, "web-0")?)?;
        ensure!(chain().add(&of_shop(node, "web-1")?).is_err(), "two pods have one port");
        Page::open(PAGE)?.compare("host-port")
    })
    .unwrap();
}

#[test]
fn destinations_that_see_pods_own_addresses_are_shown() {
    // That of the page.
    const FILE: &str = "/run/ip-masq-agent";
    on_node(|node| {
        fs::write(FILE, "nonMasqueradeCIDRs: [10.0.0.0/8]\n")?;
        node.start_agent_with(&["--standalone", "--pod-cidr", POD_V4, "--ip-masq-agent-config", FILE])?;
        sys::wait_until("the table is there", TIMEOUT, || {
            sys::run("nft list set inet ferrule kept4").map(|set| set.contains("169.254"))
        })?;
        Page::open(PAGE)?.compare("link-local")
    })
    .unwrap();
}

#[test]
fn a_node_is_cleaned_by_hand_as_shown() {
    with_agent(|node| {
        // Of the machine, the command sees copies.
        for (directory, changes) in [("/opt", "/run/opt"), ("/etc", "/run/etc")] {
            sys::mount_overlay(directory, changes)?;
        }
        attach(node, "web-0")?;
        node.stop_agent()?;
        Page::open("install.md")?.succeed("uninstall")?;
        ensure!(!Path::new(PINS).exists(), "the maps are still pinned");
        Ok(())
    })
    .unwrap();
}
