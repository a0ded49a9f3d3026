//! The diff of one attachment.

use super::{
    attachment::{Desired, DesiredHostEnd, DesiredPodEnd},
    deviation::{Deviation, Kind, Subject},
    presence::{Presence, presence},
};
use crate::{
    dataplane::Entries,
    plug::{
        filter,
        host_inventory::{HostInventory, HostLinkState},
        pod_end::PodEndState,
        reaper::RETIRED,
    },
};
use ferrule_vif::{Mac, PodRoute};

/// The actual state of kernel and maps, as far as one attachment is concerned.
#[derive(Clone, Copy)]
pub struct Actual<'a> {
    pub host: &'a HostInventory,
    pub entries: &'a Entries,
    /// Without its namespace, an attachment needs no interface until its DEL arrives.
    pub netns_exists: bool,
    pub pod: PodEnd<'a>,
}

#[derive(Debug, Clone, Copy)]
pub enum PodEnd<'a> {
    /// Not read, hence not compared.
    Unread,
    Missing,
    Present(&'a PodEndState),
}

/// Collects deviations of one kind of subject.
struct Report {
    of: Subject,
    found: Vec<Deviation>,
}

// === impl Desired ===

impl Desired<'_> {
    /// All deviations of the attachment: first the host's end, then the map entries, then the pod's end.
    pub fn diff(&self, actual: &Actual<'_>) -> Vec<Deviation> {
        let of = Subject::Attachment(self.attachment.key.clone());
        let mut report = Report { of, found: Vec::new() };
        let host = &self.host;
        let link = actual.host.links.get(&host.ifindex);
        match (presence(self.attachment, &actual.host.links), link) {
            (Presence::Present | Presence::Retired, Some(link)) => {
                host.diff_link(link, &mut report);
                host.diff_localnet(link, &mut report);
                host.diff_rate(actual.host, &mut report);
                host.diff_filters(&link.name, actual.host, &mut report);
                host.diff_addresses(self.pod.mac, actual.host, &mut report);
            }
            (Presence::Restamped, Some(link)) => report.add(
                Kind::LinkStamp,
                format!(
                    "wrong alias, expected {}, on {} ({}), which the agent therefore does not touch",
                    host.stamp, link.name, host.ifindex
                ),
            ),
            // The map entries disappear with the interface: they are no deviations of their own.
            _ if actual.netns_exists => {
                let what = "is gone, but the pod's network namespace exists";
                report.add(
                    Kind::LinkGone,
                    format!("the host interface {} ({}) {what}", host.ifname, host.ifindex),
                );
                return report.found;
            }
            (_, Some(link)) => {
                let what = "has neither the alias nor the MAC of";
                report.add(
                    Kind::LinkStamp,
                    format!(
                        "{} ({}) {what} {}, so the agent does not touch it",
                        link.name, host.ifindex, host.ifname
                    ),
                );
                return report.found;
            }
            (_, None) => return report.found,
        }
        for entry in actual.entries.wrong(host.ifindex, self.attachment) {
            report.add(
                Kind::Entry(entry),
                format!("the map entry {} is missing or wrong", Subject::Entry(entry)),
            );
        }
        report.found.extend(self.diff_pod(actual.pod));
        report.found
    }

    /// The deviations of the pod's end.
    pub fn diff_pod(&self, actual: PodEnd<'_>) -> Vec<Deviation> {
        let of = Subject::Attachment(self.attachment.key.clone());
        let mut report = Report { of, found: Vec::new() };
        match actual {
            PodEnd::Unread => {}
            PodEnd::Missing => {
                report.add(Kind::PodLink, format!("the pod has no interface {}", self.pod.ifname));
            }
            PodEnd::Present(pod) => self.pod.diff(self.host.mac, pod, &mut report),
        }
        report.found
    }
}

// === impl DesiredHostEnd ===

