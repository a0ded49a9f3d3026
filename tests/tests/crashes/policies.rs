//! Policies of the bystanders: one receives nothing and sends to the other, which receives from it only.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    apiserver::{ApiServer, Resource, objects},
    cluster::{NODE, schedule},
    pod::{NAMESPACE, Pod},
    sys,
};
use serde_json::{Value, json};

use crate::fixture::Fixture;

const TIMEOUT: Duration = Duration::from_secs(20);

/// Puts the first version of the policies in force.
///
/// # Errors
/// If they do not get in force.
pub fn begin(fixture: &mut Fixture<'_>) -> anyhow::Result<()> {
    for pod in fixture.bystanders() {
        if fixture.api()?.get(Resource::Pods, NAMESPACE, &pod.name).is_none() {
            schedule(fixture.api()?, NODE, pod, &[])?;
            let labels = json!({"metadata": {"labels": {"app": pod.name}}});
            fixture.api()?.patch(Resource::Pods, NAMESPACE, &pod.name, labels)?;
        }
    }
    set(fixture.api()?, false)?;
    wait_until_in_force(fixture, false)
}

/// As [`begin`], and then no agent runs.
///
/// # Errors
/// As [`begin`].
pub fn begin_and_stop(fixture: &mut Fixture<'_>) -> anyhow::Result<()> {
    begin(fixture)?;
    fixture.node.stop_agent()
}

/// Starts an agent, which writes all rows again.
///
/// # Errors
/// If the policies do not get in force although the agent lives.
pub fn start(fixture: &mut Fixture<'_>, crashes: bool) -> anyhow::Result<()> {
    let started = fixture.node.start_again();
    // The agent may die after it has started to serve.
    if crashes { Ok(()) } else { started.and_then(|()| wait_until_in_force(fixture, false)) }
}

/// Changes one policy, and creates another one.
///
/// # Errors
/// If that does not get in force although the agent lives.
pub fn change(fixture: &mut Fixture<'_>, crashes: bool) -> anyhow::Result<()> {
    set(fixture.api()?, true)?;
    if crashes { Ok(()) } else { wait_until_in_force(fixture, true) }
}

/// Requires that what policies deny does not pass.
///
/// # Errors
/// If it does.
pub fn denies(fixture: &Fixture<'_>) -> anyhow::Result<()> {
    let [isolated, peer] = bystanders(fixture)?;
    let to = isolated.addresses.first().context("no address")?;
    ensure!(peer.run(&format!("ping -n -c 1 -W 1 {to}")).is_err(), "an isolated pod is reached");
    Ok(())
}

/// Requires the newest policies, with a new agent, and goes back to the first version.
///
/// # Errors
/// If rows or packets say otherwise.
pub fn recover(fixture: &mut Fixture<'_>) -> anyhow::Result<()> {
    denies(fixture)?;
    let is_changed = fixture.api()?.get(Resource::NetworkPolicies, NAMESPACE, "more").is_some();
    wait_until_in_force(fixture, is_changed)?;
    denies(fixture)?;
    fixture.ping_bystanders()?;
    begin(fixture)
}

fn wait_until_in_force(fixture: &Fixture<'_>, is_changed: bool) -> anyhow::Result<()> {
    let rules = if is_changed { "2" } else { "1" };
    sys::wait_until("the agent has the policies, and the maps their rows", TIMEOUT, || {
        let list = fixture.node.ctl(&["policy", "list"])?;
        let of_allow = list.lines().find(|it| it.contains("/allow "));
        let has_rules = of_allow.and_then(|it| it.split_whitespace().nth(3)) == Some(rules);
        Ok(has_rules && list.contains("/more ") == is_changed && fixture.node.ctl(&["verify"]).is_ok())
    })?;
    sys::wait_until("the policies are in force", TIMEOUT, || Ok(denies(fixture).is_ok()))
}

fn set(api: &ApiServer, is_changed: bool) -> anyhow::Result<()> {
    let of = |name: &str| json!({"podSelector": {"matchLabels": {"app": name}}});
    let block = |cidr: &str| json!({"ipBlock": {"cidr": cidr}});
    let [isolated, peer] = [of("bystander"), of("peer")];
    let mut rules = vec![json!({"from": [isolated]})];
    if is_changed {
        rules.push(json!({"from": [block("198.51.100.0/24")], "ports": [{"port": 80}, {"port": 443}]}));
        let to = json!([{"to": [peer]}, {"to": [block("203.0.113.0/24")], "ports": [{"port": 53}]}]);
        let selector = isolated.get("podSelector");
        put(api, "more", json!({"podSelector": selector, "policyTypes": ["Egress"], "egress": to}))?;
    } else if api.get(Resource::NetworkPolicies, NAMESPACE, "more").is_some() {
        api.delete(Resource::NetworkPolicies, NAMESPACE, "more")?;
    }
    put(api, "closed", json!({"podSelector": isolated.get("podSelector"), "ingress": []}))?;
    put(api, "allow", json!({"podSelector": peer.get("podSelector"), "ingress": rules}))
}

fn put(api: &ApiServer, name: &str, spec: Value) -> anyhow::Result<()> {
    let policy = objects::network_policy(NAMESPACE, name, spec);
    match api.get(Resource::NetworkPolicies, NAMESPACE, name) {
        Some(_) => api.update(Resource::NetworkPolicies, policy)?,
        None => api.create(Resource::NetworkPolicies, policy)?,
    };
    Ok(())
}

fn bystanders<'a>(fixture: &'a Fixture<'_>) -> anyhow::Result<&'a [Pod; 2]> {
    fixture.bystanders().try_into().context("expected two bystanders")
}
