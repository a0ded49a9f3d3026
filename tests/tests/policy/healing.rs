//! Rows that something else has changed.

use std::process::Command;

use agent_common::policy::PackedSubject;
use anyhow::{Context as _, ensure};
use ferrule_tests::{
    apiserver::{Resource, Switch, objects},
    cluster::with_cluster,
    dist,
    node::{PINS, map_delete, set_subject, subject},
    pod::NAMESPACE,
    sys,
};
use serde_json::json;

use super::fixture::{
    LABEL, TIMEOUT, attach, expect_isolated, isolate, isolated_with_a_friend, reaches, wait_until_reaches,
};

/// Bits of a key in `BLOCKS` that count: table, IPv4 in IPv6, and a prefix of 29 bits.
const EXCEPTION_BITS: u32 = 32 + 96 + 29;

fn verify() -> anyhow::Result<String> {
    let output = Command::new(dist::binary("ferrulectl")?).args(["verify", "-o", "json"]).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The keys of a map, as bytes for `bpftool`.
fn keys(map: &str) -> anyhow::Result<Vec<Vec<u8>>> {
    let shown = sys::run(&format!("bpftool -j map dump pinned {PINS}/{map}"))?;
    let rows: serde_json::Value = serde_json::from_str(&shown)?;
    let byte = |it: &serde_json::Value| {
        u8::from_str_radix(it.as_str().unwrap_or_default().trim_start_matches("0x"), 16)
    };
    let key = |row: &serde_json::Value| {
        row["key"].as_array().into_iter().flatten().map(byte).collect::<Result<Vec<_>, _>>()
    };
    Ok(rows.as_array().into_iter().flatten().map(key).collect::<Result<_, _>>()?)
}

#[test]
fn removed_and_changed_rows_are_restored_and_until_then_a_pod_without_its_row_is_closed() {
    with_cluster(&["--reconcile-period", "3"], |node, cluster| {
        let [a, b, c] = isolated_with_a_friend(node, cluster)?;
        let index = node.host_ifindex(&a)?;
        let judged = subject(index)?;
        set_subject(index, PackedSubject::default())?;
        ensure!(!reaches(&b, &a)? || node.metric(HEALED)? > 0.0, "a pod without a subject passes nothing");
        wait_until_reaches(&b, &a, true)?;
        ensure!(node.metric(HEALED)? > 0.0);
        for map in ["PEERS", "RULESETS", "RULES"] {
            let before = keys(map)?;
            ensure!(!before.is_empty(), "{map} is empty");
            for key in &before {
                sys::run(&map_delete(map, key))?;
            }
            sys::wait_until("the rows are back", TIMEOUT, || Ok(keys(map)?.len() == before.len()))?;
            wait_until_reaches(&b, &a, true)?;
            expect_isolated(&c, &a)?;
        }
        set_subject(
            index,
            PackedSubject { ingress: PackedSubject::OPEN, egress: PackedSubject::OPEN, ..judged },
        )?;
        wait_until_reaches(&c, &a, false)?;
        // A row that is gone comes back with what judges the pod.
        sys::run(&map_delete("VIFS", &index.to_ne_bytes()))?;
        wait_until_reaches(&b, &a, true)?;
        expect_isolated(&c, &a)?;
        sys::wait_until("nothing deviates", TIMEOUT, || Ok(!verify()?.contains("policy-rows")))
    })
    .unwrap();
}

/// Deletes all rows of a map, and waits until they are back.
fn lose(map: &str) -> anyhow::Result<()> {
    let before = keys(map)?;
    ensure!(!before.is_empty(), "{map} is empty");
    for key in &before {
        sys::run(&map_delete(map, key))?;
    }
    ensure!(keys(map)?.len() < before.len(), "the rows of {map} are still there");
    sys::wait_until(&format!("the rows of {map} are back"), TIMEOUT, || Ok(keys(map)?.len() == before.len()))
}

#[test]
fn removed_rows_of_blocks_and_ports_are_restored() {
    with_cluster(&["--reconcile-period", "3"], |node, cluster| {
        let a = attach(node, cluster, "a", &[LABEL])?;
        let b = attach(node, cluster, "b", &[])?;
        let named = json!({"spec": {"containers": [{"name": "main",
            "ports": [{"name": "http", "containerPort": 80}]}]}});
        cluster.api.patch(Resource::Pods, NAMESPACE, "b", named)?;
        // More ranges than a ruleset has room for, a name of the destination, and a block around no pod.
        let ports: Vec<_> = (1..=40).map(|it| json!({"port": 1000 + 2 * it})).collect();
        let (key, value) = LABEL;
        let block = json!({"cidr": "198.51.100.0/24", "except": ["198.51.100.8/29"]});
        let spec = json!({"podSelector": {"matchLabels": {key: value}}, "policyTypes": ["Egress"], "egress": [
            {"to": [{"podSelector": {}}], "ports": [{"port": "http"}]},
            {"to": [{"ipBlock": block}], "ports": ports}]});
        cluster.api.create(Resource::NetworkPolicies, objects::network_policy(NAMESPACE, "p", spec))?;
        let verdicts = || -> anyhow::Result<Vec<bool>> {
            let trace = |to: &str, port: &str| {
                let from = format!("{NAMESPACE}/a");
                let args = ["policy", "trace", "--from", &from, "--to", to, "--port", port];
                let output = Command::new(dist::binary("ferrulectl")?).args(args).output()?;
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                ensure!(text.contains("same"), "policies and rows disagree: {text}");
                Ok(output.status.success())
            };
            let b = format!("{NAMESPACE}/b");
            let (inside, except) = ("198.51.100.1", "198.51.100.9");
            let all = [(&*b, "80"), (&*b, "81"), (inside, "1002"), (except, "1002"), (inside, "1003")];
            all.into_iter().map(|(to, port)| trace(to, port)).collect()
        };
        let expected = [true, false, true, false, false];
        let agree = || sys::wait_until("policies and rows agree", TIMEOUT, || Ok(verdicts()? == expected));
        wait_until_reaches(&a, &b, false)?;
        agree()?;
        for map in ["BLOCKS", "NAMED", "PORTS"] {
            lose(map)?;
            agree()?;
            expect_isolated(&a, &b)?;
        }
        // Without its row, the exception would be part of its block, which may be reached.
        let is_exception = |key: &Vec<u8>| key.starts_with(&EXCEPTION_BITS.to_ne_bytes());
        let exception = keys("BLOCKS")?.into_iter().find(is_exception).context("no row of the exception")?;
        let repairs = node.metric(HEALED)?;
        sys::run(&map_delete("BLOCKS", &exception))?;
        sys::wait_until("the row of the exception is back", TIMEOUT, || Ok(node.metric(HEALED)? > repairs))?;
        ensure!(keys("BLOCKS")?.contains(&exception));
        agree()
    })
    .unwrap();
}

#[test]
fn a_removed_row_by_which_a_rule_denies_is_restored() {
    with_cluster(&["--reconcile-period", "3"], |node, cluster| {
        node.stop_agent()?;
        cluster.api.switch(Switch::InstallClusterPolicies { installed: true });
        node.start_again()?;
        let a = attach(node, cluster, "a", &[LABEL])?;
        let b = attach(node, cluster, "b", &[("role", "enemy")])?;
        let c = attach(node, cluster, "c", &[])?;
        let enemies =
            json!([{"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"role": "enemy"}}}}]);
        let spec = json!({"tier": "Admin", "priority": 1, "subject": {"namespaces": {}},
            "ingress": [{"action": "Deny", "from": enemies}]});
        cluster
            .api
            .create(Resource::ClusterNetworkPolicies, objects::cluster_network_policy("deny", spec))?;
        wait_until_reaches(&b, &a, false)?;
        ensure!(reaches(&c, &a)?, "only the rule's peers are denied");
        lose("RULES")?;
        wait_until_reaches(&b, &a, false)?;
        expect_isolated(&b, &a)?;
        ensure!(node.metric(HEALED)? > 0.0 && reaches(&c, &a)?);
        Ok(())
    })
    .unwrap();
}

const HEALED: &str = "ferrule_repairs_total{kind=\"policy-rows\",outcome=\"repaired\"}";

#[test]
fn verify_reports_rows_of_policies_that_deviate() {
    with_cluster(&["--self-heal", "off"], |node, cluster| {
        let a = attach(node, cluster, "a", &[LABEL])?;
        let b = attach(node, cluster, "b", &[])?;
        isolate(cluster, "p", &json!([]))?;
        wait_until_reaches(&b, &a, false)?;
        ensure!(!verify()?.contains("policy-rows"), "{}", verify()?);
        set_subject(node.host_ifindex(&a)?, PackedSubject::default())?;
        let found = verify()?;
        ensure!(
            found.contains("policy-rows") && found.contains("VIFS.subject has 1 rows too few"),
            "{found}"
        );
        ensure!(!reaches(&a, &b)?, "a pod without a row passes nothing");
        Ok(())
    })
    .unwrap();
}
