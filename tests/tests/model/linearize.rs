//! Linearizability check of concurrent calls against the model: for each attachment, some order of the calls
//! must explain all answers and lead to the attachment's final state.
//!
//! Attachments are checked separately, because calls on one do not depend on another's state. They share only
//! the addresses: unique ownership and cooldown are checked across all attachments.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Instant,
};

use serde_json::Value;

use crate::{
    batch::{Answer, Batch, BoundCall, Ended},
    invariants,
    model::{
        Add, Addresses, Allowed, Assigned, Attached, CHECK_FAILED, INVALID_NETNS, Id, Model, NOT_AVAILABLE,
        TRY_AGAIN_LATER, UNKNOWN_CONTAINER,
    },
    observe::{Observed, Registered},
    operations::Damage,
};

/// An event in the history of one attachment.
#[derive(Debug, Clone, Copy)]
enum Step<'a> {
    Call(&'a Answer),
    /// Removed by GC or garbage collection: certainly (`must`) or possibly.
    Collected {
        by: Option<&'a Answer>,
        must: bool,
    },
    /// A start repairs damage on the host, or everything if it recreates the interface.
    Repaired,
}

/// State of one attachment at a point of an order.
#[derive(Debug, Clone, Default)]
struct State {
    attached: Option<Attached>,
    /// Released addresses, and the time of release if that precedes the batch.
    released: Vec<(Addresses, Option<Instant>)>,
    /// Number of ADDs that may have allocated and released addresses.
    unknown: usize,
}

struct Checker<'a> {
    model: &'a Model,
    batch: &'a Batch,
    id: Id,
    registered: Option<&'a Registered>,
}

/// Checks a batch against the model and updates the model to the state after it.
///
/// # Errors
/// The answer or attachment that no order explains.
pub fn check_batch(model: &mut Model, batch: &Batch, seen: &Observed) -> Result<(), String> {
    for Answer { call, outcome, .. } in &batch.answers {
        let agent_down = match call {
            BoundCall::Status => NOT_AVAILABLE,
            BoundCall::Gc(_) => TRY_AGAIN_LATER,
            _ => continue,
        };
        let is_right = match outcome {
            Ok(_) => model.agent_runs,
            Err((code, _)) => *code == agent_down && (!model.agent_runs || batch.ended != Ended::No),
        };
        if !is_right {
            return Err(format!("unexpected answer to {call:?}: {outcome:?}"));
        }
    }
    if !model.agent_runs && batch.ended == Ended::No {
        return model.agent_down(&batch.answers);
    }
    let Some(registry) = &seen.registry else { return Err("the snapshot has no registry".to_owned()) };
    own_addresses(model, batch)?;
    let mut ids: BTreeSet<Id> = model.attached.keys().copied().collect();
    ids.extend(batch.answers.iter().filter_map(|it| it.call.id()));
    let mut becomes = BTreeMap::new();
    for id in ids {
        let container = model.sandboxes.get(id).map(|it| it.container.as_str()).unwrap_or_default();
        let registered = registry.get(container);
        let checker = Checker { model, batch, id, registered };
        let steps = checker.steps();
        let start = State { attached: model.attached.get(&id).cloned(), ..State::default() };
        let Some(now) = checker.search(start, &steps) else {
            return Err(checker.unexplained(&steps));
        };
        becomes.insert(id, now);
    }
    for (id, now) in becomes {
        model.adopt(id, now, batch, registry);
    }
    if batch.ended != Ended::No {
        for attached in model.attached.values_mut() {
            let healed = invariants::healed(attached, seen);
            attached.damage.retain(|damage| !healed.contains(damage));
        }
        model.api.forget_deletions();
    }
    model.cooldown.expire();
    model.record_orphans();
    Ok(())
}

/// Checks that no address allocated by IPAM was given to two attachments in this batch.
fn own_addresses(model: &Model, batch: &Batch) -> Result<(), String> {
    let mut given: BTreeMap<String, (Addresses, bool)> = BTreeMap::new();
    for answer in &batch.answers {
        let (BoundCall::Add(add), Ok(result)) = (&answer.call, &answer.outcome) else { continue };
        let Some(fresh) = Attached::from_result(result, &add.uid, 0) else {
            return Err(format!("ADD returned an invalid result: {result}"));
        };
        // A repeated ADD returns an earlier decision.
        let is_new = model.attached.get(&add.id).is_none_or(|it| it.host_ifname != fresh.host_ifname);
        let is_own = is_new
            && model.allowed_outcomes(add, &batch.apis, batch.answers.len()).addresses
                == [Assigned::FromIpam];
        let (_, all_own) = given.entry(fresh.host_ifname).or_insert((fresh.addresses, is_own));
        *all_own &= is_own;
    }
    for (at, (this, (addresses, is_own))) in given.iter().enumerate() {
        for (other, (others, other_is_own)) in given.iter().skip(at + 1) {
            if (*is_own || *other_is_own) && !addresses.is_disjoint(others) {
                return Err(format!("{addresses:?} of {this} were also given to {other}"));
            }
        }
    }
    Ok(())
}

