//! The dataplane's tc filters on a host interface.
//!
//! They are clsact filters rather than tcx links: to attach one of those waits for an RCU grace period while holding
//! the lock over all network configuration. A filter belongs to its interface and dies with it, outlives the
//! agent without a pin, and is replaced atomically.

use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;
use rtnetlink::packet_route::{
    RouteNetlinkMessage,
    tc::{TcAttribute, TcBpfFlags, TcFilterBpf, TcFilterBpfOption, TcHandle, TcMessage, TcOption},
};

use super::netlink::{NetlinkError, Request, Socket};

/// The loaded programs, as filters.
#[derive(Debug, Clone, Copy)]
pub struct Filters<'a> {
    /// For what the pod sends.
    pub from_pod: BorrowedFd<'a>,
    /// For what the host sends to the pod.
    pub to_pod: BorrowedFd<'a>,
}

/// A hook of clsact, named by the direction of the host's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hook {
    /// What comes in from the pod.
    FromPod,
    /// What goes out to the pod.
    ToPod,
}

/// A filter of anybody's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    pub hook: Hook,
    /// Whether it is where ours are.
    pub is_ours: bool,
    pub priority: u16,
    /// Such as `bpf` or `flower`.
    pub kind: String,
    /// Of a BPF program.
    pub name: Option<String>,
    pub program: Option<u32>,
}

/// What is on an interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listed {
    pub filters: Vec<Attached>,
    /// The kind of somebody else's qdisc that is in the place of ours. Its one hook is the ingress, and no filter on it is ours.
    pub stranger: Option<String>,
}

/// Of the qdisc that has both hooks.
const KIND: &str = "clsact";
/// Ours go first among clsact filters. What others attach as XDP or tcx runs before, and is theirs to answer for.
const PRIORITY: u16 = 1;
/// With the priority, it names a filter on a hook.
const HANDLE: TcHandle = TcHandle { major: 0, minor: 1 };
/// `ETH_P_ALL` in `linux/if_ether.h`.
const ALL_PROTOCOLS: u16 = 3;

// === impl Hook ===

