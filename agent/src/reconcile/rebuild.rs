//! Attachments made anew from what the kernel has, when the registry's store was lost or damaged.
//!
//! The stamp tells the key, the maps the addresses, the MAC and the pod; where they have no entry, the host's routes and neighbours tell
//! the former two. The namespace is found by the number that the host has for the one that the interface's other end is in. What is
//! only in the pod, its routes, is read there; nothing that a pod could have changed decides what it may send or is given.

use std::collections::{BTreeMap, HashMap, HashSet};

use agent_common::VifEntry;

use crate::{
    attach::Engine,
    cluster::PodRef,
    dataplane::Recorded,
    metrics::{StoreMetrics, count},
    plug::{
        GATEWAY,
        netlink::Socket,
        stamp::Stamp,
        survey::{self, Place, Seen},
    },
    registry::{Attachment, Condition, HostLink, HostSide, Key, NetnsId, State, now_ms},
};
use ferrule_vif::{Addresses, Mac, PodRoute, Route, Vif, VifKind};

/// What is believed of an interface.
struct Found {
    seen: Seen,
    addresses: Addresses,
    mac: Mac,
    pod: PodRef,
}

/// The most routes of an interface that are taken over, as many as a VIF may have: a pod can have made any number.
const MAX_ROUTES: usize = 64;

/// Makes the attachments anew that the kernel has and the registry lacks, durably. Gives the interfaces that are to be left as they are,
/// with their addresses in the maps: nothing tells enough of them.
///
/// A store that was whole lacks none: the intent is written before the interface is made, and is removed after the maps' entries. An
/// interface with an entry and no record is a record that was lost all the same.
///
/// # Errors
/// If kernel or store refuses; then all is as it was.
pub(super) fn rebuild(
    engine: &Engine,
    host: &mut Socket,
    stamped: &HashMap<u32, Stamp>,
    metrics: &StoreMetrics,
) -> anyhow::Result<HashMap<u32, Addresses>> {
    let condition = engine.registry.condition();
    let is_whole = *condition == Condition::Intact;
    let known = engine.registry.list();
    let is_live = |it: &Attachment| {
        let has_evidence = match &it.host {
            HostSide::Link(link) => stamped.get(&link.ifindex).is_some_and(|stamp| *stamp.key() == it.key),
            HostSide::Unplugged => false,
            // No stamp can contradict the record.
            HostSide::None | HostSide::Representor(_) => true,
        };
        it.state == State::Attached && has_evidence
    };
    let is_known = |(ifindex, stamp): &(&u32, &Stamp)| {
        let is_its = |it: &Attachment| it.host.ifindex() == Some(**ifindex);
        known.iter().any(|it| it.key == *stamp.key() && (is_whole || is_live(it) && is_its(it)))
    };
    let unknown: HashSet<u32> =
        stamped.iter().filter(|it| !is_known(it)).map(|(ifindex, _)| *ifindex).collect();
    say(condition, metrics, unknown.len());
    if unknown.is_empty() {
        if !is_whole {
            engine.registry.adopt(Vec::new(), &[], true)?;
        }
        return Ok(HashMap::new());
    }

    let (mut found, mut left) = (Vec::new(), HashMap::new());
    let mut taken: HashSet<_> =
        known.iter().filter(|it| is_whole || is_live(it)).flat_map(|it| it.vif.addresses.iter()).collect();
    let mut keys = HashSet::new();
    for seen in survey::survey(host)?.into_iter().filter(|it| unknown.contains(&it.ifindex)) {
        let entry = engine.dataplane.recorded(seen.ifindex)?;
        let owned = entry.iter().flat_map(|it| &it.owners).filter(|(_, owner)| *owner == seen.ifindex);
        let recorded = Addresses::collect(owned.map(|(address, _)| *address)).unwrap_or_default();
        let is_intent = |it: &Attachment| it.state == State::Reserved && it.key == *seen.stamp.key();
        if entry.is_none() && (is_whole || known.iter().any(is_intent)) {
            // What an ADD left that did not get far: it is removed as such. One that got further may have succeeded, as far as a store can
            // tell that has gone back to an earlier state: a pod that lives is not cut off; a DEL comes for one that failed.
            continue;
        }
        let (ifindex, stamp) = (seen.ifindex, seen.stamp.clone());
        let believed = believe(seen, entry, |other| stamped.contains_key(&other)).and_then(|it| {
            let is_free = it.addresses.iter().all(|address| !taken.contains(&address));
            let is_first = keys.insert(stamp.key().clone());
            if is_free && is_first {
                Ok(it)
            } else {
                Err("another interface has its addresses, or its stamp")
            }
        });
        match believed {
            Ok(it) => {
                taken.extend(it.addresses.iter());
                found.push(it);
            }
            Err(why) => {
                tracing::error!(
                    ifindex,
                    %stamp,
                    why,
                    "an interface of a pod is left as it is: its attachment cannot be made anew, and is not known"
                );
                left.insert(ifindex, recorded);
            }
        }
    }
    let attachments = attachments(host, found, &known);
    // Records of an earlier state, whose addresses are others' by now.
    let is_another = |it: &&Attachment| {
        !is_whole
            && !is_live(it)
            && !keys.contains(&it.key)
            && it.vif.addresses.iter().any(|its| taken.contains(&its))
    };
    let superseded: Vec<_> = known.iter().filter(is_another).cloned().collect();
    for Attachment { key, pod, vif, netns, .. } in &attachments {
        tracing::warn!(%key, %pod, addresses = %vif.addresses, ?netns, "an attachment was made anew from what the kernel has");
    }
    if is_whole && !attachments.is_empty() {
        tracing::error!(
            attachments = attachments.len(),
            "the registry's store had lost attachments that the kernel has"
        );
        metrics.rebuilds.inc();
    }
    metrics.rebuilt_attachments.inc_by(attachments.len() as u64);
    metrics.unknown_interfaces.set(count(left.len()));
    engine.registry.adopt(attachments, &superseded, left.is_empty())?;
    Ok(left)
}

