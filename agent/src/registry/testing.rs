//! An attachment for unit tests.

use ferrule_vif::{Addresses, Mac, Vif, VifKind};

use super::{Attachment, HostLink, HostSide, Key, NetnsId, State, Wishes};
use crate::cluster::PodRef;

pub(crate) const MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);

/// A dual-stack attachment `net/a/IFNAME` with the addresses 10.0.0.N and fd00::N, which is also the index of
/// its host's end `frN`.
pub(crate) fn attachment(ifname: &str, with: Option<&str>, number: u8) -> Attachment {
    let key = |ifname: &str| Key::try_from(format!("net/a/{ifname}")).unwrap();
    let addresses = Addresses {
        v4: Some([10, 0, 0, number].into()),
        v6: Some([0xfd00, 0, 0, 0, 0, 0, 0, number.into()].into()),
    };
    Attachment {
        key: key(ifname),
        state: State::Plugged,
        pod: PodRef::default(),
        netns: "/run/netns/a".into(),
        netns_id: NetnsId { dev: 4, ino: 7 },
        vif: Vif {
            kind: VifKind::Veth,
            mac: MAC,
            mtu: 1450,
            addresses,
            is_ipv6_first: false,
            gateways: Addresses::default(),
            is_default: with.is_none(),
            routes: Vec::new(),
        },
        with: with.map(key),
        wishes: Wishes::default(),
        host: HostSide::Link(HostLink { ifname: format!("fr{number}"), ifindex: number.into() }),
        created_at_ms: 0,
        created_since_boot_ns: 0,
        later: serde_json::Map::new(),
    }
}
