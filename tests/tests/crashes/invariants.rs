//! Invariants that hold whenever an agent runs and no call is in flight: kernel and maps contain exactly what
//! the registry requires.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    node::{Node, PINS},
    observe::{Link, Observed, RETIRED_GROUP, Registered, Vif},
    sys,
};

/// The node's state without attachments.
#[derive(Debug, Clone)]
pub struct Baseline {
    /// Foreign interfaces, by index.
    links: BTreeMap<u32, Link>,
    pins: BTreeSet<String>,
    /// Directories of pins, one per version and replaced capacity.
    versions: BTreeSet<String>,
    files: BTreeSet<String>,
}

const STATE: &str = "/run/ferrule";
/// Parent of the directories of pins.
const BPF: &str = "/sys/fs/bpf/ferrule";
const DEFERRED: &str = "/run/ferrule/deferred";
const TIMEOUT: Duration = Duration::from_secs(20);

// === impl Baseline ===

impl Baseline {
    /// Records a node with an agent and without attachments.
    ///
    /// # Errors
    /// If a tool fails or attachments exist.
    pub fn take(node: &Node) -> anyhow::Result<Self> {
        let seen = Observed::collect(node, true)?;
        ensure!(seen.registry.as_ref().is_some_and(BTreeMap::is_empty), "the node has attachments");
        Ok(Self {
            links: seen.links,
            pins: sys::file_names(PINS)?,
            versions: sys::file_names(BPF)?,
            files: sys::file_names(STATE)?,
        })
    }

    /// Compares kernel and maps with the registry, and the registry with the expected containers.
    ///
    /// # Errors
    /// The differences.
    pub fn check(&self, node: &Node, attached: &BTreeSet<String>) -> anyhow::Result<()> {
        // The reaper deletes retired interfaces asynchronously; everything else must match at once.
        let seen = Observed::collect(node, true)?;
        let found = self.differences(&seen, attached)?;
        ensure!(found.is_empty(), "{}\n\nFound: {seen:#?}", found.join("\n"));
        let expected = self.links.len() + seen.registry.as_ref().map_or(0, BTreeMap::len);
        if seen.links.len() == expected {
            return Ok(());
        }
        sys::wait_until("retired interfaces are deleted", TIMEOUT, || {
            Ok(Observed::collect(node, true)?.links.len() == expected)
        })
    }

    fn differences(&self, seen: &Observed, attached: &BTreeSet<String>) -> anyhow::Result<Vec<String>> {
        let registry = seen.registry.as_ref().context("no registry")?;
        let mut found = Vec::new();
        let registered: BTreeSet<String> = registry.keys().map(|it| container(it).to_owned()).collect();
        if registered != *attached {
            found.push(format!("attachments {registered:?}, expected {attached:?}"));
        }
        self.check_foreign_state(seen, registry, &mut found)?;
        let mut owners = BTreeMap::new();
        for (key, it) in registry {
            for address in &it.addresses {
                if let Some(other) = owners.insert(*address, key) {
                    found.push(format!("duplicate address {address} of {other} and {key}"));
                }
            }
            if !registry.contains_key(container(key)) {
                found.push(format!("{key} lacks the attachment of the requested interface"));
            }
            check_attachment(seen, key, it, &mut found);
        }
        for (what, there, entries) in [
            ("VIFS", seen.vifs.len(), registry.len()),
            ("VIF_COUNTERS", seen.counters.len(), registry.len()),
            ("ENDPOINTS", seen.endpoints.len(), owners.len()),
            ("routes", seen.routes.len(), owners.len()),
        ] {
            if there != entries {
                found.push(format!("{there} {what}, expected {entries}"));
            }
        }
        Ok(found)
    }

    fn check_foreign_state(
        &self,
        seen: &Observed,
        registry: &BTreeMap<String, Registered>,
        found: &mut Vec<String>,
    ) -> anyhow::Result<()> {
        for (index, link) in &self.links {
            if seen.links.get(index) != Some(link) {
                found.push(format!(
                    "the foreign interface {link:?} was changed to {:?}",
                    seen.links.get(index)
                ));
            }
        }
        let of_attachment = |index: &u32| registry.values().any(|it| it.host_ifindex == *index);
        for (index, link) in &seen.links {
            if !self.links.contains_key(index) && !of_attachment(index) && link.group != RETIRED_GROUP {
                found.push(format!("orphaned interface {link:?}"));
            }
        }
        let (pins, files) = (sys::file_names(PINS)?, sys::file_names(STATE)?);
        if pins != self.pins {
            found.push(format!("pins {pins:?}, expected {:?}", self.pins));
        }
        let versions = sys::file_names(BPF)?;
        if versions != self.versions {
            found.push(format!("directories of pins {versions:?}, expected {:?}", self.versions));
        }
        // The shim creates `deferred*` on demand; the agent keeps a corrupt store for analysis.
        let may_be = |name: &str| name.starts_with("deferred") || name.contains(".corrupt-");
        let more: Vec<_> = files.difference(&self.files).filter(|name| !may_be(name)).collect();
        if !more.is_empty() {
            found.push(format!("unexpected files in {STATE}: {more:?}"));
        }
        let deferred = sys::file_names(DEFERRED).unwrap_or_default();
        if !deferred.is_empty() {
            found.push(format!("unapplied deferred DELs: {deferred:?}"));
        }
        Ok(())
    }
}

/// Checks one attachment.
fn check_attachment(seen: &Observed, key: &str, it: &Registered, found: &mut Vec<String>) {
    let mut wrong = |what: String| found.push(format!("{key}: {what}"));
    if it.state != "attached" {
        wrong(format!("state {}, expected attached", it.state));
    }
    let (index, name) = (it.host_ifindex, &it.host_ifname);
    let (container, ifname) = key.split_once('/').unwrap_or((key, "eth0"));
    let stamp = format!("ferrule:cluster:{container}:{ifname}");
    let is_it = |link: &Link| link.name == *name && link.alias == stamp && link.group == "default" && link.up;
    if !seen.links.get(&index).is_some_and(is_it) {
        wrong(format!("wrong interface {index} {name}: {:?}", seen.links.get(&index)));
    }
    let filters = seen.filters.get(&index).map(|it| it.iter().map(String::as_str).collect::<Vec<_>>());
    if filters.as_deref() != Some(&["from_pod", "to_pod"]) {
        wrong(format!("wrong filters {filters:?}"));
    }
    let vif = Vif { addresses: it.addresses.clone(), mac: it.mac.clone(), pod_uid: it.pod_uid.clone() };
    if seen.vifs.get(&index) != Some(&vif) {
        wrong(format!("wrong VIFS entry {:?}, expected {vif:?}", seen.vifs.get(&index)));
    }
    if !seen.counters.contains(&index) {
        wrong("missing VIF_COUNTERS entry".to_owned());
    }
    for address in &it.addresses {
        let endpoint = seen.endpoints.get(address);
        if endpoint != Some(&(index, it.mac.clone())) {
            wrong(format!("wrong ENDPOINTS entry {endpoint:?} for {address}"));
        }
        let on_host: (IpAddr, String) = (*address, name.clone());
        if !seen.routes.contains(&on_host) || !seen.neighbours.contains(&on_host) {
            wrong(format!("missing route or neighbour entry for {address}"));
        }
    }
}

/// The container of a key; a container's further interfaces come and go with the requested one.
fn container(key: &str) -> &str {
    key.split_once('/').map_or(key, |(container, _)| container)
}
