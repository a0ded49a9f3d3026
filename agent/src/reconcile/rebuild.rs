//! Attachments made anew from what the kernel has, when the registry's store was lost or damaged.
//!
//! The stamp tells the key, the maps the addresses, the MAC and the pod; where they have no entry, the host's routes and neighbours tell
//! the former two. The namespace is found by the number that the host has for the one that the interface's other end is in. What is
//! only in the pod, its routes, is read there; nothing that a pod could have changed decides what it may send or is given.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    path::PathBuf,
};

use agent_common::Vif as Entry;

use crate::{
    cni::Node,
    metrics::{StoreMetrics, count},
    plug::{
        GATEWAY,
        netlink::Socket,
        stamp::Stamp,
        survey::{self, Place, Seen},
    },
    registry::{Attachment, Condition, HostLink, Key, NetnsId, Pod, State, now_ms},
    vif::{Addresses, Mac, PodRoute, Route, Vif},
};

/// What is believed of an interface.
struct Found {
    seen: Seen,
    addresses: Addresses,
    mac: Mac,
    pod: Pod,
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
    node: &Node,
    host: &mut Socket,
    stamped: &HashMap<u32, Stamp>,
    metrics: &StoreMetrics,
) -> anyhow::Result<HashMap<u32, Addresses>> {
    let condition = node.registry.condition();
    let is_whole = *condition == Condition::Whole;
    let known = node.registry.list();
    let is_live = |it: &Attachment| {
        let stamp = it.host.as_ref().and_then(|link| stamped.get(&link.ifindex));
        it.state == State::Attached && stamp.is_some_and(|stamp| *stamp.key() == it.key)
    };
    let is_known = |(ifindex, stamp): &(&u32, &Stamp)| {
        let is_its = |it: &Attachment| it.host.as_ref().is_some_and(|link| link.ifindex == **ifindex);
        known.iter().any(|it| it.key == *stamp.key() && (is_whole || is_live(it) && is_its(it)))
    };
    let unknown: HashSet<u32> =
        stamped.iter().filter(|it| !is_known(it)).map(|(ifindex, _)| *ifindex).collect();
    say(condition, metrics, unknown.len());
    if unknown.is_empty() {
        if !is_whole {
            node.registry.settle(Vec::new(), &[], true)?;
        }
        return Ok(HashMap::new());
    }

    let (mut found, mut left) = (Vec::new(), HashMap::new());
    let mut taken: HashSet<_> =
        known.iter().filter(|it| is_whole || is_live(it)).flat_map(|it| it.vif.addresses.iter()).collect();
    let mut keys = HashSet::new();
    for seen in survey::survey(host)?.into_iter().filter(|it| unknown.contains(&it.ifindex)) {
        let entry = node.dataplane.entry(seen.ifindex)?;
        if is_whole && entry.is_none() {
            // What a plug left that failed: it is removed as such.
            continue;
        }
        let (ifindex, stamp) = (seen.ifindex, seen.stamp.clone());
        match believe(seen, entry, |other| stamped.contains_key(&other)) {
            Ok(it)
                if it.addresses.iter().all(|address| !taken.contains(&address))
                    && keys.insert(stamp.key().clone()) =>
            {
                taken.extend(it.addresses.iter());
                found.push(it);
            }
            Ok(_) | Err(()) => {
                tracing::error!(
                    ifindex,
                    %stamp,
                    "nothing tells which addresses an interface of a pod has: it is left as it is, and its attachment is not known"
                );
                left.insert(ifindex, Addresses::default());
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
    metrics.rebuilt_attachments.inc_by(attachments.len() as u64);
    metrics.unknown_interfaces.set(count(left.len()));
    node.registry.settle(attachments, &superseded, left.is_empty())?;
    Ok(left)
}

/// Once, and so that nobody overlooks it.
fn say(condition: &Condition, metrics: &StoreMetrics, interfaces: usize) {
    match condition {
        Condition::Damaged { why, aside } => tracing::error!(
            why,
            ?aside,
            interfaces,
            "the registry's store is damaged. It is set aside, and what it lacks is made anew from what the kernel has"
        ),
        Condition::New if interfaces > 0 => tracing::error!(
            interfaces,
            "the registry's store was lost, and pods have interfaces: their attachments are made anew from what the kernel has"
        ),
        Condition::Unsettled if interfaces > 0 => tracing::warn!(
            interfaces,
            "an earlier agent lost the registry's store, and could not make all attachments anew: trying again"
        ),
        Condition::Whole if interfaces > 0 => {}
        _ => return,
    }
    if !matches!(condition, Condition::Unsettled | Condition::Whole) {
        metrics.rebuilds.inc();
    }
}

/// What the host has of an interface. An address that another one of ours is given packets for is not its.
fn believe(
    seen: Seen,
    entry: Option<(Entry, Vec<(std::net::IpAddr, u32)>)>,
    is_ours: impl Fn(u32) -> bool,
) -> Result<Found, ()> {
    let ifindex = seen.ifindex;
    let (addresses, mac, pod) = match entry {
        Some((entry, owners)) => {
            let its = owners.into_iter().filter(|(_, owner)| *owner == ifindex || !is_ours(*owner));
            let addresses = Addresses::collect(its.map(|(address, _)| address));
            (addresses, Some(Mac(entry.mac)), pod(&entry, seen.stamp.key()))
        }
        None => (Addresses::collect(seen.addresses.iter().copied()), seen.mac, Pod::default()),
    };
    let addresses = addresses.map_err(drop)?;
    if addresses == Addresses::default() {
        return Err(());
    }
    Ok(Found { mac: mac.unwrap_or_else(|| addresses.mac()), seen, addresses, pod })
}

/// The pod that an entry was written for; unknown if what it says was cut, or is the container's ID.
fn pod(entry: &Entry, key: &Key) -> Pod {
    let (Some(name), Some(uid)) = (text(&entry.pod), text(&entry.pod_uid)) else { return Pod::default() };
    match name.split_once('/') {
        Some((namespace, name)) => Pod { namespace: namespace.to_owned(), name: name.to_owned(), uid },
        None if name == key.container_id.as_str() => Pod::default(),
        None => Pod { namespace: String::new(), name, uid },
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
    found.sort_by_key(|it| it.seen.ifindex);
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
    let link = HostLink { ifname: seen.ifname.clone(), ifindex: seen.ifindex };
    // A record of an earlier state, but of the same addresses: it says more than the kernel.
    if let Some(before) = before.filter(|before| before.vif.addresses == addresses) {
        return Attachment { state: State::Attached, host: Some(link), ..before.clone() };
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
        netns: place.and_then(|place| place.path.clone()).unwrap_or_else(PathBuf::new),
        netns_id: place.map_or(NetnsId::UNKNOWN, |place| place.netns.id()),
        vif,
        with,
        host: Some(link),
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
    let mut vif = Vif { mac, mtu, addresses, gateways, is_default, routes: Vec::new() };
    for PodRoute { dst, gateway, mtu, advmss, priority } in others.into_iter().take(MAX_ROUTES) {
        let gw = Some(gateway).filter(|it| *it != vif.gateway_for(dst.addr(), GATEWAY));
        vif.routes.push(Route { dst, gw, mtu, advmss, priority });
    }
    vif
}
