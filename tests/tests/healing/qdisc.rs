//! The place of the filters' qdisc, taken by somebody else's.

use std::{fs, thread, time::Duration};

use anyhow::ensure;
use ferrule_tests::{
    node::{NODE_V4, with_agent},
    sys,
};

use super::{SOON, kinds, verify, wait_until_healed};

/// Both in one go, so that nobody gets in between.
fn put_ingress(host: &str) -> anyhow::Result<()> {
    fs::write("/run/swap", format!("qdisc del dev {host} clsact\nqdisc add dev {host} ingress\n"))?;
    sys::run("tc -batch /run/swap").map(drop)
}

fn filters_at(host: &str, parent: &str) -> anyhow::Result<String> {
    sys::run(&format!("tc filter show dev {host} parent {parent}"))
}

#[test]
fn somebody_elses_qdisc_in_the_place_of_the_filters_gets_none_of_them_and_they_come_back_when_it_has_gone() {
    with_agent(|node| {
        let (pod, peer) = (node.attach("a")?, node.attach("b")?);
        let host = node.host_ifname(&pod)?;
        put_ingress(&host)?;
        sys::wait_until("it is told", SOON, || {
            Ok(node.metric("ferrule_deviations_total{kind=\"qdisc\"}")? >= 1.0)
        })?;
        // For as long as a repair that fails would be tried again a few times.
        thread::sleep(Duration::from_secs(3));
        let (code, found) = verify()?;
        ensure!(code == Some(1) && kinds(&found) == ["qdisc"], "{found:#}");
        let advice = format!("tc qdisc del dev {host} ingress");
        ensure!(found.to_string().contains(&advice), "{found:#}");
        ensure!(node.log().matches(&advice).count() == 1, "it is said once");
        let filters = filters_at(&host, "ffff:fff2")?;
        ensure!(filters.is_empty(), "the hook that it has is for what the pod sends, and has: {filters}");
        pod.ping(NODE_V4)?;
        let Err(check) = node.runtime()?.check(&pod) else { anyhow::bail!("a CHECK succeeds") };
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
fn a_start_passes_over_somebody_elses_qdisc_says_so_and_serves_the_others() {
    with_agent(|node| {
        let (pod, peer) = (node.attach("a")?, node.attach("b")?);
        let host = node.host_ifname(&pod)?;
        node.stop_agent()?;
        put_ingress(&host)?;
        node.start_again()?;
        node.runtime()?.check(&peer)?;
        pod.ping(NODE_V4)?;
        ensure!(filters_at(&host, "ffff:fff2")?.is_empty(), "it got a filter");
        ensure!(node.log().contains("has not got this agent's filters"), "{}", node.log());
        let advice = format!("tc qdisc del dev {host} ingress");
        ensure!(node.log().contains(&advice), "{}", node.log());
        sys::run(&advice)?;
        wait_until_healed(node, &pod, &peer)
    })
    .unwrap();
}
