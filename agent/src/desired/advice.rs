//! What each kind of deviation means for the pod, whether the agent repairs it, and the command that shows or
//! repairs it: for `ferrulectl verify` and for `docs/healing.md`, which a test compares with this table.

use super::deviation::{Deviation, Kind, Subject};
use crate::{
    dataplane::Entry,
    plug::stamp::Stamp,
    registry::{Attachment, Key},
};

/// What an operator should know of a deviation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advice {
    /// The consequence for pods.
    pub means: &'static str,
    /// Shows the deviation, or repairs it where the agent does not.
    pub command: String,
    /// Whether self-healing repairs the deviation.
    pub is_repaired: bool,
}

// === impl Kind ===

impl Kind {
    /// Whether the agent may repair a deviation of this kind. The pod's end is the pod's own; the others need
    /// an operator's decision.
    pub fn is_repairable(self) -> bool {
        self.row().0
    }

    /// Repairable or not, the consequence, and the command with placeholders.
    pub(super) fn row(self) -> (bool, &'static str, &'static str) {
        match self {
            Self::LinkGone => {
                (true, "the pod has no network until the interface exists again", "ip link show dev HOST_IF")
            }
            Self::LinkStamp => (
                false,
                "packets may flow, but the agent neither checks nor repairs the interface, and DEL leaves it",
                "ip link set dev HOST_IF alias STAMP",
            ),
            Self::LinkGroup => (
                true,
                "packets flow, but a command for that group changes the interface too",
                "ip -d link show dev HOST_IF",
            ),
            Self::LinkMaster => (
                true,
                "packets that the pod sends beyond this node go to the master instead",
                "ip link set dev HOST_IF nomaster",
            ),
            Self::LinkName => {
                (true, "packets flow; logs and commands name another interface", "ip -o link show")
            }
            Self::LinkMac => (
                true,
                "the host drops what the pod sends beyond this node, to the MAC of its gateway",
                "ip link show dev HOST_IF",
            ),
            Self::LinkMtu => {
                (true, "packets larger than the smaller MTU are lost", "ip link show dev HOST_IF")
            }
            Self::LinkDown => (true, "the pod has no network", "ip link set dev HOST_IF up"),
            Self::LinkForwarding => (
                true,
                "the host drops IPv4 packets that the pod sends beyond this node",
                "sysctl -w net.ipv4.conf.HOST_IF.forwarding=1",
            ),
            Self::LinkRedirects => (
                true,
                "the host may tell the pod of a shorter path that does not exist",
                "sysctl -w net.ipv4.conf.HOST_IF.send_redirects=0",
            ),
            Self::LinkLocalnet => (
                true,
                "the node cannot reach the pod by a port of 127.0.0.1",
                "sysctl -w net.ipv4.conf.HOST_IF.route_localnet=1",
            ),
            Self::LinkRate => {
                (true, "the pod receives more or less than its limit", "tc qdisc show dev HOST_IF")
            }
            Self::Qdisc => (
                false,
                "the pod's packets pass unchecked: no anti-spoofing, no counters",
                "tc qdisc del dev HOST_IF ingress",
            ),
            Self::Filter(_) => (
                true,
                "the pod's packets pass unchecked in one direction, or by an outdated program",
                "bpftool net show dev HOST_IF",
            ),
            Self::Route(_) => (
                true,
                "the node and other nodes cannot reach the address; pods of this node can",
                "ip route get ADDRESS",
            ),
            Self::Neighbour(_) => (
                true,
                "packets from the node and from other nodes wait for address resolution, or get a wrong MAC",
                "ip neighbour show dev HOST_IF",
            ),
            Self::Entry(Entry::Counters(_)) => {
                (true, "packets flow, but are not counted", "bpftool map dump name MAP")
            }
            Self::Entry(_) => {
                (true, "the dataplane drops or misdirects the pod's packets", "bpftool map dump name MAP")
            }
            Self::PodLink => (
                false,
                "the pod has no network, and the kernel discards what IN PKTS counts",
                "nsenter --net=NETNS ip link show dev IFNAME",
            ),
            Self::PodMac => (
                false,
                "the dataplane drops what the pod sends (spoofed_mac)",
                "nsenter --net=NETNS ip link show dev IFNAME",
            ),
            Self::PodMtu => (
                false,
                "larger packets of the pod may be lost",
                "nsenter --net=NETNS ip link show dev IFNAME",
            ),
            Self::PodRate => (
                false,
                "the pod sends more or less than its limit; a container with NET_ADMIN can change that",
                "nsenter --net=NETNS tc qdisc show dev IFNAME root",
            ),
            Self::PodAddress(_) => (
                false,
                "the pod does not answer to the address, and sends from another one (spoofed_ipv4, spoofed_ipv6)",
                "nsenter --net=NETNS ip address show dev IFNAME",
            ),
            Self::PodRoute(_) => {
                (false, "the pod cannot reach the destination", "nsenter --net=NETNS ip route show table all")
            }
            Self::PodNeighbour(_) => (
                false,
                "the pod resolves its gateway, or sends to a wrong MAC (not_to_gateway)",
                "nsenter --net=NETNS ip neighbour show dev IFNAME",
            ),
            Self::AddressShared(_) => (
                false,
                "packets for the address reach only one of the pods; delete the other",
                "ferrulectl attachments",
            ),
            Self::StrayLink => (true, "no pod has the interface", "ip -d link show"),
            Self::StrayEntry => (
                true,
                "the entry takes a place in its map, and passes no packet",
                "bpftool map dump name MAP",
            ),
            Self::NodeForwarding => {
                (true, "no pod reaches a destination beyond this node", "sysctl -w SETTING=1")
            }
            Self::NodeRedirects => {
                (true, "the host may tell pods of a shorter path that does not exist", "sysctl -w SETTING=0")
            }
            Self::RangeRoute => (
                true,
                "packets to addresses of the range that no pod has leave the node, and may return in a loop",
                "ip route show type unreachable proto 70",
            ),
            Self::Masquerade => (
                true,
                "the world may see pods' own addresses, to which no reply leads",
                "nft list table inet ferrule",
            ),
            Self::HostPorts => {
                (true, "ports of the node do not lead to their pods", "nft list table inet ferrule-ports")
            }
            Self::NodeRoutes => (
                true,
                "pods of another node may be out of reach",
                "ip route show table all proto 70; ip -d link show dev ferrule-vxlan",
            ),
            Self::PolicyRows => (
                true,
                "packets of pods may be dropped, or pass, against the cluster's policies",
                "bpftool map dump name VIFS; ferrulectl policy list",
            ),
            Self::Pin => (
                true,
                "packets flow, but the next agent starts with empty maps: it loses counters and translated flows",
                "findmnt --types bpf",
            ),
        }
    }
}