/// Once, and so that nobody overlooks it.
fn say(condition: &Condition, metrics: &StoreMetrics, interfaces: usize) {
    match condition {
        Condition::Damaged { why, quarantined } => tracing::error!(
            why,
            ?quarantined,
            interfaces,
            "the registry's store is damaged. It is set aside, and what it lacks is made anew from what the kernel has"
        ),
        Condition::New if interfaces > 0 => tracing::error!(
            interfaces,
            "the registry's store was lost, and pods have interfaces: their attachments are made anew from what the kernel has"
        ),
        Condition::Incomplete if interfaces > 0 => tracing::warn!(
            interfaces,
            "an earlier agent lost the registry's store, and could not make all attachments anew: trying again"
        ),
        Condition::Intact if interfaces > 0 => {}
        _ => return,
    }
    if !matches!(condition, Condition::Incomplete | Condition::Intact) {
        metrics.rebuilds.inc();
    }
}

/// What the host has of an interface. An address that another one of ours is given packets for is not its.
fn believe(
    seen: Seen,
    entry: Option<Recorded>,
    is_ours: impl Fn(u32) -> bool,
) -> Result<Found, &'static str> {
    let ifindex = seen.ifindex;
    let (addresses, mac, pod) = match entry {
        Some(Recorded { vif, owners }) => {
            let its = owners.into_iter().filter(|(_, owner)| *owner == ifindex || !is_ours(*owner));
            let addresses = Addresses::collect(its.map(|(address, _)| address));
            (addresses, Some(Mac(vif.mac)), pod(&vif, seen.stamp.key()))
        }
        None => (Addresses::collect(seen.addresses.iter().copied()), seen.mac, PodRef::default()),
    };
    let addresses = addresses.map_err(|_| "it would have two addresses of one family")?;
    if addresses == Addresses::default() {
        return Err("nothing tells its addresses");
    }
    Ok(Found { mac: mac.unwrap_or_else(|| addresses.mac()), seen, addresses, pod })
}

/// The pod that an entry was written for; unknown if what it says was cut, or is the container's ID.
fn pod(entry: &VifEntry, key: &Key) -> PodRef {
    let (Some(name), Some(uid)) = (text(&entry.pod), text(&entry.pod_uid)) else { return PodRef::default() };
    match name.split_once('/') {
        Some((namespace, name)) => PodRef { namespace: namespace.to_owned(), name: name.to_owned(), uid },
        None if name == key.container_id.as_str() => PodRef::default(),
        None => PodRef { namespace: String::new(), name, uid },
    }
}

/// What is in a field of text; `None` if it is not all there.
fn text(field: &[i8]) -> Option<String> {
    let end = field.iter().position(|byte| *byte == 0)?;
    let bytes: Vec<u8> = field.iter().take(end).map(|byte| byte.cast_unsigned()).collect();
    let text = String::from_utf8(bytes).ok()?;
    (end + 1 < field.len() && !text.contains('?')).then_some(text)
}

