//! Which network namespace the pod's end of a pair is in, found by the number that the host has for the
//! namespace.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fs,
    path::{Path, PathBuf},
};

use rtnetlink::packet_route::{
    RouteNetlinkMessage,
    link::{LinkAttribute, LinkMessage},
    nsid::{NsidAttribute, NsidMessage},
};

use super::{
    link,
    netlink::{NetlinkError, Request, Socket},
    netns::Netns,
    stamp::Stamp,
};

/// A network namespace that was found by its number.
#[derive(Debug)]
pub struct FoundNetns {
    pub netns: Netns,
    /// A path that the runtime keeps for the life of the pod. `None` for a namespace found through a process,
    /// which may exit before the pod ends.
    pub path: Option<PathBuf>,
}

/// Where containerd, CRI-O and podman, and Docker keep namespaces.
const DIRECTORIES: [&str; 4] = ["/run/netns", "/var/run/netns", "/run/docker/netns", "/var/run/docker/netns"];

/// Finds namespaces by the host's numbers for them: first among those that runtimes keep, then among those of
/// visible processes. The result lacks those that were not found.
pub fn find(host: &mut Socket, mut wanted: BTreeSet<i32>) -> BTreeMap<i32, FoundNetns> {
    let mut found = BTreeMap::new();
    let mut tried = HashSet::new();
    let kept = DIRECTORIES.iter().flat_map(|directory| entries(Path::new(directory)));
    let of_processes =
        entries(Path::new("/proc")).filter(|path| is_process(path)).map(|it| it.join("ns/net"));
    for (path, is_kept) in kept.map(|path| (path, true)).chain(of_processes.map(|path| (path, false))) {
        if wanted.is_empty() {
            break;
        }
        // The link text names the namespace, and most processes share one.
        if !is_kept && fs::read_link(&path).is_ok_and(|text| !tried.insert(text)) {
            continue;
        }
        let Ok(netns) = Netns::open(&path) else { continue };
        let Ok(Some(nsid)) = number(host, &netns) else { continue };
        if wanted.remove(&nsid) {
            found.insert(nsid, FoundNetns { netns, path: is_kept.then_some(path) });
        }
    }
    found
}

/// Whether a host link carries a stamp and has its peer, the pod's end, in a namespace.
///
/// # Errors
/// If the kernel refuses a request.
pub fn has_peer_of(host: &mut Socket, ifindex: u32, netns: &Netns) -> Result<bool, NetlinkError> {
    let Some(number) = number(host, netns)? else { return Ok(false) };
    let link = link::by_index(host, ifindex)?;
    let has_stamp = |link: &LinkMessage| link::alias(link).and_then(Stamp::parse).is_some();
    Ok(link.is_some_and(|it| has_stamp(&it) && it.attributes.contains(&LinkAttribute::LinkNetNsId(number))))
}

/// The host's number for a namespace; `None` if no link of the host has a peer there.
fn number(host: &mut Socket, netns: &Netns) -> Result<Option<i32>, NetlinkError> {
    let mut message = NsidMessage::default();
    message.attributes.push(NsidAttribute::Fd(netns.raw_fd().cast_unsigned()));
    let request = Request::change("read the number of a namespace", RouteNetlinkMessage::GetNsId(message));
    let answers = host.batch(vec![request])?;
    let number = |answer| {
        let RouteNetlinkMessage::NewNsId(message) = answer else { return None };
        message.attributes.iter().find_map(|it| if let NsidAttribute::Id(id) = it { Some(*id) } else { None })
    };
    Ok(answers.into_iter().find_map(number).filter(|it| *it >= 0))
}

fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path())
}

fn is_process(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().iter().all(u8::is_ascii_digit))
}
