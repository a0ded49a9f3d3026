//! The rates of a pod's interface: a token bucket (`tbf` in the kernel) as the root qdisc of an end of the
//! pair delays what leaves there.
//!
//! The host's end limits what the pod receives, the pod's end what the pod sends. A pod without NET_ADMIN
//! cannot change its end. Both are attached before the interface is up: later, the kernel would wait for an
//! RCU grace period.

use rtnetlink::{
    packet_core::{DefaultNla, Nla as _},
    packet_route::{
        RouteNetlinkMessage,
        tc::{TcAttribute, TcHandle, TcMessage, TcOption},
    },
};

use super::{
    message::find,
    netlink::{NetlinkError, Request, Socket},
};
use crate::registry::Rate;

const KIND: &str = "tbf";
/// `TCA_TBF_…` in `linux/pkt_sched.h`.
const PARAMETERS: u16 = 1;
const RATE64: u16 = 4;
const BURST: u16 = 6;
/// `TC_LINKLAYER_ETHERNET`.
const ETHERNET: u8 = 1;
/// Bytes of `struct tc_tbf_qopt`, and the offset of the first rate's number.
const RATE_OFFSET: usize = 8;

/// The request that limits what leaves by an interface.
pub(super) fn limit(ifindex: u32, rate: Rate) -> Request {
    let (rate, burst, queue) = (rate.bytes(), rate.burst_bytes(), rate.queue_bytes());
    let small = u32::try_from(rate).unwrap_or(u32::MAX);
    // `struct tc_ratespec` twice, then limit, buffer and mtu of `struct tc_tbf_qopt`.
    let mut parameters = vec![0, ETHERNET, 0, 0, 0, 0, 0, 0];
    parameters.extend(small.to_ne_bytes());
    parameters.extend([0; 12]);
    parameters.extend(queue.to_ne_bytes());
    parameters.extend([0; 8]);
    let mut options = vec![TcOption::Other(DefaultNla::new(PARAMETERS, parameters))];
    options.push(TcOption::Other(DefaultNla::new(BURST, burst.to_ne_bytes().to_vec())));
    if rate > u64::from(u32::MAX) {
        options.push(TcOption::Other(DefaultNla::new(RATE64, rate.to_ne_bytes().to_vec())));
    }
    let mut message = root(ifindex);
    message.attributes.push(TcAttribute::Kind(KIND.to_owned()));
    message.attributes.push(TcAttribute::Options(options));
    Request::replace("limit the rate of an interface", RouteNetlinkMessage::NewQueueDiscipline(message))
}

/// The rate at which packets leave by an interface, in bytes per second; `None` without a limit.
///
/// # Errors
/// If the kernel refuses, or the interface does not exist (`ENODEV`).
pub fn read(socket: &mut Socket, ifindex: u32) -> Result<Option<u64>, NetlinkError> {
    let get = Request::change("read the root qdisc", RouteNetlinkMessage::GetQueueDiscipline(root(ifindex)));
    let answers = match socket.batch(vec![get.echoed()]) {
        // No qdisc, or one that the kernel does not show.
        Err(error) if error.is(nix::errno::Errno::ENOENT) => return Ok(None),
        answers => answers?,
    };
    let rate_of = |answer| match answer {
        RouteNetlinkMessage::NewQueueDiscipline(qdisc) => rate(&qdisc),
        _ => None,
    };
    Ok(answers.into_iter().find_map(rate_of))
}

fn rate(qdisc: &TcMessage) -> Option<u64> {
    let is_ours = |it: &TcAttribute| matches!(it, TcAttribute::Kind(kind) if kind == KIND);
    if !qdisc.attributes.iter().any(is_ours) {
        return None;
    }
    let options = qdisc.attributes.iter().find_map(|it| match it {
        TcAttribute::Options(options) => Some(options),
        _ => None,
    })?;
    // rtnetlink does not decode the options of this kind: one attribute has all of them.
    let mut nested = Vec::new();
    if let Some(TcOption::Other(all)) = options.first() {
        nested.resize(all.value_len(), 0);
        all.emit_value(&mut nested);
    }
    if let Some(large) = find(&nested, &[RATE64]) {
        return Some(u64::from_ne_bytes(large.try_into().ok()?));
    }
    let parameters = find(&nested, &[PARAMETERS])?;
    let small = parameters.get(RATE_OFFSET..)?.first_chunk::<4>()?;
    Some(u32::from_ne_bytes(*small).into())
}

fn root(ifindex: u32) -> TcMessage {
    let mut message = TcMessage::with_index(ifindex.cast_signed());
    message.header.parent = TcHandle::ROOT;
    message
}