/// Of the interfaces of one container in one network, the one that the runtime asked for was made first. The others came with it.
fn attachments(host: &mut Socket, mut found: Vec<Found>, known: &[Attachment]) -> Vec<Attachment> {
    // Container runtimes of Kubernetes ask for `eth0`. Others ask for one, which was made before those that came with it, unless it
    // was made anew since.
    found.sort_by_key(|it| (it.seen.stamp.key().ifname.as_str() != "eth0", it.seen.ifindex));
    let places = survey::places(host, found.iter().filter_map(|it| it.seen.nsid).collect());
    let mut made: BTreeMap<Key, Attachment> = BTreeMap::new();
    let mut firsts: Vec<Key> = known.iter().map(Attachment::runtime_key).collect();
    firsts.extend(found.iter().map(|it| it.seen.stamp.key().clone()));
    for it in found {
        let key = it.seen.stamp.key().clone();
        let is_beside = |other: &&Key| other.network == key.network && other.container_id == key.container_id;
        let with = firsts.iter().find(is_beside).filter(|first| **first != key).cloned();
        let place = it.seen.nsid.and_then(|nsid| places.get(&nsid));
        let before = known.iter().find(|other| other.key == key);
        made.insert(key, attachment(it, with, place, before));
    }
    made.into_values().collect()
}

fn attachment(
    it: Found,
    with: Option<Key>,
    place: Option<&Place>,
    before: Option<&Attachment>,
) -> Attachment {
    let Found { seen, addresses, mac, pod } = it;
    let host = HostSide::Link(HostLink { ifname: seen.ifname.clone(), ifindex: seen.ifindex });
    // A record of an earlier state, but of the same addresses: it says more than the kernel.
    if let Some(before) = before.filter(|before| before.vif.addresses == addresses) {
        return Attachment { state: State::Attached, host, ..before.clone() };
    }
    let routes = place.zip(seen.peer).map(|(place, peer)| survey::routes_of_pod(&place.netns, peer));
    let routes = routes.transpose().unwrap_or_else(|error| {
        tracing::warn!(stamp = %seen.stamp, %error, "the routes of a pod cannot be read: they are taken to be as all pods have them");
        None
    });
    let vif = vif(addresses, mac, seen.mtu, with.is_none(), routes.unwrap_or_default());
    Attachment {
        key: seen.stamp.key().clone(),
        state: State::Attached,
        pod,
        netns: place.and_then(|place| place.path.clone()).unwrap_or_default(),
        netns_id: place.map_or(NetnsId::UNKNOWN, |place| place.netns.id()),
        vif,
        with,
        host,
        // As if it were new: what was never seen of its pod may be on its way.
        created_at_ms: now_ms(),
        // Before any note: one that was left about this key is about this.
        created_since_boot_ns: 0,
    }
}

