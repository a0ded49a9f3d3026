//! Blocks that show the nodes of a cluster, and the rows in the kernel.

use std::{process::Command, thread, time::Duration};

use anyhow::ensure;
use ferrule_tests::{
    apiserver::{Resource, objects},
    fabric::{Fabric, underlay, with_fabric},
    node::with_agent,
    sys,
};

use super::{
    PAGE,
    node::{TIMEOUT, attach},
    page::Page,
};

/// Waits until the first node shows the ways to all ranges of the others, and a refused one.
fn refuse_a_range(fabric: &Fabric) -> anyhow::Result<()> {
    let [one, two, _] = &fabric.nodes;
    let object = objects::node("node-5", &["10.244.2.0/25"]);
    ensure!(two.ranges[0] == "10.244.2.0/24", "{:?}", two.ranges);
    // The older node keeps its range; of two that are created in one second, the UID decides.
    thread::sleep(Duration::from_secs(1));
    fabric.api.create(Resource::Nodes, objects::with_addresses(object, &["192.0.2.5".parse()?]))?;
    sys::wait_until("the range is refused", TIMEOUT, || {
        one.on(|node| Ok(node.ctl(&["nodes"])?.contains("REFUSED")))
    })
}

#[test]
fn ways_to_nodes_and_a_node_that_does_not_answer_are_shown() {
    with_fabric(&[], |fabric| {
        let one = &fabric.nodes[0];
        refuse_a_range(fabric)?;
        let page = Page::open("configure.md")?;
        one.on(|_| {
            page.compare("nodes")?;
            page.succeed("ways")?;
            page.succeed("node-state")?;
            let page = Page::open("dataplane.md")?;
            page.compare_form("node-rows")?;
            page.succeed("links")
        })?;
        let block = "table inet filter { chain forward { type filter hook forward priority 0; udp dport 4789 drop; }; }";
        sys::in_netns(&underlay::path(underlay::ROUTER), || sys::output(Command::new("nft").arg(block)))?;
        one.on(|_| {
            Page::open("ferrulectl.md")?.compare("ask")?;
            Page::open(PAGE)?.compare("out-of-reach")
        })
    })
    .unwrap();
}

#[test]
fn rows_of_maps_are_shown_as_bpftool_prints_them() {
    with_agent(|node| {
        let web = attach(node, "web-0")?;
        let page = Page::open("dataplane.md")?;
        page.compare_form("namespace")?;
        page.compare_form("vifs")?;
        page.compare_form("attached")?;
        ["traffic", "counters", "judges", "capacity"].into_iter().try_for_each(|it| page.succeed(it))?;
        let db = attach(node, "db-0")?;
        let service = format!(
            "table ip services {{ chain pre {{ type nat hook prerouting priority -100; ip daddr 10.96.0.9 tcp dport 80 \
             dnat to {}:8080; }}; }}",
            db.addresses[0]
        );
        sys::output(Command::new("nft").arg(service))?;
        ensure!(web.run("curl -s --max-time 1 http://10.96.0.9").is_err(), "nothing listens");
        page.compare_form("stack-flows")
    })
    .unwrap();
}
