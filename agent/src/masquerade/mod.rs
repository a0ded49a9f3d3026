//! Masquerading: packets from this node's pods to the world get an address of the node.
//!
//! ```text
//!  settings, file of ip-masq-agent ─┐
//!  ranges, pods outside of them ────┴▶ the wanted table ─ differs from the last one ─▶ one transaction
//!                                            │
//!                      desired, heal: compared with the kernel's table, and written again
//! ```
//!
//! Flows that begin while the table is missing keep their source for ever, and get no reply: the agent makes
//! conntrack forget them once the table is there again.
//!
//! Nothing depends on single pods, so ADD has no part in this. The table outlives the agent.

mod file;
mod settings;

use std::{
    net::IpAddr,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use agent_common::TRANSLATED_PORTS;
use ipnet::IpNet;

pub use settings::{InvalidPorts, Mode, Ports, Settings};

use crate::{
    chain::chain,
    health::Reporter,
    plug::{
        host,
        netlink::NetlinkError,
        nft::{
            conntrack,
            masquerade_table::{self, Table, Tunnel},
        },
    },
};
use file::{File, FileSettings};

/// The addresses of pods, and of their nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pods {
    pub ranges: Vec<IpNet>,
    /// Pods' addresses left from earlier ranges.
    pub outside: Vec<IpAddr>,
    /// The cluster's nodes.
    pub nodes: Vec<IpAddr>,
    /// The ranges of the other nodes.
    pub elsewhere: Vec<IpNet>,
}

/// Keeps the table.
pub struct Masquerade {
    settings: Settings,
    health: Reporter,
    state: Mutex<State>,
}

struct State {
    file: Option<File>,
    /// What the kernel should have; `None` before it is known.
    wanted: Option<Wanted>,
    failure: Option<Failure>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Wanted {
    /// Masquerading is off.
    Nothing,
    Table(Table),
}

struct Failure {
    why: String,
    retry: Instant,
}

/// Destinations that no router forwards: multicast and reserved addresses.
const NEVER: [&str; 2] = ["224.0.0.0/3", "ff00::/8"];
const LINK_LOCAL_V4: &str = "169.254.0.0/16";
const LINK_LOCAL_V6: &str = "fe80::/10";
/// RFC 4193.
const UNIQUE_LOCAL: &str = "fc00::/7";
/// After the kernel has refused the table.
const RETRY: Duration = Duration::from_secs(10);
/// Networks that a message names.
const NAMED: usize = 6;

// === impl Masquerade ===

impl Masquerade {
    pub fn new(settings: Settings, health: Reporter) -> Self {
        let file = settings.file.clone().map(File::new);
        Self { settings, health, state: Mutex::new(State { file, wanted: None, failure: None }) }
    }

    /// Writes the table if anything has changed that it depends on. `pods`: `None` while the node's ranges
    /// are unknown; an earlier agent's table then stays. A failure is reported and retried by a later call.
    /// Blocks.
    pub fn update(&self, pods: Option<&Pods>) {
        let mut state = self.state();
        if let Some(file) = &mut state.file {
            file.refresh();
        }
        let Some(wanted) = self.wanted(&state, pods) else {
            self.report(&state);
            return;
        };
        let mut was_without = false;
        if state.is_due(&wanted) {
            let is_first = state.wanted.is_none();
            let done = apply(&wanted, is_first);
            if let Ok(true) = done {
                tracing::info!(table = describe(&wanted), "changed the masquerading of pods' packets");
                was_without = is_first || state.failure.is_some();
            }
            state.wanted = Some(wanted.clone());
            state.failure = done.err().map(|error| self.failure(&state, &error));
        }
        self.report(&state);
        drop(state);
        if let (true, Wanted::Table(table)) = (was_without, &wanted) {
            forget_unmasqueraded(table);
        }
    }

    /// Whether [`Self::update`] would change or report anything. Does not block.
    pub fn is_due(&self, pods: Option<&Pods>) -> bool {
        let Ok(state) = self.state.try_lock() else { return true };
        state.file.as_ref().is_some_and(File::has_changed)
            || self.wanted(&state, pods).is_some_and(|wanted| state.is_due(&wanted))
    }

