//! Ports of the node that lead to pods (`hostPort`, `podman run --publish`).
//!
//! ```text
//!  ADD, DEL ─▶ one transaction adds or removes the pod's mappings ─▶ conntrack forgets wrong flows
//!  start    ─▶ the whole table, unless it is right ◀─ desired, heal: compared with the kernel's
//! ```
//!
//! The registry keeps the mappings; this room knows which are in the table, and lends each port once. A node
//! without such a pod has no table.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::{
    chain::chain,
    plug::{
        host,
        netlink::NetlinkError,
        nft::{conntrack, host_ports_table},
    },
    registry::{Attachment, HostPort, Key, LeftAddresses, Mapping, Place, Transport, Wishes},
};
use ferrule_vif::Addresses;

/// A mapping that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    #[error("the node's port {port} is taken by {by}")]
    Taken {
        port: Place,
        /// The pod, or the key of an interface whose pod is not known.
        by: String,
    },
    #[error("the pod lacks an address of the family of the node's port {0}")]
    NoAddress(HostPort),
    #[error("the node's port {port} is the agent's own, for {purpose}")]
    Own { port: Place, purpose: &'static str },
    #[error("the node's port {0} leads nowhere: conntrack of this kernel does not know SCTP")]
    NoSctp(Place),
    #[error("cannot lead ports of the node to the pod")]
    Netlink(#[from] NetlinkError),
}

/// An address of the node on which the agent listens: a pod that had the port would get what is the agent's.
#[derive(Debug, Clone, Copy)]
pub struct OwnPort {
    pub protocol: Transport,
    /// Unspecified for all addresses, of both families.
    pub address: SocketAddr,
    /// With the setting.
    pub purpose: &'static str,
}

/// Keeps the table.
pub struct HostPorts {
    own: Vec<OwnPort>,
    /// The first and the last port that masqueraded flows get; `None` if there are no such flows.
    masqueraded: Option<(u16, u16)>,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken(BTreeMap<Place, (Key, SocketAddr)>);

// === impl OwnPort ===

impl OwnPort {
    fn is(&self, place: Place) -> bool {
        let (own, other) = (self.address.ip(), place.address);
        let overlap = own.is_unspecified()
            || own == other
            || other.is_unspecified() && other.is_ipv4() == own.is_ipv4();
        overlap && self.address.port() == place.port && self.protocol == place.protocol
    }
}

// === impl HostPorts ===

impl HostPorts {
    /// No pod gets one of the `own` ports. A pod with a port of the range of `masqueraded` flows gets the
    /// port, with a warning.
    pub fn new(own: Vec<OwnPort>, masqueraded: Option<(u16, u16)>) -> Self {
        Self { own, masqueraded, taken: Mutex::default() }
    }

    /// Takes over the ports of attachments, at start: the table has these afterwards. A port of two
    /// attachments stays with the first. The ports that lead to `left` interfaces, which have no record, stay
    /// with them. Conntrack forgets the flows of ports that go: those of pods that were deleted without an
    /// agent. Blocks.
    ///
    /// # Errors
    /// If the kernel refuses; the earlier table stays, and healing retries.
    pub fn take_over(&self, attachments: &[Attachment], left: &[LeftAddresses]) -> Result<(), NetlinkError> {
        let mut taken = self.taken();
        for it in attachments {
            let mappings = mappings(it).unwrap_or_default();
            self.warn_of_masqueraded(&it.key, &mappings);
            for mapping in mappings {
                if let Err(error) = self.check(mapping.from) {
                    tracing::error!(key = %it.key, error = chain(&error), "a port of the node leads to no pod");
                    continue;
                }
                let (by, _) = taken.0.entry(mapping.from).or_insert_with(|| (it.key.clone(), mapping.to));
                if *by != it.key {
                    tracing::error!(key = %it.key, %by, port = %mapping.from, "two pods have one port of the node");
                }
            }
        }
        let found = read();
        taken.keep(left, &found);
        let all = taken.mappings();
        if all.is_empty() {
            host_ports_table::delete()?;
        } else if !matches!(host_ports_table::difference(&all), Ok(None)) {
            host_ports_table::write(&all)?;
        }
        drop(taken);
        let gone: Vec<_> = found.into_iter().filter(|it| !all.contains(it)).collect();
        report(None, conntrack::forget_after(&gone));
        Ok(())
    }

    /// Which of the ports is taken, and by whom, before the pod's addresses are known: for a pod with an
    /// address of each of these families, whichever. A port of another family is no conflict, but refused by
    /// [`Self::add`].
    pub fn conflict(&self, wishes: &Wishes, families: Addresses, own: &[Key]) -> Option<(Place, Key)> {
        if !wishes.has_host_ports() {
            return None;
        }
        let taken = self.taken();
        let conflict = |it: &Mapping| {
            let (by, _) = taken.0.get(&it.from).filter(|(by, _)| !own.contains(by))?;
            Some((it.from, by.clone()))
        };
        wishes.mappings(families).unwrap_or_default().iter().find_map(conflict)
    }

    /// Leads the attachment's ports to its pod. Blocks.
    ///
    /// # Errors
    /// If one is taken, the pod lacks an address, or the kernel refuses; nothing is changed.
    pub fn add(&self, attachment: &Attachment) -> Result<(), PortError> {
        let mappings = mappings(attachment).map_err(PortError::NoAddress)?;
        if mappings.is_empty() {
            return Ok(());
        }
        mappings.iter().try_for_each(|it| self.check(it.from))?;
        let mut taken = self.taken();
        let other = |it: &Mapping| {
            let (by, _) = taken.0.get(&it.from).filter(|(by, _)| *by != attachment.key)?;
            Some((it.from, by.clone()))
        };
        if let Some((port, by)) = mappings.iter().find_map(other) {
            return Err(PortError::Taken { port, by: by.to_string() });
        }
        for it in &mappings {
            taken.0.insert(it.from, (attachment.key.clone(), it.to));
        }
        // Without a table, or with a damaged one, the whole.
        let added = host_ports_table::add(&mappings).or_else(|_| host_ports_table::write(&taken.mappings()));
        if let Err(error) = added {
            taken.give_back(&attachment.key);
            return Err(error.into());
        }
        drop(taken);
        // The node's first table has loaded conntrack.
        if let Err(error) = mappings.iter().try_for_each(|it| self.check(it.from)) {
            self.close(&attachment.key)?;
            return Err(error);
        }
        self.warn_of_masqueraded(&attachment.key, &mappings);
        let own = host::addresses().unwrap_or_else(|error| {
            let error = chain(&error);
            tracing::warn!(key = %attachment.key, error, "cannot read the node's addresses; earlier flows go on");
            Vec::new()
        });
        report(Some(&attachment.key), conntrack::forget_before(&mappings, &own));
        Ok(())
    }

    /// Ends what [`Self::add`] began, if it did. Blocks.
    ///
    /// # Errors
    /// If the kernel refuses; the mappings stay.
    pub fn remove(&self, attachment: &Attachment) -> Result<(), NetlinkError> {
        self.abandon(attachment).inspect_err(|_| {
            let mut taken = self.taken();
            for it in mappings(attachment).unwrap_or_default() {
                taken.0.entry(it.from).or_insert_with(|| (attachment.key.clone(), it.to));
            }
        })
    }

    /// The same for an ADD that has failed, and will have no record: what the kernel does not remove now,
    /// healing does.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn abandon(&self, attachment: &Attachment) -> Result<(), NetlinkError> {
        if attachment.wishes.has_host_ports() { self.close(&attachment.key) } else { Ok(()) }
    }

    /// Closes the ports of an interface, if it has any. What the kernel does not remove now, healing does.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn close(&self, key: &Key) -> Result<(), NetlinkError> {
        let mut taken = self.taken();
        let removed = taken.give_back(key);
        if removed.is_empty() {
            return Ok(());
        }
        if taken.0.is_empty() {
            host_ports_table::delete()?;
        } else {
            host_ports_table::remove(&removed).or_else(|_| host_ports_table::write(&taken.mappings()))?;
        }
        drop(taken);
        report(Some(key), conntrack::forget_after(&removed));
        Ok(())
    }

    /// The ports that an attachment should have and does not have since the agent's start, each with the
    /// reason.
    pub fn lost(&self, attachment: &Attachment) -> Vec<String> {
        let mappings = mappings(attachment).unwrap_or_default();
        let taken = self.taken();
        let why = |it: &Mapping| match (self.check(it.from), taken.0.get(&it.from)) {
            (Err(own), _) => Some(own.to_string()),
            (Ok(()), Some((by, _))) if *by != attachment.key => {
                Some(PortError::Taken { port: it.from, by: by.to_string() }.to_string())
            }
            (Ok(()), _) => None,
        };
        mappings.iter().filter_map(why).collect()
    }

    fn warn_of_masqueraded(&self, key: &Key, mappings: &[Mapping]) {
        for port in self.masqueraded(mappings) {
            let Some((first, last)) = self.masqueraded else { return };
            tracing::warn!(
                %key,
                port,
                masquerade_ports = format!("{first}-{last}"),
                "masqueraded flows may get a host port of a pod, and their answers then go to that pod: choose \
                 another host port, or other masquerade_ports"
            );
        }
    }

    /// The host ports, each once, that masqueraded flows may get, too.
    fn masqueraded(&self, mappings: &[Mapping]) -> BTreeSet<u16> {
        let is_in = |port: &u16| self.masqueraded.is_some_and(|(first, last)| (first..=last).contains(port));
        // No flow is masqueraded with an address of the loopback interface.
        let of_uplinks = mappings.iter().filter(|it| !it.from.address.is_loopback());
        of_uplinks.map(|it| it.from.port).filter(is_in).collect()
    }

    /// What differs in the kernel; `None` also if the kernel does not tell. No ADD waits for the dump, and
    /// may change the table meanwhile: a difference counts if a second look finds one, too.
    pub fn difference(&self) -> Option<String> {
        let mappings = self.taken().mappings();
        let found = if mappings.is_empty() {
            host_ports_table::exists().map(|it| it.then(|| "a table without ports".to_owned()))
        } else {
            host_ports_table::difference(&mappings)
        };
        found.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read the nftables table inet {}", host_ports_table::NAME);
            None
        })
    }

    /// Writes the table again.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn restore(&self) -> Result<(), NetlinkError> {
        let taken = self.taken();
        if taken.0.is_empty() {
            return host_ports_table::delete().map(drop);
        }
        host_ports_table::write(&taken.mappings())
    }

    fn check(&self, port: Place) -> Result<(), PortError> {
        if port.protocol == Transport::Sctp && conntrack::lacks_sctp() {
            return Err(PortError::NoSctp(port));
        }
        let own = self.own.iter().find(|it| it.is(port));
        own.map_or(Ok(()), |OwnPort { purpose, .. }| Err(PortError::Own { port, purpose }))
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Taken ===

impl Taken {
    fn mappings(&self) -> Vec<Mapping> {
        self.0.iter().map(|(from, (_, to))| Mapping { from: *from, to: *to }).collect()
    }

    /// Keeps what leads to interfaces without a record, unless an attachment has the port.
    fn keep(&mut self, left: &[LeftAddresses], found: &[Mapping]) {
        for Mapping { from, to } in found {
            let has = |it: &&LeftAddresses| it.addresses.iter().any(|address| address == to.ip());
            if let Some(owner) = left.iter().find(has) {
                self.0.entry(*from).or_insert_with(|| (owner.key.clone(), *to));
            }
        }
    }

    /// Frees the ports of an attachment, and returns their mappings.
    fn give_back(&mut self, key: &Key) -> Vec<Mapping> {
        let of_it = self.0.extract_if(.., |_, (by, _)| by == key);
        of_it.map(|(from, (_, to))| Mapping { from, to }).collect()
    }
}

fn mappings(it: &Attachment) -> Result<Vec<Mapping>, HostPort> {
    it.wishes.mappings(it.vif.addresses)
}

/// The kernel's mappings; none if the kernel does not tell.
fn read() -> Vec<Mapping> {
    host_ports_table::read().unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot read the nftables table inet {}", host_ports_table::NAME);
        Vec::new()
    })
}

