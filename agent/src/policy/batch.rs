//! Changes that the compiler takes, and those that it refuses.

use ferrule_policy::{Change, Compiler, Op, Refused};

/// The outcome of a batch.
#[derive(Default)]
pub(super) struct Offered {
    /// To be written, in this order.
    pub(super) rows: Vec<Op>,
    pub(super) taken: usize,
    pub(super) refused: Vec<(Change, Refused)>,
}

// === impl Offered ===

impl Offered {
    /// Applies changes. One that does not fit holds up no other: a batch that is refused is split.
    pub(super) fn offer(&mut self, compiler: &mut Compiler, mut changes: Vec<Change>) {
        if changes.is_empty() {
            return;
        }
        match (compiler.apply(changes.iter().cloned()), changes.len()) {
            (Ok(mut delta), taken) => {
                self.rows.append(&mut delta.ops);
                self.taken += taken;
            }
            (Err(refused), 1) => self.refused.extend(changes.pop().map(|change| (change, refused))),
            (Err(_), len) => {
                let rest = changes.split_off(len / 2);
                self.offer(compiler, changes);
                self.offer(compiler, rest);
            }
        }
    }
}
