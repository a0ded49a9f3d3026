//! Blocks that show what `ferrulectl` says of a healthy node.

use std::{fs, process::Command};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    cluster::{NODE, schedule, with_cluster},
    dist,
    node::{Node, on_node, with_agent},
    pod::Pod,
    sys,
};

use super::{
    node::{TIMEOUT, attach},
    page::Page,
};

const PAGE: &str = "ferrulectl.md";

/// Two pods of the shop that have exchanged packets, and lost some that they should not send.
fn shop(node: &Node) -> anyhow::Result<[Pod; 2]> {
    let pods = [attach(node, "web-0")?, attach(node, "db-0")?];
    let [web, db] = &pods;
    for address in &db.addresses {
        let replies = web.run(&format!("ping -n -c 3 -i 0.2 {address}"))?;
        ensure!(replies.contains("3 received"), "{replies}");
    }
    sys::wait_until("multicast is counted both ways", TIMEOUT, || {
        let explained = node.ctl(&["explain", "shop/web-0"])?;
        Ok(explained.contains("out:multicast") && explained.contains(" in:multicast"))
    })?;
    Ok(pods)
}

#[test]
fn a_healthy_pod_is_shown_by_each_command() {
    with_agent(|node| {
        shop(node)?;
        let page = Page::open(PAGE)?;
        ["explain", "check", "ipam", "top", "bench", "bundle"]
            .into_iter()
            .try_for_each(|it| page.compare_form(it))
    })
    .unwrap();
}

#[test]
fn a_pod_that_lies_about_its_address_is_shown() {
    with_agent(|node| {
        let [web, db] = &shop(node)?;
        web.run("ip addr add 10.0.0.9/32 dev eth0")?;
        // Shorter than the time after which TCP repeats the packet.
        let ask = format!("curl -s --max-time 0.5 --interface 10.0.0.9 http://{}:5432", db.addresses[0]);
        ensure!(web.run(&ask).is_err(), "a connection with another address");
        let page = Page::open("observe.md")?;
        page.compare("drops")?;
        page.succeed("senders")?;
        page.compare("sampling")?;
        page.follow("follow")?;
        page.compare("log-level")
    })
    .unwrap();
}

#[test]
fn a_host_interface_that_is_down_is_shown() {
    with_agent(|node| {
        let pod = attach(node, "web-0")?;
        // The agent repairs it within a second; the page shows the moment before.
        let down = format!("ip link set dev {} down", node.host_ifname(&pod)?);
        let page = Page::open(PAGE)?;
        sys::wait_until("the page shows it", TIMEOUT, || {
            sys::run(&down)?;
            Ok(page.compare_form("link-down").is_ok())
        })
        .or_else(|_| page.compare_form("link-down"))
    })
    .unwrap();
}

#[test]
fn what_an_agent_knows_of_policies_is_asked_as_shown() {
    with_cluster(&[], |node, cluster| {
        let pod = Pod { namespace: "shop".to_owned(), ..node.pod("db-0")? };
        schedule(&cluster.api, NODE, &pod, &[])?;
        node.runtime()?.add(&pod)?;
        let page = Page::open("policy.md")?;
        sys::wait_until("the agent explains the pod", TIMEOUT, || {
            page.succeed("explain-and-list").map(|()| true)
        })
    })
    .unwrap();
}

#[test]
fn completion_and_manual_are_installed_as_shown() {
    on_node(|_| {
        // Of the machine, the commands see copies.
        for (directory, changes) in [("/etc", "/run/etc"), ("/usr/local", "/run/local")] {
            sys::mount_overlay(directory, changes)?;
        }
        fs::create_dir_all("/etc/bash_completion.d")?;
        Page::open(PAGE)?.succeed("completion")?;
        for file in ["/etc/bash_completion.d/ferrulectl", "/usr/local/share/man/man1/ferrulectl.1"] {
            let text = fs::read_to_string(file).with_context(|| file.to_owned())?;
            ensure!(text.contains("attachments"), "{file}: {text}");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn colours_are_for_terminals_only() {
    with_agent(|node| {
        ensure!(!node.ctl(&["status"])?.contains('\u{1b}'), "colours beyond a terminal");
        let on_terminal = |environment: (&str, &str)| {
            let program = dist::binary("ferrulectl")?;
            let line = format!("{} status", program.display());
            let mut script = Command::new("script");
            script.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm").env_remove("NO_COLOR");
            sys::output(script.env(environment.0, environment.1))
        };
        let green = on_terminal(("TERM", "xterm"))?;
        ensure!(green.contains("\u{1b}[32mhealthy"), "{green:?}");
        for objection in [("NO_COLOR", "1"), ("TERM", "dumb")] {
            let plain = on_terminal(objection)?;
            ensure!(plain.contains("healthy") && !plain.contains('\u{1b}'), "{objection:?}: {plain:?}");
        }
        Ok(())
    })
    .unwrap();
}
