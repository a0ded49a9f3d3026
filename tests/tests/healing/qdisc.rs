//! A foreign qdisc in place of the filters' clsact.

use std::{fs, thread, time::Duration};

use anyhow::ensure;
use ferrule_tests::{
    node::{NODE_V4, with_agent},
    sys,
};

use super::{TIMEOUT, kinds, verify, wait_until_healed};

/// Replaces the qdisc in one batch, so that the agent cannot act in between.
fn put_ingress(host: &str) -> anyhow::Result<()> {
    fs::write("/run/swap", format!("qdisc del dev {host} clsact\nqdisc add dev {host} ingress\n"))?;
    sys::run("tc -batch /run/swap").map(drop)
}

fn filters_at(host: &str, parent: &str) -> anyhow::Result<String> {
    sys::run(&format!("tc filter show dev {host} parent {parent}"))
}

#[test]
fn foreign_ingress_qdisc_gets_no_filters_and_filters_return_after_its_removal() {
    with_agent(|node| {
        let (pod, peer) = (node.attach("a")?, node.attach("b")?);
        let host = node.host_ifname(&pod)?;
        put_ingress(&host)?;
        sys::wait_until("the deviation is reported", TIMEOUT, || {
            Ok(node.count("ferrule_deviations_total{kind=\"qdisc\"}")? >= 1.0)
        })?;
        // Long enough for several retries of a failing repair.
        thread::sleep(Duration::from_secs(3));
        let (code, found) = verify()?;
        ensure!(code == Some(1) && kinds(&found) == ["qdisc"], "{found:#}");
        let advice = format!("tc qdisc del dev {host} ingress");
        ensure!(found.to_string().contains(&advice), "{found:#}");
        ensure!(node.log().matches(&advice).count() == 1, "the advice is not logged exactly once");
        let filters = filters_at(&host, "ffff:fff2")?;
        ensure!(filters.is_empty(), "the ingress qdisc has filters: {filters}");
        pod.ping(NODE_V4)?;
        let Err(check) = node.runtime()?.check(&pod) else { anyhow::bail!("CHECK succeeded") };
        ensure!(format!("{check:#}").contains(&advice), "{check:#}");
        sys::run(&advice)?;
        wait_until_healed(node, &pod, &peer)?;
        for parent in ["ffff:fff2", "ffff:fff3"] {
            ensure!(filters_at(&host, parent)?.contains("pref 1 "), "no filter at {parent}");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn start_with_a_foreign_qdisc_reports_it_and_serves_other_pods() {
    with_agent(|node| {
        let (pod, peer) = (node.attach("a")?, node.attach("b")?);
        let host = node.host_ifname(&pod)?;
        node.stop_agent()?;
        put_ingress(&host)?;
        node.start_again()?;
        node.runtime()?.check(&peer)?;
        pod.ping(NODE_V4)?;
        ensure!(filters_at(&host, "ffff:fff2")?.is_empty(), "the foreign qdisc has a filter");
        ensure!(node.log().contains("cannot replace the filters of an interface"), "{}", node.log());
        let advice = format!("tc qdisc del dev {host} ingress");
        ensure!(node.log().contains(&advice), "{}", node.log());
        sys::run(&advice)?;
        wait_until_healed(node, &pod, &peer)
    })
    .unwrap();
}
