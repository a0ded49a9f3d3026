//! `ferrule`, the CNI plugin: a thin shim that a container runtime starts for every sandbox.
//!
//! It checks what the runtime says, in the [environment](env) and on [standard input](netconf), hands it to the
//! agent over a unix socket, and prints the [answer](result) in the CNI version that was asked for. All else is
//! the agent's. A node starts it for every pod, so its size and the work that it does before the call count.

#![forbid(unsafe_code)]

mod args;
mod away;
mod call;
mod env;
mod error;
mod netconf;
mod result;
mod run;
mod stdin;
mod trace;
mod transport;
mod version;

use std::{
    fs::File,
    io::{self, Write},
    os::fd::AsFd,
    panic,
    process::{ExitCode, exit},
};

use dlmalloc::GlobalDlmalloc;
use ferrule_proto::cni::error::Code;

use crate::{error::CniError, run::Outcome, trace::Trace, version::CniVersion};

/// In place of musl's, which asks the kernel for most of what it hands out.
#[global_allocator]
static ALLOCATOR: GlobalDlmalloc = GlobalDlmalloc;

fn main() -> ExitCode {
    // A runtime that gets no JSON has nothing to show to the user.
    panic::set_hook(Box::new(|info| {
        let details = "this is a bug in ferrule: please report it";
        let error = CniError::new(Code::Internal, format!("the plugin panicked: {info}"), details);
        let _ = print(&error.to_json(CniVersion::NEWEST.as_str()));
        exit(1);
    }));

    // Rust's own standard input has a buffer, behind which a poll cannot look.
    let input = match io::stdin().as_fd().try_clone_to_owned() {
        Ok(fd) => File::from(fd),
        Err(e) => {
            let error = CniError::new(Code::IoFailure, format!("opening standard input: {e}"), "");
            let _ = print(&error.to_json(CniVersion::NEWEST.as_str()));
            return ExitCode::FAILURE;
        }
    };
    let env = |name: &str| std::env::var_os(name);
    let agent = |socket: &str, request| call::call(socket, request, Trace::from_env(&env));
    let printed = match run::run(&env, input, agent) {
        Outcome::About => {
            let name = concat!("ferrule ", env!("CARGO_PKG_VERSION"));
            let _ = writeln!(
                io::stderr(),
                "{name}: the CNI plugin of Ferrule, started by container runtimes\nCNI versions: {}",
                version::Supported
            );
            Ok(())
        }
        Outcome::Done(None) => Ok(()),
        Outcome::Done(Some(json)) => print(&json),
        Outcome::Failed(json) => print(&json).and(Err(io::ErrorKind::Other.into())),
    };
    // A result that could not be printed is lost to the runtime, which has to know it.
    if printed.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn print(json: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{json}")?;
    stdout.flush()
}
