//! The records of rebuilt attachments.

use std::collections::BTreeMap;

use ferrule_vif::{Addresses, Mac, PodRoute, Route, Vif, VifKind};

use super::claim::Claim;
use crate::{
    plug::{
        GATEWAY,
        netlink::Socket,
        peer_netns::{self, FoundNetns},
        pod_end, shaping,
    },
    registry::{
        Attachment, HostLink, HostSide, Key, Mapping, NetnsId, Rate, State, Wishes, now_ms, since_boot,
    },
};

/// The most routes that are adopted for an interface, as many as a VIF can have: a pod can create any number.
const MAX_ROUTES: usize = 64;

/// The records of all claims. Of the interfaces of one container in one network, the requested one was
/// created first; the others become additional ones.
pub(super) fn records(
    host: &mut Socket,
    mut claims: Vec<Claim>,
    recorded: &[Attachment],
    mappings: &[Mapping],
) -> Vec<Attachment> {
    // Kubernetes runtimes request `eth0`. For others, the lowest index is the first interface, unless it was
    // restored.
    claims.sort_by_key(|it| (it.link.stamp.key().ifname.as_str() != "eth0", it.link.ifindex));
    let places = peer_netns::find(host, claims.iter().filter_map(|it| it.link.nsid).collect());
    let mut records: BTreeMap<Key, Attachment> = BTreeMap::new();
    let mut requested: Vec<Key> = recorded.iter().map(Attachment::runtime_key).collect();
    requested.extend(claims.iter().map(|it| it.link.stamp.key().clone()));
    for claim in claims {
        let key = claim.link.stamp.key().clone();
        let is_sibling = |it: &&Key| it.network == key.network && it.container_id == key.container_id;
        let with = requested.iter().find(is_sibling).filter(|first| **first != key).cloned();
        let place = claim.link.nsid.and_then(|nsid| places.get(&nsid));
        let before = recorded.iter().find(|it| it.key == key);
        let has = |it: &&Mapping| claim.addresses.iter().any(|address| it.to.ip() == address);
        let mut wishes = Wishes::of(mappings.iter().filter(has).copied());
        // The kernel does not tell the burst; the host's end may have the limit of another plugin.
        let limit = |found: Option<u64>| Some(Rate { bits: found?.saturating_mul(8), burst_bits: 0 });
        let received = claim.is_shaped.then(|| shaping::read(host, claim.link.ifindex));
        wishes.ingress = limit(received.and_then(Result::ok).flatten());
        let sent = place.zip(claim.link.peer).map(|(place, peer)| pod_end::rate(&place.netns, peer));
        wishes.egress = limit(sent.and_then(Result::ok).flatten());
        records.insert(key, record(claim, with, place, before, wishes));
    }
    records.into_values().collect()
}

fn record(
    claim: Claim,
    with: Option<Key>,
    place: Option<&FoundNetns>,
    before: Option<&Attachment>,
    wishes: Wishes,
) -> Attachment {
    let Claim { link, addresses, mac, pod, .. } = claim;
    let host = HostSide::Link(HostLink { ifname: link.ifname.clone(), ifindex: link.ifindex });
    // As if created now: the watch may not have delivered the pod yet, and a deferred DEL means an earlier
    // interface, because the shim deletes the interfaces of its DEL before it succeeds.
    let created_since_boot_ns = u64::try_from(since_boot().as_nanos()).unwrap_or(u64::MAX);
    // A stale record with the same addresses has more than the kernel.
    if let Some(before) = before.filter(|before| before.vif.addresses == addresses) {
        return Attachment { state: State::Attached, host, created_since_boot_ns, ..before.clone() };
    }
    let routes = place.zip(link.peer).map(|(place, peer)| pod_end::static_routes(&place.netns, peer));
    let routes = routes.transpose().unwrap_or_else(|error| {
        tracing::warn!(stamp = %link.stamp, %error, "cannot read the routes of a pod; recording the default routes only");
        None
    });
    let vif = vif(addresses, mac, link.mtu, with.is_none(), routes.unwrap_or_default());
    let path = place.and_then(|place| place.path.clone());
    Attachment {
        key: link.stamp.key().clone(),
        state: State::Attached,
        pod,
        // The store cannot hold a path that is not UTF-8.
        netns: path.filter(|path| path.to_str().is_some()).unwrap_or_default(),
        netns_id: place.map_or(NetnsId::UNKNOWN, |place| place.netns.id()),
        vif,
        with,
        wishes,
        host,
        created_at_ms: now_ms(),
        created_since_boot_ns,
        later: serde_json::Map::new(),
    }
}