    /// What differs in the kernel from the wanted table; `None` while it is off or unknown, or cannot be
    /// written.
    pub fn difference(&self) -> Option<String> {
        let state = self.state();
        let Some(Wanted::Table(table)) = state.wanted.as_ref().filter(|_| state.failure.is_none()) else {
            return None;
        };
        table.difference().unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read the nftables table inet ferrule");
            None
        })
    }

    /// Writes the wanted table again.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn restore(&self) -> Result<(), NetlinkError> {
        let state = self.state();
        let Some(Wanted::Table(table)) = state.wanted.clone() else { return Ok(()) };
        table.write()?;
        drop(state);
        forget_unmasqueraded(&table);
        Ok(())
    }

    /// `None` while a fact is missing.
    fn wanted(&self, state: &State, pods: Option<&Pods>) -> Option<Wanted> {
        if self.settings.mode == Mode::Off {
            return Some(Wanted::Nothing);
        }
        let none = FileSettings::without_file();
        let file = match &state.file {
            Some(file) => file.good()?,
            None => &none,
        };
        Some(Wanted::Table(table(&self.settings, file, pods?)))
    }

    fn failure(&self, state: &State, error: &NetlinkError) -> Failure {
        let why = chain(error);
        if state.failure.as_ref().is_none_or(|before| before.why != why) {
            tracing::error!(error = why, "pods' packets to the world are not masqueraded; retrying");
        }
        Failure { why, retry: Instant::now() + RETRY }
    }

    fn report(&self, state: &State) {
        let trouble = state.file.as_ref().and_then(File::trouble);
        match (&state.failure, trouble, &state.wanted) {
            (Some(Failure { why, .. }), _, _) => {
                self.health
                    .unhealthy(format!("pods' packets to the world are not masqueraded: {why}; retrying"));
            }
            (None, Some(trouble), _) => self.health.unhealthy(trouble),
            (None, None, Some(wanted)) => self.health.healthy(describe(wanted)),
            (None, None, None) => self.health.starting("waiting for the node's pod CIDRs"),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl State ===

impl State {
    fn is_due(&self, wanted: &Wanted) -> bool {
        self.wanted.as_ref() != Some(wanted)
            || self.failure.as_ref().is_some_and(|failure| Instant::now() >= failure.retry)
    }
}

/// Returns whether anything was changed. `is_first`: the table may be the same as that of an earlier agent.
fn apply(wanted: &Wanted, is_first: bool) -> Result<bool, NetlinkError> {
    match wanted {
        Wanted::Nothing => masquerade_table::remove(),
        Wanted::Table(table) if is_first && matches!(table.difference(), Ok(None)) => Ok(false),
        Wanted::Table(table) => table.write().map(|()| true),
    }
}

/// Makes conntrack forget the flows that have begun without the table: their next packet gets the node's
/// address. A failure costs these flows only.
fn forget_unmasqueraded(table: &Table) {
    let forgotten = host::addresses().map_err(|error| chain(&error)).and_then(|own| {
        conntrack::forget_unanswered(|source, destination| is_masqueraded(table, &own, source, destination))
            .map_err(|error| error.to_string())
    });
    match forgotten {
        Ok(0) => {}
        Ok(flows) => tracing::info!(flows, "conntrack has forgotten flows that began without masquerading"),
        Err(error) => tracing::warn!(
            error,
            "cannot make conntrack forget flows that began without masquerading: they may get no reply until \
             they end"
        ),
    }
}

/// Whether the table translates a flow. What goes to the node's `own` addresses does not pass it.
fn is_masqueraded(table: &Table, own: &[IpAddr], source: IpAddr, destination: IpAddr) -> bool {
    let is_in = |nets: &[IpNet], address: IpAddr| nets.iter().any(|net| net.contains(&address));
    is_in(&table.sources, source) && !is_in(&table.kept, destination) && !own.contains(&destination)
}

fn table(settings: &Settings, file: &FileSettings, pods: &Pods) -> Table {
    let unique_local = net(UNIQUE_LOCAL);
    let is_source = |net: &IpNet| {
        settings.mode == Mode::On
            || net.addr().is_ipv4()
            || unique_local.is_some_and(|local| local.contains(net))
    };
    let local = || pods.ranges.iter().copied().chain(pods.outside.iter().copied().map(IpNet::from));
    let link_local =
        [(LINK_LOCAL_V4, file.masquerades_link_local_v4), (LINK_LOCAL_V6, file.masquerades_link_local_v6)];
    let link_local =
        link_local.into_iter().filter_map(|(text, is_masqueraded)| (!is_masqueraded).then_some(text));
    let constant = NEVER.into_iter().chain(link_local).filter_map(net);
    let nodes = pods.nodes.iter().copied().map(IpNet::from);
    let configured = settings.kept.iter().chain(&file.kept).chain(&pods.elsewhere).copied().chain(nodes);
    let port = settings.tunnel_port.filter(|_| !pods.elsewhere.is_empty());
    let tunnel = port.map(|port| Tunnel { port, nodes: pods.nodes.clone() });
    Table {
        sources: local().filter(is_source).collect(),
        kept: local().chain(configured).chain(constant).collect(),
        elsewhere: pods.elsewhere.clone(),
        ports: settings.ports.edges(),
        translated_ports: translated_ports(settings.tunnel_port),
        tunnel,
    }
}

/// The larger part of [`TRANSLATED_PORTS`] without the tunnel's port: a datagram to that port, inside of the
/// tunnel, would look like a tunnel in the tunnel. The same without other nodes: some may join while the
/// flows live.
fn translated_ports(tunnel: Option<u16>) -> (u16, u16) {
    let (first, last) = TRANSLATED_PORTS;
    match tunnel.filter(|port| (first..=last).contains(port)) {
        Some(port) if port - first > last - port => (first, port - 1),
        Some(port) => (port + 1, last),
        None => (first, last),
    }
}

/// A constant; a test parses all of them.
fn net(text: &str) -> Option<IpNet> {
    text.parse().ok()
}

fn describe(wanted: &Wanted) -> String {
    let Wanted::Table(table) = wanted else { return "off: pods' packets keep their source".to_owned() };
    if table.sources.is_empty() {
        return "no range of this node is masqueraded".to_owned();
    }
    format!("masquerades {}, except to {}", named(&table.sources), named(&table.kept))
}

fn named(nets: &[IpNet]) -> String {
    let shown: Vec<_> = nets.iter().take(NAMED).map(IpNet::to_string).collect();
    let more = match nets.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    shown.join(", ") + &more
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::{Health, State as Reported};

    fn nets(all: &[&str]) -> Vec<IpNet> {
        all.iter().map(|it| it.parse().unwrap()).collect()
    }

    fn settings(mode: Mode) -> Settings {
        Settings { mode, ..Settings::default() }
    }

    fn pods() -> Pods {
        let outside = vec!["10.1.0.9".parse().unwrap(), "2001:db8:1::9".parse().unwrap()];
        Pods {
            ranges: nets(&["10.244.1.0/24", "fd00:1::/64", "2001:db8:2::/64"]),
            outside,
            ..Pods::default()
        }
    }

    #[test]
    fn auto_masquerades_ipv4_and_unique_local_ipv6_and_on_everything() {
        let none = FileSettings::default();
        let auto = table(&settings(Mode::Auto), &none, &pods());
        assert_eq!(auto.sources, nets(&["10.244.1.0/24", "fd00:1::/64", "10.1.0.9/32"]));
        let on = table(&settings(Mode::On), &none, &pods());
        let all = ["10.244.1.0/24", "fd00:1::/64", "2001:db8:2::/64", "10.1.0.9/32", "2001:db8:1::9/128"];
        assert_eq!(on.sources, nets(&all));
        assert_eq!(auto.ports, (32768, 65535));
    }

    #[test]
    fn flows_from_pods_to_the_world_are_masqueraded_and_those_to_the_node_itself_are_not() {
        let table = table(&settings(Mode::Auto), &FileSettings::default(), &pods());
        let own = ["192.0.2.1".parse().unwrap()];
        let is =
            |from: &str, to: &str| is_masqueraded(&table, &own, from.parse().unwrap(), to.parse().unwrap());
        assert!(is("10.244.1.2", "192.0.2.254") && is("10.1.0.9", "198.51.100.7"));
        assert!(is("fd00:1::2", "2001:db8:f::7"));
        let not = [
            ("10.244.1.2", "10.244.1.3"),
            ("10.244.1.2", "192.0.2.1"),
            ("10.244.2.2", "198.51.100.7"),
            ("192.0.2.1", "198.51.100.7"),
            ("2001:db8:2::2", "2001:db8:f::7"),
        ];
        assert!(!not.iter().any(|(from, to)| is(from, to)));
    }

    #[test]
    fn pods_and_multicast_destinations_see_the_pods_address_and_link_local_ones_by_a_file() {
        let mut settings = settings(Mode::Auto);
        settings.kept = nets(&["10.244.0.0/16"]);
        let mut file = FileSettings { kept: nets(&["192.0.2.0/24"]), ..FileSettings::default() };
        let kept = |file: &FileSettings| table(&settings, file, &pods()).kept;
        let pods = ["10.244.1.0/24", "fd00:1::/64", "2001:db8:2::/64", "10.1.0.9/32", "2001:db8:1::9/128"];
        let expected = [
            &pods[..],
            &["10.244.0.0/16", "192.0.2.0/24", "224.0.0.0/3", "ff00::/8", "169.254.0.0/16", "fe80::/10"],
        ];
        assert_eq!(kept(&file), nets(&expected.concat()));
        (file.masquerades_link_local_v4, file.masquerades_link_local_v6) = (true, true);
        assert_eq!(kept(&file).len(), 9);
        let link_local = |file: &FileSettings| {
            nets(&["169.254.0.0/16", "fe80::/10"])
                .iter()
                .map(|it| kept(file).contains(it))
                .collect::<Vec<_>>()
        };
        assert_eq!(link_local(&FileSettings::default()), [true, true]);
        assert_eq!(link_local(&FileSettings::without_file()), [false, true]);
    }

    #[test]
    fn the_clusters_nodes_and_pods_see_the_pods_address_and_other_private_networks_do_not() {
        let nodes = ["192.0.2.2", "2001:db8::2"].map(|it| it.parse().unwrap()).to_vec();
        let pods = Pods { nodes, elsewhere: nets(&["10.244.2.0/24"]), ..pods() };
        let Table { kept, elsewhere, .. } = table(&settings(Mode::Auto), &FileSettings::default(), &pods);
        assert_eq!(elsewhere, nets(&["10.244.2.0/24"]));
        let cluster = nets(&["10.244.2.0/24", "192.0.2.2/32", "2001:db8::2/128"]);
        assert!(cluster.iter().all(|it| kept.contains(it)));
        let private = nets(&["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"]);
        assert!(!private.iter().any(|it| kept.contains(it)));
    }

    #[test]
    fn translated_flows_never_get_the_tunnels_port() {
        let ports =
            [None, Some(4789), Some(8472), Some(1024), Some(30_000), Some(32_767), Some(40_000), Some(1)];
        let expected = [
            (1024, 32_767),
            (4790, 32_767),
            (8473, 32_767),
            (1025, 32_767),
            (1024, 29_999),
            (1024, 32_766),
            (1024, 32_767),
            (1024, 32_767),
        ];
        assert_eq!(ports.map(translated_ports), expected);
    }

    #[test]
    fn without_the_ranges_or_a_valid_file_nothing_is_wanted() {
        let health = Health::default();
        let state = |file| State { file, wanted: None, failure: None };
        let masquerade = Masquerade::new(settings(Mode::Auto), health.component("masquerade", false, ""));
        assert_eq!(masquerade.wanted(&state(None), None), None);
        assert!(matches!(masquerade.wanted(&state(None), Some(&pods())), Some(Wanted::Table(_))));
        let unread = state(Some(File::new("/nowhere".into())));
        assert_eq!(masquerade.wanted(&unread, Some(&pods())), None);
        let off = Masquerade::new(settings(Mode::Off), health.component("masquerade", false, ""));
        assert_eq!(off.wanted(&unread, None), Some(Wanted::Nothing));
    }

    #[test]
    fn the_table_has_the_tunnel_while_there_are_other_nodes_and_a_port() {
        let with_port = Settings { tunnel_port: Some(4789), ..settings(Mode::Auto) };
        let none = FileSettings::default();
        assert_eq!(table(&with_port, &none, &pods()).tunnel, None);
        let nodes = ["192.0.2.1", "192.0.2.2"].map(|it| it.parse().unwrap()).to_vec();
        let pods = Pods { nodes: nodes.clone(), elsewhere: nets(&["10.244.2.0/24"]), ..pods() };
        assert_eq!(table(&with_port, &none, &pods).tunnel, Some(Tunnel { port: 4789, nodes }));
        assert_eq!(table(&settings(Mode::Auto), &none, &pods).tunnel, None);
    }

    #[test]
    fn a_failure_is_reported_before_a_bad_file_and_both_before_the_table() {
        let health = Health::default();
        let it = Masquerade::new(settings(Mode::Auto), health.component("masquerade", false, ""));
        let reported = |state: &State| {
            it.report(state);
            health.components().remove("masquerade").map(|it| (it.state, it.why)).unwrap()
        };
        let wanted = Wanted::Table(table(&settings(Mode::Auto), &FileSettings::default(), &pods()));
        let mut state = State { file: None, wanted: None, failure: None };
        assert_eq!(reported(&state).0, Reported::Starting);
        state.wanted = Some(wanted);
        let (good, why) = reported(&state);
        assert!(
            good == Reported::Healthy && why.contains("10.244.1.0/24") && why.contains("and 3 more"),
            "{why}"
        );
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config"), "{").unwrap();
        let mut file = File::new(dir.path().join("config"));
        file.refresh();
        state.file = Some(file);
        let (bad, why) = reported(&state);
        assert!(bad == Reported::Unhealthy && why.contains("cannot use"), "{why}");
        state.failure = Some(Failure { why: "no module".to_owned(), retry: Instant::now() });
        let (failed, why) = reported(&state);
        assert!(failed == Reported::Unhealthy && why.contains("no module"), "{why}");
    }
}
