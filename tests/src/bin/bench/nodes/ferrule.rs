//! Two nodes with agents, a pod on each, and the agents' settings that are compared.

use std::{fs, net::IpAddr, thread, time::Duration};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    fabric::{Fabric, Member},
    pod::Pod,
    sys,
};

use super::cable::{Cable, INTERFACE};
use crate::rates::path::Path;

/// The pods, as agents with one setting connect them.
#[derive(Debug)]
pub(super) struct Setting {
    /// With IPv4 and IPv6.
    pub(super) names: [&'static str; 2],
    /// The values of `--node-routes` and `--node-fast-path`.
    routes: &'static str,
    fast_path: &'static str,
    /// Of the routes to the other node.
    device: &'static str,
}

pub(super) const DIRECT: Setting =
    Setting { names: ["direct", "direct, IPv6"], routes: "direct", fast_path: "on", device: INTERFACE };
pub(super) const DIRECT_STACK: Setting =
    Setting { names: ["direct, by the stack", "direct, by the stack, IPv6"], fast_path: "off", ..DIRECT };
pub(super) const VXLAN: Setting =
    Setting { names: ["VXLAN", "VXLAN, IPv6"], routes: "vxlan", fast_path: "on", device: "ferrule-vxlan" };
pub(super) const VXLAN_STACK: Setting =
    Setting { names: ["VXLAN, by the stack", "VXLAN, by the stack, IPv6"], fast_path: "off", ..VXLAN };

pub(super) const CABLE: Cable =
    Cable { ends: ["node-1", "node-2"], networks: ["10.100.0.", "fd00:10:100::"] };

/// For the agents to agree, on a loaded machine.
const TIMEOUT: Duration = Duration::from_secs(20);
/// A new agent works for a moment after its start.
const SETTLE: Duration = Duration::from_millis(500);

/// The nodes at the ends of the cable.
pub(super) fn members(fabric: &Fabric) -> [&Member; 2] {
    let [one, two, _] = &fabric.nodes;
    [one, two]
}

/// Lays the cable, starts agents that use it, and attaches a pod on each node.
pub(super) fn start(fabric: &Fabric) -> anyhow::Result<[Pod; 2]> {
    CABLE.lay()?;
    for (number, node) in members(fabric).iter().enumerate() {
        let ranges: Vec<_> = node.ranges.iter().map(String::as_str).collect();
        node.register_as(&ranges, &CABLE.parsed(number)?)?;
        node.begin_agent(&[])?;
    }
    let [one, two] = members(fabric);
    [one, two].iter().try_for_each(|node| node.wait_until_ready())?;
    Ok([one.attach("client")?, two.attach("server")?])
}

// === impl Setting ===

impl Setting {
    /// Starts both agents again with the setting, and waits until the pods reach each other by it. Returns
    /// the paths, with IPv4 and IPv6.
    pub(super) fn apply(&self, fabric: &Fabric, [client, server]: &[Pod; 2]) -> anyhow::Result<Vec<Path>> {
        let flags = ["--node-routes", self.routes, "--node-fast-path", self.fast_path];
        for node in members(fabric) {
            node.on(|node| node.stop_agent())?;
            node.begin_agent(&flags)?;
        }
        for node in members(fabric) {
            node.wait_until_ready()?;
            sys::wait_until(&format!("{} routes by {}", node.name, self.device), TIMEOUT, || {
                let routes = node.node_routes()?;
                let by = format!("dev {} ", self.device);
                Ok(routes.len() == 2 && routes.iter().all(|it| format!("{it} ").contains(&by)))
            })?;
        }
        thread::sleep(SETTLE);
        for to in &server.addresses {
            sys::wait_until(&format!("the pods reach each other with {flags:?}"), TIMEOUT, || {
                client.ping(&to.to_string()).map(|_| true)
            })?;
            self.check(fabric, client, *to)?;
        }
        let of = |is_ipv4| server.addresses.iter().find(|it: &&IpAddr| it.is_ipv4() == is_ipv4);
        let path = |(name, address): (_, &IpAddr)| anyhow::Ok(Path::new(name, client, server, *address));
        let addresses = [
            of(true).context("the pod has no IPv4 address")?,
            of(false).context("the pod has no IPv6 address")?,
        ];
        self.names.iter().copied().zip(addresses).map(path).collect()
    }

    /// Requires packets to take the path that is measured: the stack counts what it forwards.
    fn check(&self, fabric: &Fabric, client: &Pod, to: IpAddr) -> anyhow::Result<()> {
        const PINGS: u64 = 20;
        for node in members(fabric) {
            let before = forwarded(node, to)?;
            client.run(&format!("ping -n -q -c {PINGS} -i 0.005 {to}"))?;
            let count = forwarded(node, to)? - before;
            let (is_fast, passed) = (self.fast_path == "on", count >= PINGS);
            ensure!(
                is_fast != passed,
                "{}: the stack of {} forwarded {count} packets of {PINGS} pings to {to}:\n{}",
                self.names[0],
                node.name,
                node.status()?
            );
        }
        Ok(())
    }
}

/// Packets that a node's stack has forwarded, of an address's family.
fn forwarded(node: &Member, to: IpAddr) -> anyhow::Result<u64> {
    let read = |file: &str| {
        sys::in_netns(node.path(), || Ok(fs::read_to_string(format!("/proc/thread-self/net/{file}"))?))
    };
    let text = if to.is_ipv4() {
        let text = read("snmp")?;
        let mut lines = text.lines().filter_map(|line| line.strip_prefix("Ip: "));
        let mut words = || lines.next().into_iter().flat_map(str::split_whitespace);
        let (names, values): (Vec<_>, Vec<_>) = (words().collect(), words().collect());
        names
            .iter()
            .zip(values)
            .find(|(name, _)| **name == "ForwDatagrams")
            .map(|(_, value)| value.to_owned())
    } else {
        let text = read("snmp6")?;
        let value = text.lines().find_map(|line| line.strip_prefix("Ip6OutForwDatagrams"));
        value.map(|it| it.trim().to_owned())
    };
    Ok(text.context("the kernel does not count forwarded packets")?.parse()?)
}
