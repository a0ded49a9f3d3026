//! What calls answered that were made at once, held against the model: for each attachment there must be an order of
//! them in which every answer is right, and that ends with what is there.
//!
//! An order for each attachment by itself is enough, as calls of one do not read another's state. What they share is the
//! addresses: that these have one owner each, and rest, is checked for all of them together.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Instant,
};

use serde_json::Value;

use crate::{
    batch::{Answer, Batch, Ended, Issued},
    invariants,
    model::{
        Add, Addresses, Admissible, Attached, CHECK_FAILED, INVALID_NETNS, Id, Model, NOT_AVAILABLE,
        TRY_AGAIN_LATER, UNKNOWN_CONTAINER, Wanted,
    },
    observe::{Observed, Registered},
    ops::Damage,
};

/// What happens to one attachment.
#[derive(Debug, Clone, Copy)]
enum Step<'a> {
    Call(&'a Answer),
    /// It is removed by a GC, or may be.
    Collected {
        by: Option<&'a Answer>,
        must: bool,
    },
    /// A start mends what is broken on the host; and all of it, if the interface is made anew.
    Mended,
}

/// One attachment, on the way through an order.
#[derive(Debug, Clone, Default)]
struct Now {
    attached: Option<Attached>,
    /// And since when they may rest, if that is before the calls.
    released: Vec<(Addresses, Option<Instant>)>,
    /// ADDs that may have given addresses back.
    unknown: usize,
}

/// Whether the shim deletes by itself when there is no agent, and leaves it a note.
const DEL_NEEDS_NO_AGENT: bool = true;

struct Judge<'a> {
    model: &'a Model,
    batch: &'a Batch,
    id: Id,
    registered: Option<&'a Registered>,
}

