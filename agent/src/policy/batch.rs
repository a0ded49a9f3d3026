//! Changes that the compiler takes, and those that it refuses.

use std::collections::HashMap;

use ferrule_policy::{Change, Compiler, Op, PolicyId, Refused};

/// The outcome of a batch.
#[derive(Default)]
pub(super) struct Offered {
    /// To be written, in this order.
    pub(super) rows: Vec<Op>,
    pub(super) taken: usize,
    pub(super) refused: Vec<(Change, Refused)>,
}

/// Changes that the compiler takes or refuses as one.
type Part = Vec<Change>;

// === impl Offered ===

impl Offered {
    /// Applies changes. One that does not fit holds up no other: a batch that is refused is split. A policy
    /// and its predecessor of the same name stay together, because the removal alone would open pods.
    pub(super) fn offer(&mut self, compiler: &mut Compiler, changes: impl IntoIterator<Item = Change>) {
        self.offer_parts(compiler, parts(changes));
    }

    fn offer_parts(&mut self, compiler: &mut Compiler, mut parts: Vec<Part>) {
        if parts.is_empty() {
            return;
        }
        match (compiler.apply(parts.iter().flatten().cloned()), parts.len()) {
            (Ok(mut delta), _) => {
                self.rows.append(&mut delta.ops);
                self.taken += parts.iter().map(Vec::len).sum::<usize>();
            }
            (Err(mut refused), 1) => {
                // The compiler may name another one of the same pods.
                refused.policy = parts.iter().flatten().find_map(policy_of).cloned().or(refused.policy);
                self.refused.extend(parts.into_iter().flatten().map(|change| (change, refused.clone())));
            }
            (Err(_), len) => {
                let rest = parts.split_off(len / 2);
                self.offer_parts(compiler, parts);
                self.offer_parts(compiler, rest);
            }
        }
    }
}

fn parts(changes: impl IntoIterator<Item = Change>) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    let mut of_policies: HashMap<PolicyId, usize> = HashMap::new();
    for change in changes {
        let Some(id) = policy_of(&change) else {
            parts.push(vec![change]);
            continue;
        };
        let place = *of_policies.entry(id.clone()).or_insert(parts.len());
        match parts.get_mut(place) {
            // The successor first: refusals name its UID.
            Some(part) if matches!(change, Change::Policy(_)) => part.insert(0, change),
            Some(part) => part.push(change),
            None => parts.push(vec![change]),
        }
    }
    parts
}

fn policy_of(change: &Change) -> Option<&PolicyId> {
    match change {
        Change::Policy(policy) => Some(&policy.id),
        Change::PolicyGone { id, .. } => Some(id),
        _ => None,
    }
}