/// The VIF whose plug made these routes in the pod.
fn vif(addresses: Addresses, mac: Mac, mtu: u32, is_default: bool, routes: Vec<PodRoute>) -> Vif {
    // The MTU may be that of the path to other nodes, which is not the VIF's.
    let is_plain = |it: &PodRoute| it.advmss.or(it.priority).is_none();
    let (defaults, others): (Vec<_>, Vec<_>) =
        routes.into_iter().partition(|it| is_default && it.dst.prefix_len() == 0 && is_plain(it));
    let ours = [GATEWAY.0.into(), GATEWAY.1.into()];
    let gateways = defaults.into_iter().map(|it| it.gateway).filter(|it| !ours.contains(it));
    let gateways = Addresses::collect(gateways).unwrap_or_default();
    // No other kind has a stamped link.
    let kind = VifKind::Veth;
    // The kernel does not know which family is primary.
    let is_ipv6_first = false;
    let mut vif = Vif { kind, mac, mtu, addresses, is_ipv6_first, gateways, is_default, routes: Vec::new() };
    for PodRoute { dst, gateway, mtu, advmss, priority } in others.into_iter().take(MAX_ROUTES) {
        let gw = Some(gateway).filter(|it| *it != vif.gateway_for(dst.addr(), GATEWAY));
        vif.routes.push(Route { dst, gw, mtu, advmss, priority });
    }
    vif
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _, path::PathBuf};

    use super::*;
    use crate::{
        cluster::PodRef,
        plug::{host_inventory::StampedLink, netns::Netns, stamp::Stamp},
    };

    fn claim() -> Claim {
        let addresses = Addresses { v4: Some([10, 0, 0, 2].into()), v6: None };
        let link = StampedLink {
            ifindex: 7,
            ifname: "frx".to_owned(),
            stamp: Stamp::parse("ferrule:net:0123:eth0").unwrap(),
            mtu: 1500,
            peer: None,
            nsid: None,
            addresses: Vec::new(),
            mac: None,
        };
        Claim { link, addresses, mac: addresses.mac(), pod: PodRef::default(), is_shaped: false }
    }

    #[test]
    fn path_that_the_store_cannot_hold_is_not_recorded() {
        let found = |path: &[u8]| FoundNetns {
            netns: Netns::current().unwrap(),
            path: Some(PathBuf::from(OsStr::from_bytes(path))),
        };
        let recorded = record(claim(), None, Some(&found(b"/run/netns/cni-\xff")), None, Wishes::default());
        assert_eq!((recorded.has_path(), recorded.netns_id), (false, Netns::current().unwrap().id()));
        serde_json::to_vec(&recorded).unwrap();
        let recorded = record(claim(), None, Some(&found(b"/run/netns/cni-1")), None, Wishes::default());
        assert_eq!(recorded.netns, PathBuf::from("/run/netns/cni-1"));
    }

    #[test]
    fn rebuilt_attachment_is_as_old_as_its_record() {
        // In nanoseconds.
        let now = || u64::try_from(since_boot().as_nanos()).unwrap();
        let start = now();
        let rebuilt = record(claim(), None, None, None, Wishes::default());
        assert!((start..=now()).contains(&rebuilt.created_since_boot_ns));
        let stale = Attachment {
            created_since_boot_ns: 5,
            state: State::Reserved,
            host: HostSide::Unplugged,
            ..rebuilt.clone()
        };
        let renewed = record(claim(), None, None, Some(&stale), Wishes::default());
        assert!((start..=now()).contains(&renewed.created_since_boot_ns));
        assert_eq!((renewed.state, renewed.host), (State::Attached, rebuilt.host));
    }

    #[test]
    fn vif_is_rebuilt_from_the_routes_that_its_plug_made() {
        let route = |dst: &str, gateway: &str, priority| PodRoute {
            dst: dst.parse().unwrap(),
            gateway: gateway.parse().unwrap(),
            mtu: None,
            advmss: None,
            priority,
        };
        let addresses = Addresses { v4: Some([10, 0, 0, 2].into()), v6: Some("fd00::2".parse().unwrap()) };
        let plugged = |gateways, routes| Vif {
            kind: VifKind::Veth,
            mac: addresses.mac(),
            mtu: 1500,
            addresses,
            is_ipv6_first: false,
            gateways,
            is_default: true,
            routes,
        };
        let plain = plugged(Addresses::default(), Vec::new());
        let through = Addresses { v4: Some([10, 0, 0, 1].into()), v6: None };
        let own = Route::new("192.168.0.0/16".parse().unwrap(), Some("10.0.0.254".parse().unwrap()));
        let same = Route { priority: Some(7), ..Route::new("172.16.0.0/12".parse().unwrap(), None) };
        let decided = plugged(through, vec![own, same]);
        for expected in [plain, decided] {
            let Vif { mac, mtu, addresses, is_default, .. } = expected;
            assert_eq!(vif(addresses, mac, mtu, is_default, expected.all_routes(GATEWAY)), expected);
        }
        let many: Vec<_> =
            (0..=255).map(|it| route(&format!("172.16.{it}.0/24"), "10.0.0.1", None)).collect();
        assert_eq!(vif(addresses, addresses.mac(), 1500, true, many).routes.len(), MAX_ROUTES);
    }
}