/// Judges a batch, and makes the model what it is afterwards.
///
/// # Errors
/// What cannot be explained.
pub fn judge(model: &mut Model, batch: &Batch, seen: &Observed) -> Result<(), String> {
    for Answer { call, outcome, .. } in &batch.answers {
        let away = match call {
            Issued::Status => NOT_AVAILABLE,
            Issued::Gc(_) => TRY_AGAIN_LATER,
            _ => continue,
        };
        let is_right = match outcome {
            Ok(_) => model.agent_runs,
            Err((code, _)) => *code == away && (!model.agent_runs || batch.ended != Ended::No),
        };
        if !is_right {
            return Err(format!("{call:?} must not answer {outcome:?}"));
        }
    }
    if !model.agent_runs && batch.ended == Ended::No {
        return model.away(&batch.answers);
    }
    let Some(registry) = &seen.registry else { return Err("the agent was not asked".to_owned()) };
    own_addresses(model, batch)?;
    let mut ids: BTreeSet<Id> = model.attached.keys().copied().collect();
    ids.extend(batch.answers.iter().filter_map(|it| it.call.id()));
    let mut becomes = BTreeMap::new();
    for id in ids {
        let container = model.sandboxes.get(id).map(|it| it.container.as_str()).unwrap_or_default();
        let registered = registry.get(container);
        let judge = Judge { model, batch, id, registered };
        let steps = judge.steps();
        let start = Now { attached: model.attached.get(&id).cloned(), ..Now::default() };
        let Some(now) = judge.search(start, &steps) else {
            return Err(judge.unexplained(&steps));
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
        model.api.forget();
    }
    model.rest.tidy();
    model.note_dangling();
    Ok(())
}

/// That no address of the agent's own was given out which somebody got at the same time.
fn own_addresses(model: &Model, batch: &Batch) -> Result<(), String> {
    let mut given: BTreeMap<String, (Addresses, bool)> = BTreeMap::new();
    for answer in &batch.answers {
        let (Issued::Add(add), Ok(result)) = (&answer.call, &answer.outcome) else { continue };
        let Some(fresh) = Attached::by_result(result, &add.uid, 0) else {
            return Err(format!("an ADD answered what is no result: {result}"));
        };
        // A repeated ADD gets what was decided for an earlier one.
        let is_new = model.attached.get(&add.id).is_none_or(|it| it.host_ifname != fresh.host_ifname);
        let is_own = is_new && model.admits(add, &batch.apis, batch.answers.len()).wanted == [Wanted::Next];
        let (_, all_own) = given.entry(fresh.host_ifname).or_insert((fresh.addresses, is_own));
        *all_own &= is_own;
    }
    for (at, (this, (addresses, is_own))) in given.iter().enumerate() {
        for (other, (others, other_is_own)) in given.iter().skip(at + 1) {
            if (*is_own || *other_is_own) && !addresses.is_disjoint(others) {
                return Err(format!("{addresses:?} of {this} were given to {other} too, at the same time"));
            }
        }
    }
    Ok(())
}

// === impl Model ===

impl Model {
    /// What is said while there is no agent: a DEL succeeds all the same, and takes the interface away.
    fn away(&mut self, answers: &[Answer]) -> Result<(), String> {
        for Answer { call, outcome, from, .. } in answers {
            match (call, outcome) {
                (Issued::Status, _) => {}
                (Issued::Del(id), Ok(_)) if DEL_NEEDS_NO_AGENT => {
                    if let Some(attached) = self.attached.get_mut(id) {
                        attached.noted.get_or_insert(*from);
                        attached.damage.insert(Damage::Link);
                    }
                }
                (Issued::Del(_), Err(_)) if DEL_NEEDS_NO_AGENT => {
                    return Err(format!("without an agent, {call:?} must not fail: {outcome:?}"));
                }
                (_, Err((TRY_AGAIN_LATER, _))) => {}
                _ => return Err(format!("without an agent, {call:?} must not answer {outcome:?}")),
            }
        }
        Ok(())
    }

    fn adopt(&mut self, id: Id, now: Now, batch: &Batch, registry: &BTreeMap<String, Registered>) {
        for (addresses, since) in &now.released {
            self.rest.release(addresses, since.unwrap_or(batch.from), batch.to);
        }
        (0..now.unknown).for_each(|_| self.rest.release_unknown());
        let Some(mut attached) = now.attached else {
            self.attached.remove(&id);
            return;
        };
        let registered = self.sandboxes.get(id).and_then(|it| registry.get(&it.container));
        match (attached.seen, registered) {
            (None, Some(it)) => attached.seen = Some((it.host_ifindex, it.created_at_ms)),
            // A start has made its interface anew, and with it all of the pod's end.
            (Some((before, created)), Some(it)) if batch.ended != Ended::No && it.host_ifindex != before => {
                attached.seen = Some((it.host_ifindex, created));
                attached.damage.clear();
            }
            _ => {}
        }
        self.attached.insert(id, attached);
    }
}

// === impl Judge ===

impl<'a> Judge<'a> {
    /// All that may have happened to the attachment.
    fn steps(&self) -> Vec<Step<'a>> {
        let mut steps = Vec::new();
        let was_there = self.model.attached.get(&self.id);
        for answer in &self.batch.answers {
            match &answer.call {
                Issued::Gc(valid) if !valid.contains(&self.id) => {
                    let must = answer.outcome.is_ok() && was_there.is_some();
                    steps.push(Step::Collected { by: Some(answer), must });
                }
                call if call.id() == Some(self.id) => steps.push(Step::Call(answer)),
                _ => {}
            }
        }
        // By reconciliation; or at a start, or for its successor, because the interface has gone.
        let may_go = |it: &Attached| {
            let has_ended = self.model.has_ended(self.id, it);
            // At a start, a pod that lives gets its interface again.
            let is_missed = self.is_succeeded(it) && (has_ended || it.damage.contains(&Damage::Link));
            self.model.may_dangle(self.id, it) || is_missed || (has_ended && self.batch.ended != Ended::No)
        };
        if was_there.is_some_and(|it| it.noted.is_some()) && self.batch.starts {
            steps.push(Step::Collected { by: None, must: true });
        } else if was_there.is_some_and(may_go) {
            steps.push(Step::Collected { by: None, must: false });
        }
        if self.batch.starts && was_there.is_some_and(|it| it.damage.iter().any(|it| it.is_on_host())) {
            steps.push(Step::Mended);
        }
        steps
    }

    /// Looks for an order.
    fn search(&self, now: Now, left: &[Step<'a>]) -> Option<Now> {
        if left.is_empty() {
            return self.is_there(&now).then_some(now);
        }
        for (at, step) in left.iter().enumerate() {
            // What was answered before another call began comes first.
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

    fn is_there(&self, now: &Now) -> bool {
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

    /// What a step can make of the attachment, if its answer is right.
    fn after(&self, now: &Now, step: Step<'_>) -> Vec<Now> {
        let same = || vec![now.clone()];
        let answer = match step {
            Step::Collected { must: true, .. } => return vec![now.removed()],
            Step::Collected { must: false, .. } => return vec![now.clone(), now.removed()],
            Step::Mended => return vec![now.clone(), now.mended(), now.restored()],
            Step::Call(answer) => answer,
        };
        let is_lost = matches!(answer.outcome, Err((TRY_AGAIN_LATER, _))) && self.batch.ended != Ended::No;
        let may_be_done = is_lost && self.batch.ended == Ended::ByKill;
        let is_whole = now.attached.as_ref().is_some_and(|it| self.model.is_whole(self.id, it));
        match (&answer.call, &answer.outcome) {
            (Issued::Add(add), Ok(result)) => match &now.attached {
                Some(it) if is_whole => now.repeated(it, result),
                _ => self.added(now, add, result, answer.to),
            },
            (Issued::Add(add), Err(_)) if is_lost => {
                let unknown = now.unknown + 1;
                let mut all = vec![Now { unknown, ..now.clone() }];
                if may_be_done && !is_whole {
                    // What was broken goes first.
                    all.push(Now { unknown, ..now.removed() });
                    all.extend(self.perhaps_added(now, add));
                }
                all
            }
            (Issued::Add(add), Err((code, _))) => self.refused(now, add, *code, is_whole),
            (Issued::Del(_), Ok(_)) => vec![now.removed()],
            (Issued::Del(_), Err(_)) if may_be_done => vec![now.clone(), now.removed()],
            (Issued::Del(_) | Issued::Check(_), Err(_)) if is_lost => same(),
            (Issued::Check(_), outcome) => {
                let alive = self.model.sandboxes.get(self.id).is_some_and(|it| it.alive);
                // It was told the result that the runtime had then.
                let result = |it: Option<&Attached>| it.and_then(|it| it.result.clone());
                let told = result(self.model.attached.get(&self.id));
                let is_told = told.is_some() && told == result(now.attached.as_ref());
                let is_right = match (outcome, &now.attached) {
                    (Ok(_), _) => is_whole && is_told,
                    (Err((UNKNOWN_CONTAINER, _)), None) => true,
                    (Err((INVALID_NETNS, _)), _) => !alive,
                    (Err((CHECK_FAILED, _)), Some(_)) => !(is_whole && is_told) && alive,
                    _ => false,
                };
                if is_right { same() } else { Vec::new() }
            }
            _ => Vec::new(),
        }
    }

    fn admits(&self, add: &Add) -> Admissible {
        let adds = self.batch.answers.iter().filter(|it| matches!(it.call, Issued::Add(_))).count();
        self.model.admits(add, &self.batch.apis, adds.saturating_sub(1))
    }

    /// An ADD that made the interface, perhaps anew.
    fn added(&self, now: &Now, add: &Add, result: &Value, at: Instant) -> Vec<Now> {
        let Some(sandbox) = self.model.sandboxes.get(self.id) else { return Vec::new() };
        let Some(fresh) = Attached::by_result(result, &add.uid, sandbox.generation) else {
            return Vec::new();
        };
        let before = self.model.addresses();
        let is_right = |wanted: &Wanted| match wanted {
            Wanted::These(addresses) => fresh.addresses == *addresses,
            Wanted::Next => {
                let is_free = |it: &IpAddr| !before.contains(it) && !self.model.rest.is_at_rest(it, at);
                fresh.addresses.len() == 2
                    && fresh.addresses.iter().all(|it| is_free(it) && self.model.is_in_pools(it))
            }
        };
        if !self.admits(add).wanted.iter().any(is_right) {
            return Vec::new();
        }
        vec![Now { attached: Some(fresh), ..now.removed() }]
    }

    /// An ADD whose caller does not know that it succeeded.
    fn perhaps_added(&self, now: &Now, add: &Add) -> Option<Now> {
        let (it, sandbox) = (self.registered?, self.model.sandboxes.get(self.id)?);
        let attached = Attached {
            uids: BTreeSet::from([add.uid.clone()]),
            addresses: it.addresses.clone(),
            mac: it.mac.clone(),
            host_ifname: it.host_ifname.clone(),
            result: None,
            generation: sandbox.generation,
            damage: BTreeSet::new(),
            seen: None,
            noted: None,
            dangles_since: None,
        };
        Some(Now { attached: Some(attached), ..now.removed() })
    }

    /// An ADD that failed: everything is as it was; or, of what was broken, nothing is left. It may be told to try again
    /// because of a DEL at the same time.
    fn refused(&self, now: &Now, add: &Add, code: u64, is_whole: bool) -> Vec<Now> {
        let is_overtaken = code == TRY_AGAIN_LATER && self.is_deleted();
        if is_whole || !(is_overtaken || self.admits(add).errors.contains(&code)) {
            return Vec::new();
        }
        if now.attached.is_some() { vec![now.clone(), now.removed()] } else { vec![now.clone()] }
    }

    /// Whether somebody deletes it.
    fn is_deleted(&self) -> bool {
        self.batch.answers.iter().any(|it| match &it.call {
            Issued::Del(id) => *id == self.id,
            Issued::Gc(valid) => !valid.contains(&self.id),
            _ => false,
        })
    }

    /// Whether a newer sandbox of the same pod has taken the addresses that were decided for both.
    fn is_succeeded(&self, attached: &Attached) -> bool {
        self.batch.answers.iter().any(|it| match (&it.call, &it.outcome) {
            (Issued::Add(add), Ok(result)) if add.id != self.id && attached.uids.contains(&add.uid) => {
                Attached::by_result(result, &add.uid, 0)
                    .is_some_and(|newer| !newer.addresses.is_disjoint(&attached.addresses))
            }
            _ => false,
        })
    }

    fn unexplained(&self, steps: &[Step<'_>]) -> String {
        let sandbox = self.model.sandboxes.get(self.id);
        let adds = self.batch.answers.iter().filter_map(|it| match &it.call {
            Issued::Add(add) if add.id == self.id => Some(self.admits(add)),
            _ => None,
        });
        format!(
            "what happened to #{} cannot be explained by any order.\nIt is {sandbox:?}\nBefore: {:?}\nThe calls: {}\n\
             A new ADD may end with: {:?}\nNow the registry has: {:?}",
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
            Self::Mended => None,
        }
    }
}

// === impl Now ===

impl Now {
    fn removed(&self) -> Self {
        let mut now = self.clone();
        now.released.extend(now.attached.take().map(|it| (it.addresses, it.noted)));
        now
    }

    fn mended(&self) -> Self {
        let mut now = self.clone();
        if let Some(attached) = &mut now.attached {
            attached.damage.retain(|it| !it.is_on_host() || *it == Damage::Link);
        }
        now
    }

    /// As [`Self::mended`], with an interface that was made anew if it was gone.
    fn restored(&self) -> Self {
        let mut now = self.mended();
        if let Some(attached) = now.attached.as_mut().filter(|it| it.damage.contains(&Damage::Link)) {
            attached.damage.clear();
        }
        now
    }

    /// An ADD of what is attached gives the same answer again.
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
