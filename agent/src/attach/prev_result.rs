//! What CHECK is told of the chain's result, held against what we attached: plugins after ours may have added
//! to it, and may have changed some of it.

use std::net::IpAddr;

use ferrule_proto::cni::{AddResult, Interface, Ip, Route};
use ipnet::IpNet;

use crate::{
    plug::{
        GATEWAY,
        check::{Leeway, PodMtu},
    },
    registry::Attachment,
};
use ferrule_vif::{Mac, PodRoute};

/// How far the kernel may differ from an attachment, going by the chain's result. `netns` is the path that
/// CHECK was given.
///
/// # Errors
/// What of ours is not in the result, or has been changed in a way that breaks the pod: in words.
pub(super) fn leeway(
    attachment: &Attachment,
    netns: &std::path::Path,
    previous: &AddResult,
) -> Result<Leeway, String> {
    let Attachment { key, vif, host, .. } = attachment;
    if let Some(host) = host.device()
        && !previous.interfaces.iter().any(|it| it.sandbox.is_empty() && it.name == host.ifname)
    {
        return Err(format!("prevResult has not the host's interface {}", host.ifname));
    }
    let in_pod = |it: &Interface| [netns, &attachment.netns].contains(&std::path::Path::new(&it.sandbox));
    let is_it = |it: &Interface| it.name == key.ifname.as_str() && in_pod(it);
    let Some((index, interface)) = previous.interfaces.iter().enumerate().find(|(_, it)| is_it(it)) else {
        return Err(format!("prevResult has no interface {} in {}", key.ifname, netns.display()));
    };
    for address in vif.addresses.iter() {
        if !previous.ips.iter().any(|ip| is_address(ip, address, index, previous.interfaces.len())) {
            return Err(format!("prevResult has not the address {address} on the interface {}", key.ifname));
        }
    }
    // Were it no MAC at all, it would not be the VIF's either.
    let mac = Mac::try_from(interface.mac.clone()).ok();
    if !interface.mac.is_empty() && mac != Some(vif.mac) {
        return Err(format!(
            "a plugin after this one has changed the MAC of {}, and all that comes from another one than {} is dropped: \
             take it out of the chain, or let the pod's VIF say the MAC",
            key.ifname, vif.mac
        ));
    }
    let listed = |route: &PodRoute| previous.routes.iter().any(|it| is_route(it, route));
    let routes = vif.all_routes(GATEWAY).into_iter();
    let changed = routes.filter(|route| !listed(route)).map(|route| route.dst);
    Ok(Leeway { pod_mtu: pod_mtu(interface.mtu), routes: changed.collect() })
}

/// Results before 1.1.0 do not tell an MTU. A smaller one than ours harms nobody.
fn pod_mtu(listed: u32) -> PodMtu {
    if listed == 0 { PodMtu::NoLarger } else { PodMtu::Is(listed) }
}

fn is_address(ip: &Ip, address: IpAddr, interface: usize, interfaces: usize) -> bool {
    let index = ip.interface as usize;
    let same = ip.address.parse::<IpNet>().is_ok_and(|it| it.addr() == address);
    same && (index == interface || index >= interfaces)
}

fn is_route(listed: &Route, route: &PodRoute) -> bool {
    let to = listed.dst.parse::<IpNet>().is_ok_and(|dst| dst == route.dst);
    let through = listed.gw.is_empty() || listed.gw.parse::<IpAddr>().is_ok_and(|gw| gw == route.gateway);
    let is = |listed: u32, ours: Option<u32>| listed == 0 || Some(listed) == ours;
    to && through
        && is(listed.mtu, route.mtu)
        && is(listed.advmss, route.advmss)
        && is(listed.priority, route.priority)
}
