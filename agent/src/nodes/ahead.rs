//! Programs of others that run before the agent's on the tunnel device and the uplinks. What they accept,
//! drop or redirect, the agent's filters do not see.

use std::collections::BTreeSet;

use nix::errno::Errno;

use crate::{
    dataplane::Dataplane,
    plug::{
        filter::{self, Hook},
        netlink::{NetlinkError, Socket},
    },
};

/// A tcx program or a filter that runs before the agent's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ahead {
    pub ifindex: u32,
    pub hook: Hook,
    /// For instance `a tcx program 44 at the hook egress`.
    pub what: String,
}

/// Those of one link that are listed: others may have thousands of filters.
const MOST: usize = 16;

/// Those on these links. A link that is gone has none.
///
/// # Errors
/// If the kernel refuses a dump.
pub(super) fn ahead(
    host: &mut Socket,
    dataplane: &Dataplane,
    links: &BTreeSet<u32>,
) -> Result<Vec<Ahead>, NetlinkError> {
    let mut all = Vec::new();
    for &ifindex in links {
        let filters = match filter::list(host, ifindex) {
            Err(error) if error.is(Errno::ENODEV) => continue,
            listed => listed?.filters,
        };
        let tcx = Hook::ALL.into_iter().zip(dataplane.tcx(ifindex)).flat_map(|((hook, _), programs)| {
            programs.into_iter().map(move |id| (hook, format!("a tcx program {id} at {}", place(hook))))
        });
        let filters = filters.iter().filter(|it| it.is_ahead_on_link());
        let filters = filters.map(|it| (it.hook, it.describe(&format!("at {}", place(it.hook)))));
        // A `flower` or `u32` filter may have many rules of one priority.
        let mut found: Vec<_> =
            tcx.chain(filters).map(|(hook, what)| Ahead { ifindex, hook, what }).collect();
        found.dedup();
        all.extend(found.into_iter().take(MOST));
    }
    Ok(all)
}

fn place(hook: Hook) -> &'static str {
    match hook {
        Hook::FromPod => "the hook ingress",
        Hook::ToPod => "the hook egress",
    }
}
