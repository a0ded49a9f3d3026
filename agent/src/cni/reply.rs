//! The result of an ADD, as the shim renders it for the runtime's CNI version.

use agent_common::GATEWAY_MAC;
use ferrule_proto::cni::{AddResult, Interface, Ip, Route};
use ferrule_vif::Mac;
use ipnet::IpNet;

use crate::{plug::GATEWAY, registry::Attachment};

/// Lists every interface, the host end of each before its pod end.
pub(super) fn add(attachments: &[Attachment]) -> AddResult {
    let mut result = AddResult::default();
    for Attachment { key, vif, host, netns, .. } in attachments {
        let host_end = Interface {
            name: host.device().map(|device| device.ifname.clone()).unwrap_or_default(),
            mac: Mac(GATEWAY_MAC).to_string(),
            mtu: vif.mtu,
            sandbox: String::new(),
        };
        let pod_end = Interface {
            name: key.ifname.to_string(),
            mac: vif.mac.to_string(),
            mtu: vif.mtu,
            sandbox: netns.to_string_lossy().into_owned(),
        };
        let pod_index = u32::try_from(result.interfaces.len() + 1).unwrap_or_default();
        result.interfaces.extend([host_end, pod_end]);
        result.ips.extend(vif.by_preference().map(|address| {
            let gateway = vif.gateway_for(address, GATEWAY).to_string();
            Ip { address: IpNet::from(address).to_string(), gateway, interface: pod_index }
        }));
        let routes = vif.all_routes(GATEWAY).into_iter();
        result.routes.extend(routes.map(|route| Route {
            dst: route.dst.to_string(),
            gw: route.gateway.to_string(),
            mtu: route.mtu.unwrap_or_default(),
            advmss: route.advmss.unwrap_or_default(),
            priority: route.priority.unwrap_or_default(),
        }));
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::testing::attachment;

    #[test]
    fn every_interface_is_listed_after_its_host_end_and_each_address_names_its_interface() {
        let result = add(&[attachment("eth0", None, 2), attachment("eth1", Some("eth0"), 3)]);
        let interfaces: Vec<_> =
            result.interfaces.iter().map(|it| (it.name.as_str(), it.sandbox.as_str(), it.mtu)).collect();
        let netns = "/run/netns/a";
        assert_eq!(
            interfaces,
            [("fr2", "", 1450), ("eth0", netns, 1450), ("fr3", "", 1450), ("eth1", netns, 1450)]
        );
        assert_eq!(result.interfaces[1].mac, "02:00:00:00:00:02");
        let ips: Vec<_> =
            result.ips.iter().map(|it| (it.address.as_str(), it.gateway.as_str(), it.interface)).collect();
        let gateways = [ips[0].1, ips[1].1];
        assert!(gateways[0] == "169.254.1.1" && gateways[1].starts_with("fe80::"), "{gateways:?}");
        let addresses: Vec<_> = ips.iter().map(|(address, _, interface)| (*address, *interface)).collect();
        assert_eq!(
            addresses,
            [("10.0.0.2/32", 1), ("fd00::2/128", 1), ("10.0.0.3/32", 3), ("fd00::3/128", 3)]
        );
        let routes: Vec<_> = result.routes.iter().map(|it| (it.dst.as_str(), it.gw.as_str())).collect();
        assert_eq!(
            routes,
            [("0.0.0.0/0", gateways[0]), ("::/0", gateways[1])],
            "only the first is the way out"
        );
    }
}
