//! CHECK's `prevResult`, the result of the whole chain: later plugins may have added to the attachment, and
//! may have changed the pod's MTU and routes.

use std::net::IpAddr;

use ferrule_proto::cni::{AddResult, Interface, Ip, Route};
use ipnet::IpNet;

use crate::{
    desired::{Desired, ExpectedMtu},
    registry::Attachment,
};
use ferrule_vif::{Mac, PodRoute};

/// Adjusts the desired state of the pod's end to the result of the chain. `netns` is the path in CHECK's
/// environment.
///
/// # Errors
/// If the result lacks a part of the attachment, or a later plugin made a change that breaks the pod.
pub(super) fn apply(
    desired: &mut Desired<'_>,
    netns: &std::path::Path,
    previous: &AddResult,
) -> Result<(), String> {
    let Attachment { key, vif, host, netns: recorded, .. } = desired.attachment;
    if let Some(host) = host.device()
        && !previous.interfaces.iter().any(|it| it.sandbox.is_empty() && it.name == host.ifname)
    {
        return Err(format!("prevResult lacks the host interface {}", host.ifname));
    }
    let in_pod = |it: &Interface| [netns, recorded].contains(&std::path::Path::new(&it.sandbox));
    let is_it = |it: &Interface| it.name == key.ifname.as_str() && in_pod(it);
    let Some((index, interface)) = previous.interfaces.iter().enumerate().find(|(_, it)| is_it(it)) else {
        return Err(format!("prevResult has no interface {} in {}", key.ifname, netns.display()));
    };
    for address in vif.addresses.iter() {
        if !previous.ips.iter().any(|ip| is_address(ip, address, index, previous.interfaces.len())) {
            return Err(format!("prevResult lacks the address {address} on the interface {}", key.ifname));
        }
    }
    // A malformed MAC is not the VIF's either.
    let mac = Mac::try_from(interface.mac.clone()).ok();
    if !interface.mac.is_empty() && mac != Some(vif.mac) {
        return Err(format!(
            "a later plugin of the chain has changed the MAC of {}: wrong MAC {}, expected {}, and the dataplane \
             drops packets with another source MAC; remove the plugin from the chain, or set the MAC in the pod's VIF",
            key.ifname, interface.mac, vif.mac
        ));
    }
    let listed = |route: &PodRoute| previous.routes.iter().any(|it| is_route(it, route));
    desired.pod.routes.retain(listed);
    // Results before CNI 1.1.0 carry no MTU. A smaller MTU than the VIF's breaks nothing.
    desired.pod.mtu = match interface.mtu {
        0 => ExpectedMtu::AtMost(vif.mtu),
        listed => ExpectedMtu::Exactly(listed),
    };
    Ok(())
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
