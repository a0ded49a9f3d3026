//! The invariants: registry, kernel and maps contain exactly what the model's attachments need.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use crate::{
    model::{Addresses, Attached, Id, Model},
    observe::{Link, Observed, RETIRED_GROUP, Vif},
    operations::Damage,
};

/// Expected kernel and map state. `optional` names interfaces that the kernel deletes asynchronously with
/// their namespace.
#[derive(Debug, Default)]
struct Expected {
    links: BTreeMap<u32, (String, String)>,
    routes: BTreeSet<(IpAddr, String)>,
    neighbours: BTreeSet<(IpAddr, String)>,
    filters: BTreeMap<u32, BTreeSet<String>>,
    vifs: BTreeMap<u32, Vif>,
    endpoints: BTreeMap<IpAddr, (u32, String)>,
    counters: BTreeSet<u32>,
    optional: BTreeSet<String>,
}

/// Several reconcile rounds on a loaded machine.
const ORPHAN_LIMIT: Duration = Duration::from_secs(90);

/// All differences, in words. `foreign_links` are interfaces that existed before the agent.
pub fn differences(model: &Model, seen: &Observed, foreign_links: &BTreeMap<u32, Link>) -> Vec<String> {
    let mut found = one_owner_each(model);
    registry(model, seen, &mut found);
    let expected = expected(model, seen);
    let is_going = |name: &str| {
        let link = seen.links.values().find(|link| link.name == name);
        expected.optional.contains(name) || link.is_none_or(|link| link.group == RETIRED_GROUP)
    };
    for (set, actual, wanted) in [
        ("route", &seen.routes, &expected.routes),
        ("neighbour entry", &seen.neighbours, &expected.neighbours),
    ] {
        found.extend(wanted.difference(actual).map(|(to, dev)| format!("missing {set} for {to} on {dev}")));
        let extra = actual.difference(wanted).filter(|(_, dev)| {
            // DEL deletes routes before it answers; neighbour entries go with the interface.
            if set == "route" { !expected.optional.contains(dev) } else { !is_going(dev) }
        });
        found.extend(extra.map(|(to, dev)| format!("orphaned {set} for {to} on {dev}")));
    }
    compare("VIFS", &seen.vifs, &expected.vifs, &mut found);
    compare("ENDPOINTS", &seen.endpoints, &expected.endpoints, &mut found);
    let counters = |set: &BTreeSet<u32>| set.iter().map(|index| (*index, ())).collect::<BTreeMap<_, _>>();
    compare("VIF_COUNTERS", &counters(&seen.counters), &counters(&expected.counters), &mut found);
    links(seen, &expected, foreign_links, &mut found);
    found
}

/// The damage of an attachment that the agent's start has repaired.
pub fn healed(attached: &Attached, seen: &Observed) -> BTreeSet<Damage> {
    let Some((ifindex, _)) = attached.host_link else { return BTreeSet::new() };
    let has_filter = |name: &str| seen.filters.get(&ifindex).is_some_and(|filters| filters.contains(name));
    let is_healed = |damage: &Damage| match damage {
        Damage::HostRoute => {
            v4(&attached.addresses).all(|it| seen.routes.contains(&(it, attached.host_ifname.clone())))
        }
        Damage::FromPod => has_filter("from_pod"),
        Damage::ToPod => has_filter("to_pod"),
        Damage::VifsEntry => seen.vifs.contains_key(&ifindex),
        Damage::EndpointEntry => v4(&attached.addresses).all(|it| seen.endpoints.contains_key(&it)),
        Damage::Link | Damage::PodRoute | Damage::PodAddress => false,
    };
    attached.damage.iter().copied().filter(is_healed).collect()
}

fn one_owner_each(model: &Model) -> Vec<String> {
    let mut owners = BTreeMap::new();
    let mut found = Vec::new();
    for (id, attached) in &model.attached {
        for address in &attached.addresses {
            if let Some(other) = owners.insert(*address, *id) {
                found.push(format!("{address} belongs to two live attachments, #{other} and #{id}"));
            }
        }
        if attached.orphan_since.is_some_and(|since| since.elapsed() > ORPHAN_LIMIT) {
            found.push(format!(
                "orphan #{id} still exists {ORPHAN_LIMIT:?} after the end of its namespace and pod"
            ));
        }
    }
    found
}

