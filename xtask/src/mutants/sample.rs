//! Which mutants of a room a run tests.

use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256};

use super::mutant::Mutant;

/// At most `size` mutants, in the order of the source. The choice depends on the changes themselves, not on
/// lines: editing one function leaves the sample of the others, and a larger sample contains a smaller one.
pub(super) fn take(mutants: &[Mutant], size: usize) -> Vec<&Mutant> {
    let mut equals = BTreeMap::new();
    let mut ranked: Vec<(Vec<u8>, usize, &Mutant)> = Vec::new();
    for (at, mutant) in mutants.iter().enumerate() {
        let Mutant { file, change, becomes, .. } = mutant;
        let nth = equals.entry((file, change, becomes)).or_insert(0_usize);
        *nth += 1;
        let rank = Sha256::digest(format!("{file}\n{change}\n{becomes}\n{nth}")).to_vec();
        ranked.push((rank, at, mutant));
    }
    ranked.sort_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
    ranked.truncate(size);
    ranked.sort_by_key(|(_, at, _)| *at);
    ranked.into_iter().map(|(_, _, mutant)| mutant).collect()
}

/// The regular expression for one mutant's name.
pub(super) fn exactly(name: &str) -> String {
    let mut expression = "^".to_owned();
    for c in name.chars() {
        if r"\.+*?()|[]{}^$#&-~".contains(c) {
            expression.push('\\');
        }
        expression.push(c);
    }
    expression.push('$');
    expression
}
