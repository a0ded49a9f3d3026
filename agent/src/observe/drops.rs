//! Dropped packets by reason, for `ferrulectl`.

use agent_common::{DropReason, Drops};
use ferrule_proto::agent::Drop;

pub(super) fn show(drops: &Drops) -> Vec<Drop> {
    let show = |reason: &DropReason| Drop { reason: reason.name().to_owned(), packets: drops.get(*reason) };
    DropReason::ALL.iter().map(show).filter(|drop| drop.packets > 0).collect()
}
