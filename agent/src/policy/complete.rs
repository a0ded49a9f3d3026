//! Compiles a complete state, of which some policies may not fit.

use std::sync::Arc;

use ferrule_policy::{Change, Compiler, Refused};

use super::{batch::Offered, stub::stub};

/// Applies a complete state to an empty compiler. Returns the policies that do not fit: stubs stand in for
/// them. Each policy is offered at most log₂ n + 2 times, so that few refusals cost little and many an end.
///
/// # Errors
/// If the state does not fit, whatever the rules of policies say.
pub(super) fn compile(
    compiler: &mut Compiler,
    state: &[Change],
    endpoints: &[Change],
) -> Result<Vec<(Change, Refused)>, Refused> {
    let all = || state.iter().chain(endpoints);
    if compiler.apply(all().cloned()).is_ok() {
        return Ok(Vec::new());
    }
    compiler.apply(all().map(|change| match change {
        Change::Policy(policy) => Change::Policy(Arc::new(stub(policy))),
        _ => change.clone(),
    }))?;
    let mut offered = Offered::default();
    offered.offer(compiler, state.iter().filter(|it| matches!(it, Change::Policy(_))).cloned());
    Ok(offered.refused)
}