impl Hook {
    /// Both, with the name of the program on each.
    pub const ALL: [(Self, &'static str); 2] = [(Self::FromPod, "from_pod"), (Self::ToPod, "to_pod")];

    fn parent(self) -> TcHandle {
        let minor = match self {
            Self::FromPod => TcHandle::MIN_INGRESS,
            Self::ToPod => TcHandle::MIN_EGRESS,
        };
        TcHandle { major: TcHandle::CLSACT.major, minor }
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
        Self { hook, is_ours: is_ours(filter) && chain == 0, priority, kind, name, program }
    }
}

/// The requests that put both filters on an interface that has none yet.
pub fn attach(ifindex: u32, filters: Filters<'_>) -> [Request; 3] {
    let [ingress, egress] = replace(ifindex, filters);
    [qdisc(ifindex), ingress, egress]
}

/// The request that makes room for filters on an interface.
pub fn qdisc(ifindex: u32) -> Request {
    Request::create("create the clsact qdisc", RouteNetlinkMessage::NewQueueDiscipline(clsact(ifindex)))
}

/// The requests that put both filters in the place of those that an earlier agent attached.
pub fn replace(ifindex: u32, filters: Filters<'_>) -> [Request; 2] {
    let programs = [filters.from_pod, filters.to_pod];
    let [(ingress, from_pod), (egress, to_pod)] = Hook::ALL;
    let [first, second] = programs;
    [filter(ifindex, ingress, from_pod, first), filter(ifindex, egress, to_pod, second)]
}

/// All filters on both hooks of an interface.
///
/// # Errors
/// If the kernel refuses to tell.
pub fn list(socket: &mut Socket, ifindex: u32) -> Result<Listed, NetlinkError> {
    let [(ingress, _), (egress, _)] = Hook::ALL;
    let (mut filters, more) = (on(socket, ifindex, ingress)?, on(socket, ifindex, egress)?);
    // A qdisc with one hook has it in both places. Where they differ, as they do when ours are there, it need not be asked for.
    let are_same = more.iter().map(|it| Attached { hook: ingress, ..it.clone() }).eq(filters.iter().cloned());
    let stranger = if are_same { stranger(socket, ifindex)? } else { None };
    if stranger.is_some() {
        filters.iter_mut().for_each(|it| it.is_ours = false);
    } else {
        filters.extend(more);
    }
    Ok(Listed { filters, stranger })
}

/// Puts these programs in the place of an earlier agent's, or where there are none; no packet passes between the two unchecked.
///
/// # Errors
/// If the kernel refuses, the interface is gone (`ENODEV`), or somebody else's qdisc has the place of ours.
pub fn reattach(
    host: &mut Socket,
    ifindex: u32,
    ifname: &str,
    filters: Filters<'_>,
) -> Result<(), NetlinkError> {
    match host.batch(vec![qdisc(ifindex)]) {
        Err(error) if error.is(Errno::EEXIST) => {
            // An ingress qdisc would take both, the second in the place of the first, for what the pod sends.
            if let Some(kind) = stranger(host, ifindex)? {
                return Err(error.with_hint(in_our_place(&kind, ifname)));
            }
        }
        result => drop(result?),
    }
    host.batch(replace(ifindex, filters).into()).map(drop)
}

/// What to do about somebody else's qdisc.
pub fn in_our_place(kind: &str, ifname: &str) -> String {
    format!(
        "the {kind} qdisc at ffff: of {ifname} is somebody else's; delete it: tc qdisc del dev {ifname} {kind}"
    )
}

/// The kind of the qdisc that is where ours should be, if there is one that is not ours.
fn stranger(socket: &mut Socket, ifindex: u32) -> Result<Option<String>, NetlinkError> {
    let mut message = TcMessage::with_index(index(ifindex));
    message.header.parent = TcHandle::CLSACT;
    let get =
        Request::change("read the qdisc of the filters", RouteNetlinkMessage::GetQueueDiscipline(message));
    let answers = match socket.batch(vec![get.echoed()]) {
        // There is none.
        Err(error) if error.is(Errno::ENOENT) => return Ok(None),
        answers => answers?,
    };
    let kind = answers.into_iter().find_map(|answer| match answer {
        RouteNetlinkMessage::NewQueueDiscipline(qdisc) => kind(&qdisc).map(str::to_owned),
        _ => None,
    });
    Ok(kind.filter(|kind| kind != KIND))
}

fn on(socket: &mut Socket, ifindex: u32, hook: Hook) -> Result<Vec<Attached>, NetlinkError> {
    let mut message = TcMessage::with_index(index(ifindex));
    message.header.parent = hook.parent();
    let answers = socket.dump("read the filters", RouteNetlinkMessage::GetTrafficFilter(message))?;
    let filter = |answer| match answer {
        // The kernel tells of each priority also by itself, without a handle.
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
    let mut message = TcMessage::with_index(index(ifindex));
    message.header.parent = hook.parent();
    message.header.handle = HANDLE;
    message.header.info = u32::from(PRIORITY) << 16 | u32::from(ALL_PROTOCOLS.to_be());
    message.attributes.push(TcAttribute::Kind(TcFilterBpf::KIND.to_owned()));
    message.attributes.push(TcAttribute::Options(vec![
        TcOption::Bpf(TcFilterBpfOption::ProgFd(program.as_raw_fd().cast_unsigned())),
        TcOption::Bpf(TcFilterBpfOption::ProgName(name.to_owned())),
        TcOption::Bpf(TcFilterBpfOption::Flags(TcBpfFlags::DirectAction)),
    ]));
    Request::replace(format!("attach {name}"), RouteNetlinkMessage::NewTrafficFilter(message))
}

fn is_ours(filter: &TcMessage) -> bool {
    filter.header.handle == HANDLE && filter.header.info >> 16 == u32::from(PRIORITY)
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
