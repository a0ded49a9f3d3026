//! `ferrulectl policy`: what the agent knows of policies, and how they judge.

mod rows;

use std::{net::IpAddr, sync::Arc, thread::sleep, time::Duration};

use ferrule_policy::{Compiler, Counted, Packet, Party, PolicyId, Trace, TraceError, shown};
use ferrule_proto::{
    agent::{
        ExplainPoliciesRequest, ExplainPoliciesResponse, ListPoliciesResponse, PolicyEnd, PolicyState,
        PolicySummary, TracePoliciesRequest, TracePoliciesResponse, policy_state::Kind,
    },
    quoted::Quoted,
};
use tonic::Status;

use crate::{chain::chain, dataplane::Dataplane, nodes::Nodes, policy::Enforcer};

/// Whom to ask about policies.
pub(super) struct Policies {
    pub(super) enforcer: Arc<Enforcer>,
    pub(super) dataplane: Arc<Dataplane>,
    pub(super) nodes: Arc<Nodes>,
}

/// What is asked about.
struct Question {
    from: PolicyEnd,
    to: PolicyEnd,
    protocol: u8,
    port: u16,
}

/// Attempts until policies and rows that disagree are reported: a change may be on its way to the maps.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(100);

// === impl Policies ===

impl Policies {
    pub(super) fn state(&self) -> PolicyState {
        self.enforcer.state()
    }

    pub(super) fn list(&self) -> ListPoliciesResponse {
        let policies = self.enforcer.read(|compiler| shown::list(compiler, Counted::Local));
        let policies = with_undecodable(policies, self.enforcer.undecodable());
        ListPoliciesResponse { state: Some(self.enforcer.state()), policies }
    }

    /// Without policies the agent follows no pods of other nodes, so that the answer is the state alone.
    pub(super) fn explain(
        &self,
        ExplainPoliciesRequest { namespace, name }: ExplainPoliciesRequest,
    ) -> Result<ExplainPoliciesResponse, Status> {
        let state = self.enforcer.state();
        let explained = self.enforcer.read(|compiler| {
            let explained = shown::explain(compiler, &namespace, &name);
            let is_open = state.kind() == Kind::Open;
            let explained = explained.or_else(|| is_open.then(ExplainPoliciesResponse::default));
            explained.ok_or_else(|| unknown(compiler, &TraceError::UnknownPod { namespace, name }))
        });
        Ok(ExplainPoliciesResponse { state: Some(state), ..explained? })
    }

    pub(super) fn trace(&self, request: TracePoliciesRequest) -> Result<TracePoliciesResponse, Status> {
        let question = Question::try_from(request)?;
        let judging = |packet: &Packet| self.dataplane.judging(packet).map_err(|error| chain(&error));
        let mut attempt = 1;
        loop {
            let (trace, mut shown) = self.enforcer.read(|compiler| {
                let trace = question.trace(compiler, &self.nodes)?;
                let shown = shown::trace(compiler, &trace);
                Ok::<_, Status>((trace, shown))
            })?;
            // The compiler is not locked meanwhile.
            let sides = rows::sides(&trace, (question.protocol, question.port), &self.nodes, judging);
            self.enforcer.read(|compiler| rows::show(&sides, compiler, &mut shown));
            if !shown.disagree || attempt == ATTEMPTS {
                return Ok(shown);
            }
            attempt += 1;
            sleep(PAUSE);
        }
    }
}

// === impl Question ===

impl Question {
    /// The node of an end has addresses of both families: the first is taken that has the other end's.
    fn trace(&self, compiler: &Compiler, nodes: &Nodes) -> Result<Trace, Status> {
        let own: &[IpAddr] = nodes.own.as_ref().map_or(&[], |it| &it.addresses);
        let (from, to) = (parties(&self.from, own, compiler)?, parties(&self.to, own, compiler)?);
        let mut failure = TraceError::NoFamily;
        for (from, to) in from.iter().flat_map(|from| to.iter().map(move |to| (from, to))) {
            match compiler.trace(from, to, self.protocol, self.port) {
                Ok(trace) => return Ok(trace),
                Err(error) => failure = error,
            }
        }
        Err(unknown(compiler, &failure))
    }
}

impl TryFrom<TracePoliciesRequest> for Question {
    type Error = Status;

    fn try_from(request: TracePoliciesRequest) -> Result<Self, Status> {
        let TracePoliciesRequest { from, to, protocol, port } = request;
        let number = |name, number: u32| {
            Status::invalid_argument(format!("the field {name} is {number}, which is too large"))
        };
        Ok(Self {
            from: from.ok_or_else(|| Status::invalid_argument("the field from is missing"))?,
            to: to.ok_or_else(|| Status::invalid_argument("the field to is missing"))?,
            protocol: u8::try_from(protocol).map_err(|_| number("protocol", protocol))?,
            port: u16::try_from(port).map_err(|_| number("port", port))?,
        })
    }
}

/// Adds the policies of which the newest version cannot be decoded.
fn with_undecodable(
    mut policies: Vec<PolicySummary>,
    undecodable: Vec<(PolicyId, String)>,
) -> Vec<PolicySummary> {
    for (id, why) in undecodable {
        let namespace = id.namespace.clone().unwrap_or_default();
        let is_it = |it: &&mut PolicySummary| {
            (it.kind.as_str(), &it.namespace, &it.name) == (id.kind(), &namespace, &id.name)
        };
        match policies.iter_mut().find(is_it) {
            Some(earlier) => earlier.problems.push(format!("{why}; the last decodable version applies")),
            None => policies.push(PolicySummary {
                kind: id.kind().to_owned(),
                name: id.name.clone(),
                namespace,
                problems: vec![format!("{why}; nothing of the policy applies")],
                ..PolicySummary::default()
            }),
        }
    }
    let place = |it: &PolicySummary| (it.kind.clone(), it.namespace.clone(), it.name.clone());
    policies.sort_by_key(place);
    policies
}

/// An end; the node once for each of its addresses.
fn parties(end: &PolicyEnd, own: &[IpAddr], compiler: &Compiler) -> Result<Vec<Party>, Status> {
    let PolicyEnd { namespace, name, address, own_node } = end;
    if !name.is_empty() {
        return Ok(vec![Party::Pod { namespace: namespace.clone(), name: name.clone() }]);
    }
    if *own_node {
        let addresses = own.iter().map(|it| Party::OwnNodeAt(*it));
        let unknown = own.is_empty().then_some(Party::OwnNode);
        return Ok(addresses.chain(unknown).collect());
    }
    let address: IpAddr = address.parse().map_err(|_| {
        let found = Quoted(address);
        Status::invalid_argument(format!("found {found}, expected a pod, an address, or the pod's node"))
    })?;
    // Not only the addresses of the Node: the host has others, such as NodeLocal DNSCache's.
    let is_own = compiler.is_own_node(address);
    Ok(vec![if is_own { Party::OwnNodeAt(address) } else { Party::Address(address) }])
}

fn unknown(compiler: &Compiler, error: &TraceError) -> Status {
    match (compiler.policies().next(), error) {
        (None, TraceError::UnknownPod { .. }) => Status::not_found(format!(
            "{error}; the agent knows no policy, and follows no pods of other nodes: without policies, every \
             packet passes; `ferrulectl policy list` shows the state"
        )),
        _ => Status::not_found(error.to_string()),
    }
}

#[cfg(test)]
mod tests;