// === impl Model ===

impl Model {
    /// Checks answers without a running agent: DEL succeeds and deletes the interface.
    fn agent_down(&mut self, answers: &[Answer]) -> Result<(), String> {
        for Answer { call, outcome, from, .. } in answers {
            match (call, outcome) {
                (BoundCall::Status, _) => {}
                (BoundCall::Del(id), Ok(_)) => {
                    if let Some(attached) = self.attached.get_mut(id) {
                        attached.deferred_del_at.get_or_insert(*from);
                        attached.damage.insert(Damage::Link);
                    }
                }
                (BoundCall::Del(_), Err(_)) => {
                    return Err(format!("{call:?} failed without an agent: {outcome:?}"));
                }
                (_, Err((TRY_AGAIN_LATER, _))) => {}
                _ => return Err(format!("unexpected answer to {call:?} without an agent: {outcome:?}")),
            }
        }
        Ok(())
    }

    fn adopt(&mut self, id: Id, now: State, batch: &Batch, registry: &BTreeMap<String, Registered>) {
        for (addresses, since) in &now.released {
            self.cooldown.release(addresses, since.unwrap_or(batch.from), batch.to);
        }
        (0..now.unknown).for_each(|_| self.cooldown.release_unknown());
        let Some(mut attached) = now.attached else {
            self.attached.remove(&id);
            return;
        };
        let registered = self.sandboxes.get(id).and_then(|it| registry.get(&it.container));
        match (attached.host_link, registered) {
            (None, Some(it)) => attached.host_link = Some((it.host_ifindex, it.created_at_ms)),
            // A start has recreated the interface and thereby repaired the pod's end.
            (Some((before, created)), Some(it)) if batch.ended != Ended::No && it.host_ifindex != before => {
                attached.host_link = Some((it.host_ifindex, created));
                attached.damage.clear();
            }
            _ => {}
        }
        self.attached.insert(id, attached);
    }
}

// === impl Checker ===

