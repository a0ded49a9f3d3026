//! The dataplane's tc filters on a host interface.
//!
//! The agent uses clsact filters instead of tcx links: attaching a tcx link waits for an RCU grace period
//! under the kernel's global network lock (RTNL). A filter belongs to its interface, outlives the agent
//! without a pin, and the kernel replaces it atomically.

use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;
use rtnetlink::packet_route::{
    RouteNetlinkMessage,
    tc::{TcAttribute, TcBpfFlags, TcFilterBpf, TcFilterBpfOption, TcHandle, TcMessage, TcOption},
};

use super::netlink::{NetlinkError, Request, Socket};

/// The loaded programs, by hook.
#[derive(Debug, Clone, Copy)]
pub struct Filters<'a> {
    pub from_pod: BorrowedFd<'a>,
    pub to_pod: BorrowedFd<'a>,
}

/// The programs of a link that is no pod's: the tunnel device, or an uplink.
#[derive(Debug, Clone, Copy)]
pub struct LinkFilters<'a> {
    /// Packets from outside.
    pub ingress: LinkFilter<'a>,
    /// Packets that leave the node.
    pub egress: LinkFilter<'a>,
}

#[derive(Debug, Clone, Copy)]
pub struct LinkFilter<'a> {
    /// The name of program and filter.
    pub name: &'static str,
    pub program: BorrowedFd<'a>,
    /// The kernel's ID of the program.
    pub id: u32,
}

/// A hook of clsact on the host's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hook {
    /// clsact ingress: packets that the pod sends.
    FromPod,
    /// clsact egress: packets to the pod.
    ToPod,
}

/// A filter of any owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    pub hook: Hook,
    /// Whether the filter has the priority and handle of the agent's filters, and on a link that is no pod's
    /// their name.
    pub is_ours: bool,
    pub priority: u16,
    /// Such as `bpf` or `flower`.
    pub kind: String,
    /// Name of a BPF filter.
    pub name: Option<String>,
    /// ID of a BPF filter's program.
    pub program: Option<u32>,
}

/// All filters of an interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listed {
    pub filters: Vec<Attached>,
    /// Kind of a foreign qdisc in the place of clsact. Its only hook is ingress, and no filter there is the
    /// agent's.
    pub foreign_qdisc: Option<String>,
}

const KIND: &str = "clsact";
/// First among clsact filters. Foreign XDP and tcx programs still run before.
const PRIORITY: u16 = 1;
/// The filters of links that are no pods'.
pub const FROM_TUNNEL: &str = "from_tunnel";
pub const FROM_UPLINK: &str = "from_uplink";
pub const TO_TUNNEL: &str = "to_tunnel";
pub const TO_LINK: &str = "to_link";
/// Of these filters. Others have filters on such links, and use the first priorities.
const LINK_PRIORITY: u16 = 70;
/// Identifies a filter on a hook, together with the priority.
const HANDLE: TcHandle = TcHandle { major: 0, minor: 1 };
/// `ETH_P_ALL` in `linux/if_ether.h`.
const ALL_PROTOCOLS: u16 = 3;

// === impl Hook ===

