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