// === impl Deviation ===

impl Deviation {
    /// `of`: the deviating attachment, if the subject is one.
    pub fn advice(&self, of: Option<&Attachment>) -> Advice {
        let (is_repaired, means, command) = self.kind.row();
        let mut command = command.to_owned();
        let mut fill = |name: &str, value: String| command = command.replace(name, &value);
        if let Some(it) = of {
            if let Some(host) = it.host.device() {
                fill("HOST_IF", host.ifname.clone());
            }
            fill("NETNS", it.netns.display().to_string());
        }
        match &self.of {
            Subject::Attachment(key) | Subject::Interface(_, key) => fill_key(&mut fill, key),
            Subject::Setting(_) => fill("SETTING", self.of.to_string()),
            Subject::Entry(_)
            | Subject::Pin(_)
            | Subject::Range(_)
            | Subject::MasqueradeTable
            | Subject::HostPortsTable
            | Subject::NodeRoutes
            | Subject::PolicyRows => {}
        }
        match self.kind {
            Kind::Route(address) => fill("ADDRESS", address.to_string()),
            Kind::Entry(entry) => fill("MAP", entry.map().to_owned()),
            Kind::StrayEntry => {
                if let Subject::Entry(entry) = &self.of {
                    fill("MAP", entry.map().to_owned());
                }
            }
            _ => {}
        }
        Advice { means, command, is_repaired }
    }
}

fn fill_key(fill: &mut impl FnMut(&str, String), key: &Key) {
    fill("STAMP", Stamp::of(key).to_string());
    fill("IFNAME", key.ifname.to_string());
}