impl Hook {
    /// Both hooks with the names of their programs.
    pub const ALL: [(Self, &'static str); 2] = [(Self::FromPod, "from_pod"), (Self::ToPod, "to_pod")];

    fn parent(self) -> TcHandle {
        let minor = match self {
            Self::FromPod => TcHandle::MIN_INGRESS,
            Self::ToPod => TcHandle::MIN_EGRESS,
        };
        TcHandle { major: TcHandle::CLSACT.major, minor }
    }
}

// === impl LinkFilters ===

impl<'a> LinkFilters<'a> {
    fn by_hook(self) -> [(Hook, LinkFilter<'a>); 2] {
        [(Hook::FromPod, self.ingress), (Hook::ToPod, self.egress)]
    }
}

// === impl Attached ===

impl Attached {
    fn of(hook: Hook, filter: &TcMessage) -> Self {
        let (mut kind, mut name, mut chain) = (String::new(), None, 0);
        for attribute in &filter.attributes {
            match attribute {
                TcAttribute::Kind(it) => kind.clone_from(it),
                TcAttribute::Chain(it) => chain = *it,
                TcAttribute::Options(options) => name = options.iter().find_map(program_name).or(name),
                _ => {}
            }
        }
        let priority = u16::try_from(filter.header.info >> 16).unwrap_or_default();
        let program = program_id(filter);
        let has_our_place = match priority {
            PRIORITY => true,
            LINK_PRIORITY => {
                matches!(name.as_deref(), Some(FROM_TUNNEL | FROM_UPLINK | TO_TUNNEL | TO_LINK))
            }
            _ => false,
        };
        let is_ours = has_our_place && filter.header.handle == HANDLE && chain == 0;
        Self { hook, is_ours, priority, kind, name, program }
    }

    /// Whether the filter, on a link that is no pod's, runs before the agent's.
    pub fn is_ahead_on_link(&self) -> bool {
        self.priority <= LINK_PRIORITY && !self.is_ours_on_link()
    }

    /// Whether the filter, on a link that is no pod's, is the agent's.
    fn is_ours_on_link(&self) -> bool {
        self.is_ours && self.priority == LINK_PRIORITY
    }

    /// For instance `a bpf filter NAME on egress, priority 9, program 44`.
    pub fn describe(&self, place: &str) -> String {
        let name = self.name.as_deref().map(|name| format!(" {name}")).unwrap_or_default();
        let program = self.program.map(|id| format!(", program {id}")).unwrap_or_default();
        format!("a {} filter{name} {place}, priority {}{program}", self.kind, self.priority)
    }
}

/// The requests that attach both filters to an interface without filters.
pub fn attach(ifindex: u32, filters: Filters<'_>) -> [Request; 3] {
    let [ingress, egress] = replace(ifindex, filters);
    [qdisc(ifindex), ingress, egress]
}

/// The request that creates the clsact qdisc, which holds both filters.
fn qdisc(ifindex: u32) -> Request {
    Request::create("create the clsact qdisc", RouteNetlinkMessage::NewQueueDiscipline(clsact(ifindex)))
}

/// The requests that replace an earlier agent's filters, or attach both where there are none.
fn replace(ifindex: u32, filters: Filters<'_>) -> [Request; 2] {
    let programs = [filters.from_pod, filters.to_pod];
    let [(ingress, from_pod), (egress, to_pod)] = Hook::ALL;
    let [first, second] = programs;
    [filter(ifindex, ingress, from_pod, first), filter(ifindex, egress, to_pod, second)]
}

/// Attaches the filters that a link lacks, and replaces those of an earlier agent atomically. Filters of
/// others stay. Returns the names of what was attached.
///
/// # Errors
/// If the kernel refuses, or the link does not exist (`ENODEV`).
pub fn keep_on_link(
    host: &mut Socket,
    ifindex: u32,
    filters: LinkFilters<'_>,
) -> Result<Vec<&'static str>, NetlinkError> {
    let missing = missing_on_link(host, ifindex, filters)?;
    if missing.is_empty() {
        return Ok(missing);
    }
    match host.batch(vec![qdisc(ifindex)]) {
        // An ingress qdisc would accept both filters on its only hook, so that the second replaces the first.
        Err(error) if error.is(Errno::EEXIST) => {
            if let Some(kind) = foreign_qdisc(host, ifindex)? {
                return Err(error.with_hint(foreign_qdisc_remedy(&kind, &format!("interface {ifindex}"))));
            }
        }
        result => drop(result?),
    }
    for (hook, it) in filters.by_hook() {
        if missing.contains(&it.name) {
            host.batch(vec![filter_at(LINK_PRIORITY, ifindex, hook, it.name, it.program)])?;
        }
    }
    Ok(missing)
}

/// Whether a link has the ingress filter, with this program or an earlier agent's.
///
/// # Errors
/// If the kernel refuses the dump, or the link does not exist (`ENODEV`).
pub fn is_on_link(host: &mut Socket, ifindex: u32, filters: LinkFilters<'_>) -> Result<bool, NetlinkError> {
    let name = Some(filters.ingress.name);
    Ok(on(host, ifindex, Hook::FromPod)?.iter().any(|found| found.is_ours && found.name.as_deref() == name))
}

/// The names of the filters that a link lacks, or that run other programs.
///
/// # Errors
/// If the kernel refuses a dump, or the link does not exist (`ENODEV`).
pub fn missing_on_link(
    host: &mut Socket,
    ifindex: u32,
    filters: LinkFilters<'_>,
) -> Result<Vec<&'static str>, NetlinkError> {
    let mut missing = Vec::new();
    for (hook, it) in filters.by_hook() {
        let runs = |found: &Attached| found.is_ours && found.program == Some(it.id);
        if !on(host, ifindex, hook)?.iter().any(runs) {
            missing.push(it.name);
        }
    }
    Ok(missing)
}

/// Removes the agent's filters from a link that is no pod's, and their qdisc if it holds no others. Returns
/// whether there were any.
///
/// # Errors
/// If the kernel refuses, or the link does not exist (`ENODEV`).
pub fn remove_from_link(host: &mut Socket, ifindex: u32) -> Result<bool, NetlinkError> {
    let mut found = Vec::new();
    for (hook, _) in Hook::ALL {
        found.extend(on(host, ifindex, hook)?);
    }
    let (ours, others): (Vec<_>, Vec<_>) = found.into_iter().partition(Attached::is_ours_on_link);
    if !ours.is_empty() && others.is_empty() {
        // With its filters: without them, no later attempt would know whose the qdisc is.
        let message = RouteNetlinkMessage::DelQueueDiscipline(clsact(ifindex));
        host.batch(vec![Request::change("delete the clsact qdisc", message)])?;
        return Ok(true);
    }
    for Attached { hook, name, .. } in &ours {
        let mut message = TcMessage::with_index(index(ifindex));
        place(&mut message, *hook, LINK_PRIORITY);
        let what = format!("remove {}", name.as_deref().unwrap_or_default());
        host.batch(vec![Request::change(what, RouteNetlinkMessage::DelTrafficFilter(message))])?;
    }
    Ok(!ours.is_empty())
}

/// Lists all filters on both hooks of an interface.
///
/// # Errors
/// If the kernel refuses a dump.
pub fn list(socket: &mut Socket, ifindex: u32) -> Result<Listed, NetlinkError> {
    let [(ingress, _), (egress, _)] = Hook::ALL;
    let (mut filters, more) = (on(socket, ifindex, ingress)?, on(socket, ifindex, egress)?);
    // A qdisc with one hook reports the same filters for both. Lists that differ, as the agent's filters do,
    // prove clsact without another request.
    let are_same = more.iter().map(|it| Attached { hook: ingress, ..it.clone() }).eq(filters.iter().cloned());
    let foreign_qdisc = if are_same { foreign_qdisc(socket, ifindex)? } else { None };
    if foreign_qdisc.is_some() {
        filters.iter_mut().for_each(|it| it.is_ours = false);
    } else {
        filters.extend(more);
    }
    Ok(Listed { filters, foreign_qdisc })
}

/// Attaches these programs, and replaces those of an earlier agent atomically: no packet passes unchecked.
///
/// # Errors
/// If the kernel refuses, the interface does not exist (`ENODEV`), or a foreign qdisc occupies the place of
/// clsact.
pub fn reattach(
    host: &mut Socket,
    ifindex: u32,
    ifname: &str,
    filters: Filters<'_>,
) -> Result<(), NetlinkError> {
    let found = qdisc_kind(host, ifindex)?;
    if found.as_deref() != Some(KIND) {
        // An ingress qdisc would accept both filters on its only hook, so that the second replaces the first.
        let hint = |error: NetlinkError| match &found {
            Some(kind) if error.is(Errno::EEXIST) => error.with_hint(foreign_qdisc_remedy(kind, ifname)),
            _ => error,
        };
        host.batch(vec![qdisc(ifindex)]).map_err(hint)?;
    }
    host.batch(replace(ifindex, filters).into()).map(drop)
}

/// The operator's remedy for a foreign qdisc.
pub fn foreign_qdisc_remedy(kind: &str, ifname: &str) -> String {
    format!("a foreign {kind} qdisc occupies ffff: of {ifname}; delete it: tc qdisc del dev {ifname} {kind}")
}

/// The kind of the qdisc in the place of clsact, if it is another kind.
fn foreign_qdisc(socket: &mut Socket, ifindex: u32) -> Result<Option<String>, NetlinkError> {
    Ok(qdisc_kind(socket, ifindex)?.filter(|kind| kind != KIND))
}

/// The kind of the qdisc in the place of clsact.
fn qdisc_kind(socket: &mut Socket, ifindex: u32) -> Result<Option<String>, NetlinkError> {
    let mut message = TcMessage::with_index(index(ifindex));
    message.header.parent = TcHandle::CLSACT;
    let get =
        Request::change("read the qdisc of the filters", RouteNetlinkMessage::GetQueueDiscipline(message));
    let answers = match socket.batch(vec![get.echoed()]) {
        // No qdisc at all.
        Err(error) if error.is(Errno::ENOENT) => return Ok(None),
        answers => answers?,
    };
    Ok(answers.into_iter().find_map(|answer| match answer {
        RouteNetlinkMessage::NewQueueDiscipline(qdisc) => kind(&qdisc).map(str::to_owned),
        _ => None,
    }))
}

fn on(socket: &mut Socket, ifindex: u32, hook: Hook) -> Result<Vec<Attached>, NetlinkError> {
    let mut message = TcMessage::with_index(index(ifindex));
    message.header.parent = hook.parent();
    let answers = socket.dump("read the filters", RouteNetlinkMessage::GetTrafficFilter(message))?;
    let filter = |answer| match answer {
        // The kernel also lists each priority by itself, without a handle.
        RouteNetlinkMessage::NewTrafficFilter(filter) if filter.header.handle != TcHandle::default() => {
            Some(Attached::of(hook, &filter))
        }
        _ => None,
    };
    Ok(answers.into_iter().filter_map(filter).collect())
}

fn clsact(ifindex: u32) -> TcMessage {
    let mut message = TcMessage::with_index(index(ifindex));
    message.header.parent = TcHandle::CLSACT;
    message.header.handle = TcHandle { major: TcHandle::CLSACT.major, minor: 0 };
    message.attributes.push(TcAttribute::Kind(KIND.to_owned()));
    message
}

fn filter(ifindex: u32, hook: Hook, name: &str, program: BorrowedFd<'_>) -> Request {
    filter_at(PRIORITY, ifindex, hook, name, program)
}

fn place(message: &mut TcMessage, hook: Hook, priority: u16) {
    message.header.parent = hook.parent();
    message.header.handle = HANDLE;
    message.header.info = u32::from(priority) << 16 | u32::from(ALL_PROTOCOLS.to_be());
}

fn filter_at(priority: u16, ifindex: u32, hook: Hook, name: &str, program: BorrowedFd<'_>) -> Request {
    let mut message = TcMessage::with_index(index(ifindex));
    place(&mut message, hook, priority);
    message.attributes.push(TcAttribute::Kind(TcFilterBpf::KIND.to_owned()));
    message.attributes.push(TcAttribute::Options(vec![
        TcOption::Bpf(TcFilterBpfOption::ProgFd(program.as_raw_fd().cast_unsigned())),
        TcOption::Bpf(TcFilterBpfOption::ProgName(name.to_owned())),
        TcOption::Bpf(TcFilterBpfOption::Flags(TcBpfFlags::DirectAction)),
    ]));
    Request::replace(format!("attach {name}"), RouteNetlinkMessage::NewTrafficFilter(message))
}

fn kind(message: &TcMessage) -> Option<&str> {
    message.attributes.iter().find_map(|attribute| match attribute {
        TcAttribute::Kind(kind) => Some(kind.as_str()),
        _ => None,
    })
}

fn program_id(filter: &TcMessage) -> Option<u32> {
    let options = filter.attributes.iter().find_map(|attribute| match attribute {
        TcAttribute::Options(options) => Some(options),
        _ => None,
    })?;
    options.iter().find_map(|option| match option {
        TcOption::Bpf(TcFilterBpfOption::ProgId(id)) => Some(*id),
        _ => None,
    })
}

fn program_name(option: &TcOption) -> Option<String> {
    if let TcOption::Bpf(TcFilterBpfOption::ProgName(name)) = option { Some(name.clone()) } else { None }
}

fn index(ifindex: u32) -> i32 {
    ifindex.cast_signed()
}
