//! What must hold whenever an agent runs and no call is in work: kernel and maps have what the registry says, all of
//! it, and nothing else.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::IpAddr,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    node::{Node, PINS},
    observe::{DEAD, Link, Observed, Registered, Vif},
    sys,
};

/// What there is when nothing is attached.
#[derive(Debug, Clone)]
pub struct Bare {
    /// By index: interfaces of others.
    links: BTreeMap<u32, Link>,
    pins: BTreeSet<String>,
    /// Directories of pins, one per version and replaced capacity.
    versions: BTreeSet<String>,
    files: BTreeSet<String>,
}

const STATE: &str = "/run/ferrule";
/// Parent of the directories of pins.
const BPF: &str = "/sys/fs/bpf/ferrule";
const NOTES: &str = "/run/ferrule/deferred";
const SOON: Duration = Duration::from_secs(20);

// === impl Bare ===

impl Bare {
    /// Looks at a node with an agent and without attachments.
    ///
    /// # Errors
    /// If it cannot be looked at.
    pub fn look(node: &Node) -> anyhow::Result<Self> {
        let seen = Observed::look(node, true)?;
        ensure!(seen.registry.as_ref().is_some_and(BTreeMap::is_empty), "there are attachments already");
        Ok(Self { links: seen.links, pins: names(PINS)?, versions: names(BPF)?, files: names(STATE)? })
    }

    /// Compares all there is with what the registry says, and that with the containers that should be attached.
    ///
    /// # Errors
    /// What is not as it should be.
    pub fn check(&self, node: &Node, attached: &BTreeSet<String>) -> anyhow::Result<()> {
        // What is among the dead is deleted in a moment; all else has to be right at once.
        let seen = Observed::look(node, true)?;
        let found = self.differences(&seen, attached)?;
        ensure!(found.is_empty(), "{}\n\nThere is: {seen:#?}", found.join("\n"));
        let expected = self.links.len() + seen.registry.as_ref().map_or(0, BTreeMap::len);
        if seen.links.len() == expected {
            return Ok(());
        }
        sys::wait_until("the dead are deleted", SOON, || {
            Ok(Observed::look(node, true)?.links.len() == expected)
        })
    }

    fn differences(&self, seen: &Observed, attached: &BTreeSet<String>) -> anyhow::Result<Vec<String>> {
        let registry = seen.registry.as_ref().context("no registry")?;
        let mut found = Vec::new();
        let registered: BTreeSet<String> = registry.keys().map(|it| container(it).to_owned()).collect();
        if registered != *attached {
            found.push(format!("attached are {registered:?}, and should be {attached:?}"));
        }
        self.nothing_foreign(seen, registry, &mut found)?;
        let mut owners = BTreeMap::new();
        for (key, it) in registry {
            for address in &it.addresses {
                if let Some(other) = owners.insert(*address, key) {
                    found.push(format!("{address} belongs to {other} and to {key}"));
                }
            }
            if !registry.contains_key(container(key)) {
                found.push(format!("{key} is there without the one that it came with"));
            }
            of_one(seen, key, it, &mut found);
        }
        for (what, there, entries) in [
            ("VIFS", seen.vifs.len(), registry.len()),
            ("VIF_COUNTERS", seen.counters.len(), registry.len()),
            ("ENDPOINTS", seen.endpoints.len(), owners.len()),
            ("routes", seen.routes.len(), owners.len()),
        ] {
            if there != entries {
                found.push(format!("there are {there} {what}, and should be {entries}"));
            }
        }
        Ok(found)
    }

    fn nothing_foreign(
        &self,
        seen: &Observed,
        registry: &BTreeMap<String, Registered>,
        found: &mut Vec<String>,
    ) -> anyhow::Result<()> {
        for (index, link) in &self.links {
            if seen.links.get(index) != Some(link) {
                found.push(format!("the foreign {link:?} is now {:?}", seen.links.get(index)));
            }
        }
        let of_attachment = |index: &u32| registry.values().any(|it| it.host_ifindex == *index);
        for (index, link) in &seen.links {
            if !self.links.contains_key(index) && !of_attachment(index) && link.group != DEAD {
                found.push(format!("there is an interface of no attachment: {link:?}"));
            }
        }
        let (pins, files) = (names(PINS)?, names(STATE)?);
        if pins != self.pins {
            found.push(format!("the pins are {pins:?}, and were {:?}", self.pins));
        }
        let versions = names(BPF)?;
        if versions != self.versions {
            found.push(format!("the directories of pins are {versions:?}, expected {:?}", self.versions));
        }
        // The shim makes these when it is needed, and the agent keeps a store that it found damaged.
        let may_be = |name: &str| name.starts_with("deferred") || name.contains(".corrupt-");
        let more: Vec<_> = files.difference(&self.files).filter(|name| !may_be(name)).collect();
        if !more.is_empty() {
            found.push(format!("there is more in {STATE}: {more:?}"));
        }
        let notes = names(NOTES).unwrap_or_default();
        if !notes.is_empty() {
            found.push(format!("there are notes: {notes:?}"));
        }
        Ok(())
    }
}

/// All that an attachment has.
fn of_one(seen: &Observed, key: &str, it: &Registered, found: &mut Vec<String>) {
    let mut wrong = |what: String| found.push(format!("{key}: {what}"));
    if it.state != "attached" {
        wrong(format!("it is {}", it.state));
    }
    let (index, name) = (it.host_ifindex, &it.host_ifname);
    let (container, ifname) = key.split_once('/').unwrap_or((key, "eth0"));
    let stamp = format!("ferrule:cluster:{container}:{ifname}");
    let is_it = |link: &Link| link.name == *name && link.alias == stamp && link.group == "default" && link.up;
    if !seen.links.get(&index).is_some_and(is_it) {
        wrong(format!("its interface {index} {name} is {:?}", seen.links.get(&index)));
    }
    let filters = seen.filters.get(&index).map(|it| it.iter().map(String::as_str).collect::<Vec<_>>());
    if filters.as_deref() != Some(&["from_pod", "to_pod"]) {
        wrong(format!("its filters are {filters:?}"));
    }
    let vif = Vif { addresses: it.addresses.clone(), mac: it.mac.clone(), pod_uid: it.pod_uid.clone() };
    if seen.vifs.get(&index) != Some(&vif) {
        wrong(format!("VIFS has {:?}, and should have {vif:?}", seen.vifs.get(&index)));
    }
    if !seen.counters.contains(&index) {
        wrong("nothing counts for it".to_owned());
    }
    for address in &it.addresses {
        let endpoint = seen.endpoints.get(address);
        if endpoint != Some(&(index, it.mac.clone())) {
            wrong(format!("ENDPOINTS has {endpoint:?} for {address}"));
        }
        let on_host: (IpAddr, String) = (*address, name.clone());
        if !seen.routes.contains(&on_host) || !seen.neighbours.contains(&on_host) {
            wrong(format!("the host has no route to {address}, or no neighbour entry"));
        }
    }
}

/// Of a key: a further interface comes and goes with the one that was asked for.
fn container(key: &str) -> &str {
    key.split_once('/').map_or(key, |(container, _)| container)
}

fn names(directory: &str) -> anyhow::Result<BTreeSet<String>> {
    let entries = fs::read_dir(directory).with_context(|| format!("cannot list {directory}"))?;
    Ok(entries.flatten().map(|it| it.file_name().to_string_lossy().into_owned()).collect())
}