/// The VIF that routes in the pod were made for.
fn vif(addresses: Addresses, mac: Mac, mtu: u32, is_default: bool, routes: Vec<PodRoute>) -> Vif {
    let is_plain = |it: &PodRoute| it.mtu.or(it.advmss).or(it.priority).is_none();
    let (defaults, others): (Vec<_>, Vec<_>) =
        routes.into_iter().partition(|it| is_default && it.dst.prefix_len() == 0 && is_plain(it));
    let ours = [GATEWAY.0.into(), GATEWAY.1.into()];
    let gateways = defaults.into_iter().map(|it| it.gateway).filter(|it| !ours.contains(it));
    let gateways = Addresses::collect(gateways).unwrap_or_default();
    // Only a veth pair has a stamped link.
    let kind = VifKind::Veth;
    let mut vif = Vif { kind, mac, mtu, addresses, gateways, is_default, routes: Vec::new() };
    for PodRoute { dst, gateway, mtu, advmss, priority } in others.into_iter().take(MAX_ROUTES) {
        let gw = Some(gateway).filter(|it| *it != vif.gateway_for(dst.addr(), GATEWAY));
        vif.routes.push(Route { dst, gw, mtu, advmss, priority });
    }
    vif
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(addresses: &[&str]) -> Seen {
        Seen {
            ifindex: 7,
            ifname: "frx".to_owned(),
            stamp: Stamp::parse("ferrule:net:0123:eth0").unwrap(),
            mtu: 1500,
            peer: Some(2),
            nsid: None,
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            mac: None,
        }
    }

    fn entry(pod: &str, owners: &[(&str, u32)]) -> Recorded {
        let vif = VifEntry {
            ipv4: [10, 0, 0, 2],
            flags: VifEntry::HAS_IPV4,
            ipv6: [0; 16],
            mac: [2, 0, 0, 0, 0, 2],
            reserved: [0; 2],
            pod: VifEntry::text(pod),
            pod_uid: VifEntry::text("u-1"),
            ifname: VifEntry::text("eth0"),
        };
        Recorded {
            vif,
            owners: owners.iter().map(|(address, owner)| (address.parse().unwrap(), *owner)).collect(),
        }
    }

    #[test]
    fn the_maps_tell_more_than_the_routes_and_an_address_of_anothers_is_not_taken() {
        let ours = |ifindex| ifindex == 7 || ifindex == 8;
        let of_maps =
            believe(seen(&["10.0.0.9"]), Some(entry("n/web", &[("10.0.0.2", 7)])), ours).ok().unwrap();
        assert_eq!(
            (of_maps.addresses.to_string().as_str(), of_maps.mac.to_string().as_str()),
            ("10.0.0.2", "02:00:00:00:00:02")
        );
        let of_routes = believe(seen(&["10.0.0.9", "fd00::9"]), None, ours).ok().unwrap();
        assert_eq!(
            (of_routes.addresses.to_string(), of_routes.mac),
            ("10.0.0.9 fd00::9".to_owned(), of_routes.addresses.mac())
        );
        assert!(believe(seen(&[]), None, ours).is_err());
        assert!(believe(seen(&["10.0.0.8", "10.0.0.9"]), None, ours).is_err(), "which of them?");
        assert!(
            believe(seen(&[]), Some(entry("n/web", &[("10.0.0.2", 8)])), ours).is_err(),
            "it is the other one's"
        );
        assert!(
            believe(seen(&[]), Some(entry("n/web", &[("10.0.0.2", 9)])), ours).is_ok(),
            "what was delivered to is gone"
        );
    }

    #[test]
    fn pain_3_a_pod_that_is_not_told_in_full_is_unknown() {
        let key = Key::try_from("net/0123/eth0".to_owned()).unwrap();
        let told = |name: &str| pod(&entry(name, &[]).vif, &key);
        let web = PodRef { namespace: "n".to_owned(), name: "web".to_owned(), uid: "u-1".to_owned() };
        assert_eq!(told("n/web"), web);
        assert_eq!(told("web"), PodRef { namespace: String::new(), ..web });
        for unknown in [&format!("n/{}", "w".repeat(126)), "n/w\u{fc}rfel", "0123"] {
            assert_eq!(told(unknown), PodRef::default(), "{unknown}");
        }
    }

    #[test]
    fn a_vif_has_the_routes_that_a_plug_made_for_it() {
        let route = |dst: &str, gateway: &str, priority| PodRoute {
            dst: dst.parse().unwrap(),
            gateway: gateway.parse().unwrap(),
            mtu: None,
            advmss: None,
            priority,
        };
        let addresses = Addresses { v4: Some([10, 0, 0, 2].into()), v6: Some("fd00::2".parse().unwrap()) };
        let made = |gateways, routes| Vif {
            kind: VifKind::Veth,
            mac: addresses.mac(),
            mtu: 1500,
            addresses,
            gateways,
            is_default: true,
            routes,
        };
        let plain = made(Addresses::default(), Vec::new());
        let through = Addresses { v4: Some([10, 0, 0, 1].into()), v6: None };
        let own = Route::new("192.168.0.0/16".parse().unwrap(), Some("10.0.0.254".parse().unwrap()));
        let same = Route { priority: Some(7), ..Route::new("172.16.0.0/12".parse().unwrap(), None) };
        let decided = made(through, vec![own, same]);
        for expected in [plain, decided] {
            let Vif { mac, mtu, addresses, is_default, .. } = expected;
            assert_eq!(vif(addresses, mac, mtu, is_default, expected.all_routes(GATEWAY)), expected);
        }
        let many: Vec<_> =
            (0..=255).map(|it| route(&format!("172.16.{it}.0/24"), "10.0.0.1", None)).collect();
        assert_eq!(vif(addresses, addresses.mac(), 1500, true, many).routes.len(), MAX_ROUTES);
    }
}