impl DesiredHostEnd {
    fn diff_link(&self, link: &HostLinkState, report: &mut Report) {
        let Self { ifindex, ifname, .. } = self;
        if link.group != self.group {
            let group = if link.group == RETIRED { " (retired interfaces)" } else { "" };
            report.wrong(
                Kind::LinkGroup,
                "link group",
                format_args!("{}{group}", link.group),
                self.group,
                format_args!("on {ifname}"),
            );
        }
        if let Some(master) = link.master {
            let what = "which receives the packets that the pod sends";
            report.add(Kind::LinkMaster, format!("{ifname} has the master interface {master}, {what}"));
        }
        if link.name != *ifname {
            report.wrong(
                Kind::LinkName,
                "name",
                &link.name,
                ifname,
                format_args!("of host interface {ifindex}"),
            );
        }
        if link.mac != Some(self.mac) {
            report.wrong(Kind::LinkMac, "MAC", shown(link.mac), self.mac, format_args!("on {ifname}"));
        }
        if link.mtu != self.mtu {
            report.wrong(Kind::LinkMtu, "MTU", link.mtu, self.mtu, format_args!("on {ifname}"));
        }
        if !link.up {
            report.add(Kind::LinkDown, format!("the host interface {ifname} is down"));
        }
        if self.has_ipv4 && !link.forwards_ipv4 {
            report.add(
                Kind::LinkForwarding,
                format!("net.ipv4.conf.{}.forwarding is 0, expected 1", link.name),
            );
        }
        if self.has_ipv4 && link.sends_redirects {
            report.add(
                Kind::LinkRedirects,
                format!("net.ipv4.conf.{}.send_redirects is 1, expected 0", link.name),
            );
        }
    }

    /// A limit that others have set is theirs.
    fn diff_rate(&self, actual: &HostInventory, report: &mut Report) {
        let found = actual.rates.get(&self.ifindex).copied();
        if let Some(expected) = self.rate.filter(|expected| found != Some(*expected)) {
            let expected = format_args!("{expected} bytes/s");
            report.wrong(Kind::LinkRate, "rate", shown(found), expected, format_args!("on {}", self.ifname));
        }
    }

    fn diff_localnet(&self, link: &HostLinkState, report: &mut Report) {
        if self.routes_localnet && !link.routes_localnet {
            report.add(
                Kind::LinkLocalnet,
                format!("net.ipv4.conf.{}.route_localnet is 0, expected 1", link.name),
            );
        }
    }

    fn diff_filters(&self, found_name: &str, actual: &HostInventory, report: &mut Report) {
        let Self { ifindex, ifname, .. } = self;
        if let Some(kind) = actual.foreign_qdiscs.get(ifindex) {
            let remedy = filter::foreign_qdisc_remedy(kind, found_name);
            report.add(
                Kind::Qdisc,
                format!("no place for the filters from_pod and to_pod on {ifname}: {remedy}"),
            );
            return;
        }
        let attached = actual.filters.get(ifindex).map(Vec::as_slice).unwrap_or_default();
        for (hook, name, program) in self.filters {
            match attached.iter().find(|it| it.hook == hook && it.is_ours).map(|it| it.program) {
                Some(found) if found == Some(program) => {}
                Some(found) => report.wrong(
                    Kind::Filter(hook),
                    "program",
                    shown(found),
                    program,
                    format_args!("of the filter {name} on {ifname}"),
                ),
                None => report.add(Kind::Filter(hook), format!("the filter {name} is missing on {ifname}")),
            }
        }
    }

    fn diff_addresses(&self, pod: Mac, actual: &HostInventory, report: &mut Report) {
        let Self { ifindex, ifname, addresses, .. } = self;
        for &address in addresses {
            if !actual.routes.contains(&(*ifindex, address)) {
                report.add(
                    Kind::Route(address),
                    format!("the host has no route to {address} through {ifname}"),
                );
            }
            let kind = Kind::Neighbour(address);
            match actual.neighbours.get(&(*ifindex, address)) {
                Some((mac, true)) if *mac == pod => {}
                Some((mac, true)) => {
                    let of = format_args!("of the neighbour {address} on {ifname}");
                    report.wrong(kind, "MAC", mac, pod, of);
                }
                _ => report.add(
                    kind,
                    format!("the host has no permanent neighbour entry for {address} on {ifname}"),
                ),
            }
        }
    }
}

