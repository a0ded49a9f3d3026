//! How the rows in the kernel judge a packet, beside what the policies say.

use std::net::IpAddr;

use agent_common::policy::Peer;
use ferrule_policy::{
    Compiler, Direction, Origin, Packet, Reason, Recorded, RulesetId, Trace, TracedEnd, Verdict, lookup,
    shown,
};
use ferrule_proto::agent::{PolicyVerdict, RowsVerdict, TracePoliciesResponse};

use crate::nodes::Nodes;

/// What the rows say at one end.
#[derive(Debug)]
pub(super) enum Side {
    /// The end is no pod with a network of its own, or both ends are the same pod.
    NotJudged,
    /// With the reason.
    NoAnswer(String),
    Judged {
        verdict: Verdict,
        /// Protocol and destination port.
        traffic: (u8, u16),
        ruleset: Option<RulesetId>,
        is_audited: bool,
    },
}

/// The verdicts of the sender's and the receiver's rows.
pub(super) fn sides(
    trace: &Trace,
    traffic: (u8, u16),
    nodes: &Nodes,
    judging: impl Fn(&Packet) -> Result<Recorded, String>,
) -> [Side; 2] {
    [(Direction::Egress, &trace.from, &trace.to), (Direction::Ingress, &trace.to, &trace.from)]
        .map(|(direction, own, peer)| side(direction, (own, peer), traffic, nodes, &judging))
}

/// Adds the verdicts of rows to those of policies.
pub(super) fn show(sides: &[Side; 2], compiler: &Compiler, shown: &mut TracePoliciesResponse) {
    let [egress, ingress] = sides;
    let mut notes = Vec::new();
    for (side, direction, policies) in
        [(egress, Direction::Egress, &mut shown.egress), (ingress, Direction::Ingress, &mut shown.ingress)]
    {
        let policies = policies.get_or_insert_default();
        match side {
            Side::NotJudged => {}
            Side::NoAnswer(why) => policies.no_rows_because = why.clone(),
            Side::Judged { verdict, traffic, ruleset, is_audited } => {
                let because = because(compiler, (verdict, *ruleset), direction, *traffic);
                let rows = RowsVerdict { allowed: verdict.is_allowed, because, audited: *is_audited };
                let differs = rows.allowed != policies.allowed;
                // Policies cannot know which addresses are in ranges of pods.
                if differs && verdict.reason == Reason::PeerUnknown {
                    notes.push(format!("{}: the rows deny: {}", direction.name(), rows.because));
                    *policies = PolicyVerdict { allowed: false, ..policies.clone() };
                    shown.allowed = false;
                } else {
                    shown.disagree |= differs;
                }
                policies.rows = Some(rows);
            }
        }
    }
    shown.notes.append(&mut notes);
}

fn side(
    direction: Direction,
    (own, peer): (&TracedEnd, &TracedEnd),
    (protocol, port): (u8, u16),
    nodes: &Nodes,
    judging: impl Fn(&Packet) -> Result<Recorded, String>,
) -> Side {
    let Some((namespace, name)) = own.pod.as_ref().filter(|_| !own.is_ignored) else {
        return Side::NotJudged;
    };
    // No such packet leaves the pod, whichever of its addresses the ends have.
    if own.pod == peer.pod {
        return Side::NotJudged;
    }
    let Some(endpoint) = own.endpoint else {
        return Side::NoAnswer(format!("{namespace}/{name} is not on this node"));
    };
    let Some((own_address, peer_address)) = own.address.zip(peer.address) else {
        return Side::NoAnswer("an end has no address".to_owned());
    };
    let origin = |is_own_node| if is_own_node { Origin::OwnNode } else { Origin::Other };
    let mut packet = Packet {
        endpoint,
        direction,
        own: own_address,
        peer: peer_address,
        protocol,
        port,
        origin: origin(peer.is_own_node),
        in_pod_range: is_in_pod_range(nodes, peer_address),
    };
    let recorded = match judging(&packet) {
        Ok(recorded) => recorded,
        Err(error) => return Side::NoAnswer(error),
    };
    let has = |flag| recorded.peer.is_some_and(|it| it.flags & flag != 0);
    if direction == Direction::Egress {
        // As the programs know a destination; what the node sends, they know by its way.
        packet.origin = origin(has(Peer::OWN_NODE));
    }
    if has(Peer::SERVICE) && direction == Direction::Egress {
        return Side::NoAnswer(format!(
            "{peer_address} is an address of a Service: the host translates packets to it, and then the \
             backend's address and port are judged; ask about the backend"
        ));
    }
    let Recorded { ruleset, is_audited, .. } = recorded;
    let verdict = lookup(&recorded.rows, &packet);
    Side::Judged { verdict, traffic: (protocol, port), ruleset, is_audited }
}

fn is_in_pod_range(nodes: &Nodes, address: IpAddr) -> bool {
    nodes.own.iter().chain(&nodes.others).flat_map(|it| &it.ranges).any(|range| range.contains(&address))
}

fn because(
    compiler: &Compiler,
    (verdict, ruleset): (&Verdict, Option<RulesetId>),
    direction: Direction,
    traffic: (u8, u16),
) -> String {
    match (verdict.reason, ruleset) {
        (Reason::NotAllowed, Some(ruleset)) => shown::not_allowed(compiler, ruleset),
        _ => shown::because(compiler, verdict, direction, Some(traffic)),
    }
}