fn registry(model: &Model, seen: &Observed, found: &mut Vec<String>) {
    let Some(registry) = &seen.registry else { return };
    let container = |id: &Id| model.sandboxes.get(*id).map(|it| it.container.as_str()).unwrap_or_default();
    let known: BTreeSet<&str> = model.attached.keys().map(container).collect();
    let strange = registry.keys().filter(|it| !known.contains(it.as_str()));
    found.extend(strange.map(|it| format!("the registry has an unexpected attachment {it}")));
    for (id, attached) in &model.attached {
        let Some(it) = registry.get(container(id)) else {
            found.push(format!("the registry lacks the attachment #{id}"));
            continue;
        };
        let is_it = it.addresses == attached.addresses
            && it.mac == attached.mac
            && it.host_ifname == attached.host_ifname
            && attached.uids.contains(&it.pod_uid)
            && attached.host_link == Some((it.host_ifindex, it.created_at_ms))
            && it.state == "attached";
        if !is_it {
            found.push(format!("the registry has #{id} as {it:?}, expected {attached:?}"));
        }
    }
}

fn expected(model: &Model, seen: &Observed) -> Expected {
    let mut expected = Expected::default();
    for (id, attached) in &model.attached {
        let Some((ifindex, _)) = attached.host_link else { continue };
        let Some(sandbox) = model.sandboxes.get(*id) else { continue };
        let has = |damage: Damage| attached.damage.contains(&damage);
        let Attached { addresses, mac, host_ifname, .. } = attached;
        expected.counters.insert(ifindex);
        let pod_uid = seen.vifs.get(&ifindex).map(|vif| vif.pod_uid.clone());
        let pod_uid =
            pod_uid.filter(|uid| attached.uids.contains(uid)).unwrap_or_else(|| sandbox.uid.clone());
        if !has(Damage::VifsEntry) {
            let vif = Vif { addresses: addresses.clone(), mac: mac.clone(), pod_uid };
            expected.vifs.insert(ifindex, vif);
        }
        let is_damaged = |address: &IpAddr, damage| address.is_ipv4() && has(damage);
        let endpoints = addresses.iter().filter(|it| !is_damaged(it, Damage::EndpointEntry));
        expected.endpoints.extend(endpoints.map(|address| (*address, (ifindex, mac.clone()))));
        if has(Damage::Link) {
            continue;
        }
        if model.has_ended(*id, attached) {
            expected.optional.insert(host_ifname.clone());
            continue;
        }
        let on_host = |address: &IpAddr| (*address, host_ifname.clone());
        expected.neighbours.extend(addresses.iter().map(on_host));
        expected.routes.extend(addresses.iter().filter(|it| !is_damaged(it, Damage::HostRoute)).map(on_host));
        let filters = [(Damage::FromPod, "from_pod"), (Damage::ToPod, "to_pod")];
        let there = filters.iter().filter(|(damage, _)| !has(*damage)).map(|(_, name)| (*name).to_owned());
        expected.filters.insert(ifindex, there.collect());
        let stamp = format!("ferrule:cluster:{}:eth0", sandbox.container);
        expected.links.insert(ifindex, (host_ifname.clone(), stamp));
    }
    expected
}

fn links(seen: &Observed, expected: &Expected, foreign_links: &BTreeMap<u32, Link>, found: &mut Vec<String>) {
    for (index, link) in foreign_links {
        if seen.links.get(index) != Some(link) {
            found.push(format!("the foreign interface {link:?} was changed to {:?}", seen.links.get(index)));
        }
    }
    for (index, (name, alias)) in &expected.links {
        let is_it =
            |link: &Link| link.name == *name && link.alias == *alias && link.group == "default" && link.up;
        if !seen.links.get(index).is_some_and(is_it) {
            found.push(format!("wrong interface {index} of {alias}: {:?}", seen.links.get(index)));
        }
        let none = BTreeSet::new();
        let (actual, wanted) = (seen.filters.get(index).unwrap_or(&none), expected.filters.get(index));
        if Some(actual) != wanted {
            found.push(format!("wrong filters of {name}: {actual:?}, expected {wanted:?}"));
        }
    }
    for (index, link) in &seen.links {
        let is_known = foreign_links.contains_key(index) || expected.links.contains_key(index);
        if !is_known && link.group != RETIRED_GROUP && !expected.optional.contains(&link.name) {
            found.push(format!("orphaned interface {index}: {link:?}"));
        }
    }
}

fn compare<K: Ord + std::fmt::Debug, V: PartialEq + std::fmt::Debug>(
    what: &str,
    actual: &BTreeMap<K, V>,
    wanted: &BTreeMap<K, V>,
    found: &mut Vec<String>,
) {
    for (key, value) in wanted {
        if actual.get(key) != Some(value) {
            found
                .push(format!("wrong entry {:?} for {key:?} in {what}, expected {value:?}", actual.get(key)));
        }
    }
    let extra = actual.iter().filter(|(key, _)| !wanted.contains_key(key));
    found.extend(extra.map(|(key, value)| format!("orphaned entry {value:?} for {key:?} in {what}")));
}

fn v4(addresses: &Addresses) -> impl Iterator<Item = IpAddr> {
    addresses.iter().copied().filter(IpAddr::is_ipv4)
}
