//! The MTU of a running pod's routes, which follows the path to other nodes. The interface keeps its own: a
//! change of that would reset what the pod has set on it.

use nix::errno::Errno;
use rtnetlink::packet_route::RouteNetlinkMessage;

use ferrule_proto::names::IfName;
use ferrule_vif::Vif;

use super::{
    GATEWAY, PlugError, link,
    netlink::{Request, Socket},
    netns::Netns,
    pod_end::static_routes_of,
    requests::{pod_route, route_mtu},
};

/// Gives the pod's routes to which the VIF gives no MTU that of the path, in bytes. Routes that the pod has
/// changed or deleted stay as they are. Returns the number of changed routes.
///
/// # Errors
/// If the namespace cannot be entered, or the kernel refuses.
pub fn follow(netns: &Netns, ifname: &IfName, vif: &Vif, path_mtu: u32) -> Result<usize, PlugError> {
    let mut pod = netns.run(Socket::open)??;
    let Some(link) = link::by_name(&mut pod, ifname.as_str())? else { return Ok(0) };
    let ifindex = link.header.index;
    let expected = vif.all_routes(GATEWAY);
    let mut requests = Vec::new();
    for mut found in static_routes_of(&mut pod, ifindex)? {
        let is_ours =
            expected.iter().any(|it| it.dst == found.dst && it.gateway == found.gateway && it.mtu.is_none());
        let mtu = route_mtu(vif, Some(path_mtu), found.dst.addr().is_ipv4());
        if is_ours && found.mtu != mtu {
            found.mtu = mtu;
            let what = format!("set the MTU of the pod's route to {}", found.dst);
            requests.push(Request::exchange(what, RouteNetlinkMessage::NewRoute(pod_route(ifindex, &found))));
        }
    }
    let count = requests.len();
    if count == 0 {
        return Ok(0);
    }
    match pod.batch(requests) {
        // The pod has deleted a route meanwhile.
        Err(error) if error.is(Errno::ENOENT) => Ok(0),
        done => Ok(done.map(|_| count)?),
    }
}
