//! Every test there is, in the order of how soon it can fail.

use anyhow::{Result, anyhow};

use crate::{dist, leftovers, lint, tools, workspace::Workspace};

/// Lints, runs the unit tests, builds, runs the tests that need root, and checks that they left nothing
/// behind.
///
/// # Errors
/// At the first stage that fails.
pub(crate) fn test(ws: &Workspace) -> Result<()> {
    tools::need_root("running every test")?;
    tools::need(tools::TEST)?;
    tools::need(tools::RUNTIMES)?;
    lint::lint(ws)?;
    ws.cargo_host("test", "running the tests that need no root", "see which test failed, above").run()?;
    dist::build(ws)?;
    dist::build_crashing(ws)?;
    privileged(ws)
}

fn privileged(ws: &Workspace) -> Result<()> {
    let before = leftovers::look()?;
    let tests = ws
        .cargo_host("test", "running the tests that need root", "see which test failed, above")
        .args(["--package", "ferrule-tests"]);
    let tested = dist::tell(ws, tests).run();
    let clean = leftovers::check(&before);
    match (tested, clean) {
        // Both are worth knowing: what is left behind often tells how far a failed test came.
        (Err(tested), Err(clean)) => Err(anyhow!("{tested:#}\nerror: {clean:#}")),
        (tested, clean) => tested.and(clean),
    }
}
