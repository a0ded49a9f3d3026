//! Shows the whole of it on this machine, and takes it down again: a node, an agent, a runtime that executes the
//! shim, three pods, their packets, and what an operator sees of them.

#![forbid(unsafe_code)]

mod show;
mod story;

use std::process::ExitCode;

use ferrule_tests::{host::Footprint, node};
use show::Show;

fn main() -> ExitCode {
    let mut show = Show::default();
    let told = tell(&mut show);
    if let Err(error) = &told {
        eprintln!("\n{error:?}");
    }
    show.summary(told.is_ok());
    if told.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn tell(show: &mut Show) -> anyhow::Result<()> {
    let before = Footprint::take()?;
    node::on_node(|node| story::tell(node, show))?;
    show.chapter("Afterwards, on the machine itself");
    show.fact("no link, namespace, pin, program or map is left", || before.wait_until_restored())
}
