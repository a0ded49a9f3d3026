//! `ferrule`, the CNI plugin: a thin shim between the container runtime and the agent.
//!
//! The shim validates the runtime's input (the [environment](env) and the [network configuration](netconf) on
//! standard input), sends the request to the agent over a unix socket, and prints the [result](result) in the
//! requested CNI version. A runtime starts the shim for every call, so binary size and work before the call
//! are start-up time.

#![forbid(unsafe_code)]

mod agentless;
mod client;
mod cni_args;
mod env;
mod error;
mod executor;
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

/// Replaces musl's allocator, which makes a system call for most allocations.
#[global_allocator]
static ALLOCATOR: GlobalDlmalloc = GlobalDlmalloc;

fn main() -> ExitCode {
    // Without JSON on standard output, a runtime has no message for the user.
    panic::set_hook(Box::new(|info| {
        let details = "this is a bug in ferrule: please report it";
        let error = CniError::new(Code::Internal, format!("the plugin panicked: {info}"), details);
        let _ = print(&error.to_json(CniVersion::NEWEST.as_str()));
        exit(1);
    }));

    // poll(2) does not see data in the buffer of `io::Stdin`.
    let input = match io::stdin().as_fd().try_clone_to_owned() {
        Ok(fd) => File::from(fd),
        Err(e) => {
            let error = CniError::new(Code::IoFailure, format!("opening standard input: {e}"), "");
            let _ = print(&error.to_json(CniVersion::NEWEST.as_str()));
            return ExitCode::FAILURE;
        }
    };
    let env = |name: &str| std::env::var_os(name);
    let agent = |socket: &str, request| client::call(socket, request, Trace::from_env(&env));
    let printed = match run::run(&env, input, agent) {
        Outcome::About => {
            let name = concat!("ferrule ", env!("CARGO_PKG_VERSION"));
            let _ = writeln!(
                io::stderr(),
                "{name}: the CNI plugin of Ferrule, to be started by a container runtime\nCNI versions: {}",
                version::Supported
            );
            Ok(())
        }
        Outcome::Done(None) => Ok(()),
        Outcome::Done(Some(json)) => print(&json),
        Outcome::Failed(json) => print(&json).and(Err(io::ErrorKind::Other.into())),
    };
    // A result that could not be printed is a failure: the runtime did not receive it.
    if printed.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn print(json: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{json}")?;
    stdout.flush()
}