/// A client that goes on sends to where the port has led before: no reason to refuse a pod.
fn report(key: Option<&Key>, forgotten: std::io::Result<usize>) {
    let key = key.map(tracing::field::display);
    match forgotten {
        Ok(0) => {}
        Ok(flows) => tracing::info!(key, flows, "conntrack has forgotten flows of pods' ports"),
        Err(error) => {
            let error = chain(&error);
            tracing::warn!(key, error, "conntrack cannot forget flows of pods' ports; they go on as before");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::testing;

    fn port(protocol: Transport, port: u16) -> HostPort {
        HostPort { protocol, address: None, port, pod_port: 80 }
    }

    #[test]
    fn a_port_conflicts_in_the_families_that_the_new_pod_will_have_only() {
        let ports = HostPorts::new(Vec::new(), None);
        let place =
            |address: &str| Place { address: address.parse().unwrap(), protocol: Transport::Tcp, port: 80 };
        let by = testing::attachment("eth0", None, 2).key;
        ports.taken().0.insert(place("::"), (by.clone(), "[fd00::2]:80".parse().unwrap()));
        let wishes = Wishes { host_ports: vec![port(Transport::Tcp, 80)], ..Wishes::default() };
        let v4 = Addresses { v4: Some([0; 4].into()), v6: None };
        let both = Addresses { v6: Some([0; 16].into()), ..v4 };
        assert_eq!(ports.conflict(&wishes, v4, &[]), None);
        assert_eq!(ports.conflict(&wishes, both, &[]), Some((place("::"), by.clone())));
        assert_eq!(ports.conflict(&wishes, both, &[by]), None, "its own");
    }

    #[test]
    fn ports_of_interfaces_without_a_record_stay_with_them_until_they_are_closed() {
        let mut taken = Taken::default();
        let key = |container: &str| Key::try_from(format!("net/{container}/eth0")).unwrap();
        let addresses = Addresses { v4: Some([10, 0, 0, 7].into()), v6: None };
        let left = LeftAddresses { key: key("left"), ifindex: 9, addresses };
        let mapping = |number: u16, to: &str| Mapping {
            from: Place { address: [0; 4].into(), protocol: Transport::Tcp, port: number },
            to: to.parse().unwrap(),
        };
        let found = [mapping(80, "10.0.0.7:80"), mapping(81, "10.0.0.8:80"), mapping(82, "10.0.0.7:80")];
        let other = mapping(82, "10.0.0.9:80");
        taken.0.insert(other.from, (key("other"), other.to));
        taken.keep(&[left], &found);
        assert_eq!(taken.mappings(), [found[0], other], "another pod's, and no pod's");
        assert_eq!(taken.give_back(&key("left")), [found[0]]);
    }

    #[test]
    fn host_ports_that_masqueraded_flows_may_get_are_known_each_once() {
        let mapping = |address: &str, port| Mapping {
            from: Place { address: address.parse().unwrap(), protocol: Transport::Tcp, port },
            to: "10.0.0.7:80".parse().unwrap(),
        };
        let mappings = [
            mapping("0.0.0.0", 40_000),
            mapping("::", 40_000),
            mapping("0.0.0.0", 32_767),
            mapping("0.0.0.0", 32_768),
            mapping("192.0.2.1", 65_535),
            mapping("127.0.0.1", 50_000),
            mapping("::1", 50_000),
        ];
        let known = |range| HostPorts::new(Vec::new(), range).masqueraded(&mappings);
        assert_eq!(known(Some((32_768, 65_535))), [32_768, 40_000, 65_535].into());
        assert_eq!(known(Some((50_000, 60_000))), [].into());
        assert_eq!(known(None), [].into());
    }

    #[test]
    fn no_pod_gets_a_port_on_which_the_agent_listens() {
        let own = |protocol, address: &str| OwnPort {
            protocol,
            address: address.parse().unwrap(),
            purpose: "a test",
        };
        let ports = HostPorts::new(
            vec![own(Transport::Udp, "[::]:4789"), own(Transport::Tcp, "127.0.0.1:9469")],
            None,
        );
        let place =
            |address: &str, protocol, port| Place { address: address.parse().unwrap(), protocol, port };
        for (place, is_refused) in [
            (place("0.0.0.0", Transport::Udp, 4789), true),
            (place("::", Transport::Udp, 4789), true),
            (place("192.0.2.1", Transport::Udp, 4789), true),
            (place("0.0.0.0", Transport::Tcp, 4789), false),
            (place("0.0.0.0", Transport::Tcp, 9469), true),
            (place("127.0.0.1", Transport::Tcp, 9469), true),
            (place("192.0.2.1", Transport::Tcp, 9469), false),
            (place("::", Transport::Tcp, 9469), false),
            (place("0.0.0.0", Transport::Tcp, 9468), false),
        ] {
            let checked = ports.check(place);
            assert_eq!(
                matches!(checked, Err(PortError::Own { port, .. }) if port == place),
                is_refused,
                "{place}"
            );
        }
        let mut attachment = testing::attachment("eth0", None, 2);
        attachment.wishes.host_ports = vec![port(Transport::Udp, 4789)];
        let refused = ports.add(&attachment);
        assert!(matches!(refused, Err(PortError::Own { .. })), "{refused:?}");
        // An attachment of an agent that did not listen there.
        assert!(ports.lost(&attachment).join("; ").contains("is the agent's own, for a test"));
        attachment.wishes.host_ports = vec![port(Transport::Udp, 4790)];
        assert_eq!(ports.lost(&attachment), [""; 0]);
    }
}