// === impl DesiredPodEnd ===

impl DesiredPodEnd {
    fn diff(&self, gateway: Mac, pod: &PodEndState, report: &mut Report) {
        let ifname = &self.ifname;
        if !pod.up {
            report.add(Kind::PodLink, format!("the pod's interface {ifname} is down"));
        }
        let on = format_args!("on the pod's interface {ifname}");
        if pod.mac != Some(self.mac) {
            report.wrong(Kind::PodMac, "MAC", shown(pod.mac), self.mac, on);
        }
        if !self.mtu.permits(pod.mtu) {
            report.wrong(Kind::PodMtu, "MTU", pod.mtu, self.mtu, on);
        }
        if let Some(expected) = self.rate.filter(|expected| pod.rate != Some(*expected)) {
            report.wrong(Kind::PodRate, "rate", shown(pod.rate), format_args!("{expected} bytes/s"), on);
        }
        for &address in self.addresses.iter().filter(|it| !pod.addresses.contains(it)) {
            report.add(
                Kind::PodAddress(address),
                format!("the pod's interface {ifname} lacks the address {address}"),
            );
        }
        for route in self.routes.iter().filter(|route| !pod.routes.iter().any(|it| serves(it, route))) {
            let (dst, expected) = (route.dst, path(route));
            let to =
                if dst.prefix_len() == 0 { "default route".to_owned() } else { format!("route to {dst}") };
            let found: Vec<_> = pod.routes.iter().filter(|it| it.dst == dst).map(path).collect();
            let found =
                if found.is_empty() { String::new() } else { format!("; found: {}", found.join(" or ")) };
            report.add(Kind::PodRoute(dst), format!("the pod has no {to} {expected}{found}"));
        }
        for address in self.gateways() {
            let entry = format_args!("neighbour entry for its gateway {address}");
            match pod.neighbours.get(&address) {
                Some(mac) if *mac == gateway => {}
                Some(mac) => {
                    report.wrong(
                        Kind::PodNeighbour(address),
                        "MAC",
                        mac,
                        gateway,
                        format_args!("in the pod's {entry}"),
                    );
                }
                None => report.add(Kind::PodNeighbour(address), format!("the pod has no {entry}")),
            }
        }
    }
}

// === impl Report ===

impl Report {
    fn add(&mut self, kind: Kind, what: String) {
        self.found.push(Deviation { of: self.of.clone(), kind, what });
    }

    /// "wrong MTU 1300, expected 1500, on eth0"
    fn wrong(
        &mut self,
        kind: Kind,
        fact: &str,
        found: impl std::fmt::Display,
        expected: impl std::fmt::Display,
        place: std::fmt::Arguments<'_>,
    ) {
        self.add(kind, format!("wrong {fact} {found}, expected {expected}, {place}"));
    }
}

/// Whether a route does what the desired one should do. Metrics that the VIF leaves to the kernel may have
/// any value.
fn serves(found: &PodRoute, desired: &PodRoute) -> bool {
    let is = |desired: Option<u32>, found: Option<u32>| desired.is_none() || desired == found;
    found.dst == desired.dst
        && found.gateway == desired.gateway
        && is(desired.mtu, found.mtu)
        && is(desired.advmss, found.advmss)
        && is(desired.priority, found.priority)
}

/// "through 169.254.1.1 with the MTU 1400 and priority 7"
fn path(route: &PodRoute) -> String {
    let facts = [("MTU", route.mtu), ("advertised MSS", route.advmss), ("priority", route.priority)];
    let facts: Vec<_> =
        facts.into_iter().filter_map(|(name, value)| Some(format!("{name} {}", value?))).collect();
    let with = if facts.is_empty() { String::new() } else { format!(" with the {}", facts.join(" and ")) };
    format!("through {}{with}", route.gateway)
}

fn shown(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "none".to_owned(), |value| value.to_string())
}
