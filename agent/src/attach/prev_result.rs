//! CHECK's `prevResult`, the result of the whole chain: later plugins may have added to the attachment, and
//! may have changed the pod's MTU and routes.

use std::net::IpAddr;

use ferrule_proto::cni::{AddResult, Interface, Ip, Route};
use ferrule_vif::{Mac, PodRoute};
use ipnet::IpNet;

use crate::{
    desired::{Desired, ExpectedMtu},
    registry::Attachment,
};

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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::desired::desired;
    use crate::registry::testing::attachment;

    /// The result of an ADD of [`attachment`], without a change by a later plugin.
    fn result() -> AddResult {
        let interface = |name: &str, mac: &str, sandbox: &str| Interface {
            name: name.into(),
            mac: mac.into(),
            mtu: 0,
            sandbox: sandbox.into(),
        };
        let ip = |address: &str| Ip { address: address.into(), gateway: String::new(), interface: 1 };
        let route = |dst: &str, gw: &str| Route { dst: dst.into(), gw: gw.into(), ..Route::default() };
        AddResult {
            interfaces: vec![
                interface("fr2", "0a:00:00:00:00:01", ""),
                interface("eth0", "02:00:00:00:00:02", "/run/netns/a"),
            ],
            ips: vec![ip("10.0.0.2/32"), ip("fd00::2/128")],
            routes: vec![route("0.0.0.0/0", "169.254.1.1"), route("::/0", "")],
        }
    }

    /// The MTU and the routes that CHECK then expects of the pod.
    fn check(change: impl FnOnce(&mut AddResult)) -> Result<(ExpectedMtu, Vec<String>), String> {
        let (attachment, mut previous) = (attachment("eth0", None, 2), result());
        change(&mut previous);
        let mut desired = desired(&attachment, [1, 2]).unwrap();
        apply(&mut desired, Path::new("/var/run/netns/a"), &previous)?;
        Ok((desired.pod.mtu, desired.pod.routes.iter().map(|it| it.dst.to_string()).collect()))
    }

    #[test]
    fn later_plugins_may_add_and_may_change_mtu_and_routes() {
        let both = vec!["0.0.0.0/0".to_owned(), "::/0".to_owned()];
        assert_eq!(check(|_| {}), Ok((ExpectedMtu::AtMost(1450), both.clone())));
        let exactly = |mtu| Ok((ExpectedMtu::Exactly(mtu), both.clone()));
        assert_eq!(check(|it| it.interfaces[1].mtu = 1300), exactly(1300));
        assert_eq!(check(|it| it.interfaces[1].mtu = 9000), exactly(9000));
        let more = |it: &mut AddResult| {
            it.interfaces.push(Interface { name: "ifb0".into(), ..Interface::default() });
            it.ips.push(Ip { address: "10.9.9.9/24".into(), ..Ip::default() });
            // Results before CNI 1.0.0 may lack the index.
            it.ips[0].interface = u32::MAX;
            it.interfaces[1].mac.clear();
            it.interfaces[1].sandbox = "/var/run/netns/a".into();
        };
        assert_eq!(check(more), Ok((ExpectedMtu::AtMost(1450), both.clone())));
        for change in [
            (|it| it.routes[0].dst = "10.0.0.0/8".into()) as fn(&mut AddResult),
            |it| it.routes[0].gw = "10.0.0.1".into(),
            |it| it.routes[0].mtu = 1400,
            |it| it.routes[0].advmss = 1400,
            |it| it.routes[0].priority = 7,
            |it| drop(it.routes.remove(0)),
        ] {
            assert_eq!(check(change).unwrap().1, ["::/0"], "a replaced route is not expected");
        }
    }

    #[test]
    fn a_result_without_a_part_of_the_attachment_is_refused() {
        for (change, expected) in [
            (
                (|it| it.interfaces[0].name = "fr9".into()) as fn(&mut AddResult),
                "lacks the host interface fr2",
            ),
            (|it| it.interfaces[0].sandbox = "/run/netns/a".into(), "lacks the host interface fr2"),
            (|it| it.interfaces[1].name = "eth1".into(), "has no interface eth0 in /var/run/netns/a"),
            (|it| it.interfaces[1].sandbox = "/run/netns/b".into(), "has no interface eth0"),
            (|it| it.ips[0].address = "10.0.0.3/32".into(), "lacks the address 10.0.0.2"),
            (|it| it.ips[0].address = "10.0.0.2".into(), "lacks the address 10.0.0.2"),
            (|it| it.ips[1].interface = 0, "lacks the address fd00::2"),
            (|it| it.interfaces[1].mac = "02:00:00:00:00:66".into(), "has changed the MAC of eth0"),
            (|it| it.interfaces[1].mac = "garbage".into(), "has changed the MAC of eth0"),
        ] {
            let error = check(change).unwrap_err();
            assert!(error.contains(expected), "{expected}: {error}");
        }
    }
}