impl<'a> Checker<'a> {
    /// Everything that may have happened to the attachment.
    fn steps(&self) -> Vec<Step<'a>> {
        let mut steps = Vec::new();
        let was_there = self.model.attached.get(&self.id);
        for answer in &self.batch.answers {
            match &answer.call {
                BoundCall::Gc(valid) if !valid.contains(&self.id) => {
                    let must = answer.outcome.is_ok() && was_there.is_some();
                    steps.push(Step::Collected { by: Some(answer), must });
                }
                call if call.id() == Some(self.id) => steps.push(Step::Call(answer)),
                _ => {}
            }
        }
        // By garbage collection; by a start or for its successor, because the interface is gone.
        let may_be_removed = |it: &Attached| {
            let has_ended = self.model.has_ended(self.id, it);
            // A start recreates the interface of a live namespace.
            let is_unneeded = self.is_superseded(it) && (has_ended || it.damage.contains(&Damage::Link));
            self.model.may_be_orphan(self.id, it)
                || is_unneeded
                || (has_ended && self.batch.ended != Ended::No)
        };
        if was_there.is_some_and(|it| it.deferred_del_at.is_some()) && self.batch.starts {
            steps.push(Step::Collected { by: None, must: true });
        } else if was_there.is_some_and(may_be_removed) {
            steps.push(Step::Collected { by: None, must: false });
        }
        if self.batch.starts && was_there.is_some_and(|it| it.damage.iter().any(|it| it.is_on_host())) {
            steps.push(Step::Repaired);
        }
        steps
    }

    /// Searches for an order of the remaining steps that ends in the observed state.
    fn search(&self, now: State, left: &[Step<'a>]) -> Option<State> {
        if left.is_empty() {
            return self.is_there(&now).then_some(now);
        }
        for (at, step) in left.iter().enumerate() {
            // Respect real time: a call that returned before another began comes first.
            if left.iter().any(|other| other.is_before(step)) {
                continue;
            }
            let mut rest = left.to_vec();
            rest.remove(at);
            for next in self.after(&now, *step) {
                if let Some(found) = self.search(next, &rest) {
                    return Some(found);
                }
            }
        }
        None
    }

    fn is_there(&self, now: &State) -> bool {
        match (&now.attached, self.registered) {
            (None, None) => true,
            (Some(attached), Some(it)) => {
                attached.addresses == it.addresses
                    && attached.host_ifname == it.host_ifname
                    && attached.uids.contains(&it.pod_uid)
            }
            _ => false,
        }
    }

    /// The possible states after a step; empty if the step's answer is wrong.
    fn after(&self, now: &State, step: Step<'_>) -> Vec<State> {
        let same = || vec![now.clone()];
        let answer = match step {
            Step::Collected { must: true, .. } => return vec![now.removed()],
            Step::Collected { must: false, .. } => return vec![now.clone(), now.removed()],
            Step::Repaired => return vec![now.clone(), now.repaired(), now.restored()],
            Step::Call(answer) => answer,
        };
        let is_lost = matches!(answer.outcome, Err((TRY_AGAIN_LATER, _))) && self.batch.ended != Ended::No;
        let may_be_done = is_lost && self.batch.ended == Ended::ByKill;
        let is_whole = now.attached.as_ref().is_some_and(|it| self.model.is_whole(self.id, it));
        match (&answer.call, &answer.outcome) {
            (BoundCall::Add(add), Ok(result)) => match &now.attached {
                Some(it) if is_whole => now.repeated(it, result),
                _ => self.added(now, add, result, answer.to),
            },
            (BoundCall::Add(add), Err(_)) if is_lost => {
                let unknown = now.unknown + 1;
                let mut all = vec![State { unknown, ..now.clone() }];
                if may_be_done && !is_whole {
                    // ADD removes a damaged attachment first.
                    all.push(State { unknown, ..now.removed() });
                    all.extend(self.possibly_added(now, add));
                }
                all
            }
            (BoundCall::Add(add), Err((code, _))) => self.refused(now, add, *code, is_whole),
            (BoundCall::Del(_), Ok(_)) => vec![now.removed()],
            (BoundCall::Del(_), Err(_)) if may_be_done => vec![now.clone(), now.removed()],
            (BoundCall::Del(_) | BoundCall::Check(_), Err(_)) if is_lost => same(),
            (BoundCall::Check(_), outcome) => {
                let alive = self.model.sandboxes.get(self.id).is_some_and(|it| it.alive);
                // CHECK received the result that the runtime had at that time.
                let result = |it: Option<&Attached>| it.and_then(|it| it.result.clone());
                let annotated = result(self.model.attached.get(&self.id));
                let is_current = annotated.is_some() && annotated == result(now.attached.as_ref());
                let is_right = match (outcome, &now.attached) {
                    (Ok(_), _) => is_whole && is_current,
                    (Err((UNKNOWN_CONTAINER, _)), None) => true,
                    (Err((INVALID_NETNS, _)), _) => !alive,
                    (Err((CHECK_FAILED, _)), Some(_)) => !(is_whole && is_current) && alive,
                    _ => false,
                };
                if is_right { same() } else { Vec::new() }
            }
            _ => Vec::new(),
        }
    }

    fn allowed_outcomes(&self, add: &Add) -> Allowed {
        let adds = self.batch.answers.iter().filter(|it| matches!(it.call, BoundCall::Add(_))).count();
        self.model.allowed_outcomes(add, &self.batch.apis, adds.saturating_sub(1))
    }

    /// An ADD that created or recreated the interface.
    fn added(&self, now: &State, add: &Add, result: &Value, at: Instant) -> Vec<State> {
        let Some(sandbox) = self.model.sandboxes.get(self.id) else { return Vec::new() };
        let Some(fresh) = Attached::from_result(result, &add.uid, sandbox.generation) else {
            return Vec::new();
        };
        let before = self.model.addresses();
        let is_right = |addresses: &Assigned| match addresses {
            Assigned::Fixed(addresses) => fresh.addresses == *addresses,
            Assigned::FromIpam => {
                let is_free =
                    |it: &IpAddr| !before.contains(it) && !self.model.cooldown.contains_certainly(it, at);
                fresh.addresses.len() == 2
                    && fresh.addresses.iter().all(|it| is_free(it) && self.model.is_in_pools(it))
            }
        };
        if !self.allowed_outcomes(add).addresses.iter().any(is_right) {
            return Vec::new();
        }
        vec![State { attached: Some(fresh), ..now.removed() }]
    }

    /// An ADD that may have succeeded although its caller received no answer.
    fn possibly_added(&self, now: &State, add: &Add) -> Option<State> {
        let (it, sandbox) = (self.registered?, self.model.sandboxes.get(self.id)?);
        let attached = Attached {
            uids: BTreeSet::from([add.uid.clone()]),
            addresses: it.addresses.clone(),
            mac: it.mac.clone(),
            host_ifname: it.host_ifname.clone(),
            result: None,
            generation: sandbox.generation,
            damage: BTreeSet::new(),
            host_link: None,
            deferred_del_at: None,
            orphan_since: None,
        };
        Some(State { attached: Some(attached), ..now.removed() })
    }

    /// A failed ADD: nothing changed, or a damaged attachment was removed. A concurrent DEL may cause code
    /// 11.
    fn refused(&self, now: &State, add: &Add, code: u64, is_whole: bool) -> Vec<State> {
        let is_interrupted = code == TRY_AGAIN_LATER && self.is_deleted();
        if is_whole || !(is_interrupted || self.allowed_outcomes(add).errors.contains(&code)) {
            return Vec::new();
        }
        if now.attached.is_some() { vec![now.clone(), now.removed()] } else { vec![now.clone()] }
    }

    /// Whether a concurrent call deletes the attachment.
    fn is_deleted(&self) -> bool {
        self.batch.answers.iter().any(|it| match &it.call {
            BoundCall::Del(id) => *id == self.id,
            BoundCall::Gc(valid) => !valid.contains(&self.id),
            _ => false,
        })
    }

    /// Whether a newer sandbox of the same pod has taken over the addresses.
    fn is_superseded(&self, attached: &Attached) -> bool {
        self.batch.answers.iter().any(|it| match (&it.call, &it.outcome) {
            (BoundCall::Add(add), Ok(result)) if add.id != self.id && attached.uids.contains(&add.uid) => {
                Attached::from_result(result, &add.uid, 0)
                    .is_some_and(|newer| !newer.addresses.is_disjoint(&attached.addresses))
            }
            _ => false,
        })
    }

    fn unexplained(&self, steps: &[Step<'_>]) -> String {
        let sandbox = self.model.sandboxes.get(self.id);
        let adds = self.batch.answers.iter().filter_map(|it| match &it.call {
            BoundCall::Add(add) if add.id == self.id => Some(self.allowed_outcomes(add)),
            _ => None,
        });
        format!(
            "no order of the calls explains the state of #{}.\nSandbox: {sandbox:?}\nBefore: {:?}\nCalls: {}\n\
             Allowed outcomes of a new ADD: {:?}\nRegistry: {:?}",
            self.id,
            self.model.attached.get(&self.id),
            steps.iter().map(|step| format!("\n  {step:?}")).collect::<String>(),
            adds.collect::<Vec<_>>(),
            self.registered,
        )
    }
}

// === impl Step ===

impl Step<'_> {
    fn is_before(&self, other: &Self) -> bool {
        let (mine, others) = (self.answer(), other.answer());
        mine.zip(others).is_some_and(|(mine, others)| mine.to < others.from)
    }

    fn answer(&self) -> Option<&Answer> {
        match self {
            Self::Call(answer) => Some(answer),
            Self::Collected { by, .. } => *by,
            Self::Repaired => None,
        }
    }
}

// === impl State ===

impl State {
    fn removed(&self) -> Self {
        let mut now = self.clone();
        now.released.extend(now.attached.take().map(|it| (it.addresses, it.deferred_del_at)));
        now
    }

    fn repaired(&self) -> Self {
        let mut now = self.clone();
        if let Some(attached) = &mut now.attached {
            attached.damage.retain(|it| !it.is_on_host() || *it == Damage::Link);
        }
        now
    }

    /// As [`Self::repaired`]; also recreates a deleted interface.
    fn restored(&self) -> Self {
        let mut now = self.repaired();
        if let Some(attached) = now.attached.as_mut().filter(|it| it.damage.contains(&Damage::Link)) {
            attached.damage.clear();
        }
        now
    }

    /// A repeated ADD must return the first ADD's result.
    fn repeated(&self, attached: &Attached, result: &Value) -> Vec<Self> {
        match &attached.result {
            Some(first) if first == result => vec![self.clone()],
            Some(_) => Vec::new(),
            None => {
                let attached = Attached { result: Some(result.clone()), ..attached.clone() };
                vec![Self { attached: Some(attached), ..self.clone() }]
            }
        }
    }
}
