//! The daemon `ferrule-agent`: the library plus the embedded eBPF object.
//!
//! Exit codes: 0 after a clean stop, 75 after a stop that leaves work to the next agent, 64 for an invalid
//! configuration, and 1 for any other failure.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser as _;
use ferrule_agent::{
    app::{self, Stopped, UnusableRange},
    config::{Args, Deprecated},
    log,
    memory::{release_when_idle, share_pages},
};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Musl's allocator has one lock for all threads, which cost a fifth of the time of an ADD.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[cfg(not(ebpf_object))]
compile_error!("the eBPF object has not been built yet: run `cargo xtask build-ebpf`");

#[cfg(ebpf_object)]
static EBPF_OBJECT: &[u8] = include_bytes!(env!("FERRULE_EBPF_OBJECT"));
#[cfg(not(ebpf_object))]
static EBPF_OBJECT: &[u8] = &[];

/// `EX_USAGE` in `sysexits.h`.
const USAGE: u8 = 64;
/// `EX_TEMPFAIL` in `sysexits.h`.
const LEFT_WORK: u8 = 75;
/// Room for a connection per accepted call, and the files that calls in flight have open.
const OPEN_FILES: u64 = 8192;
/// More than the eight that CNI calls use; the rest is for start-up and the reaper.
const BLOCKING_THREADS: usize = 16;

fn main() -> ExitCode {
    share_pages();
    let mut args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // Help and version come here too, and go to standard output.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
        }
    };
    if let Some(stay) = args.uninstall() {
        return uninstall(args, stay);
    }
    match args.run_command() {
        Some(Ok(printed)) => {
            print!("{printed}");
            return ExitCode::SUCCESS;
        }
        Some(Err(error)) => {
            eprintln!("ferrule-agent: {error}");
            return ExitCode::from(USAGE);
        }
        None => {}
    }
    let config = match args.into_config() {
        Ok(config) => config,
        Err(error) => {
            eprintln!("ferrule-agent: {error}");
            return ExitCode::from(USAGE);
        }
    };
    let log = match log::start(config.log.format, config.log.filter.clone()) {
        Ok(log) => log,
        Err(error) => {
            eprintln!("ferrule-agent: cannot start the log: {error}");
            return ExitCode::FAILURE;
        }
    };
    for Deprecated { key, successor, since } in &config.deprecated {
        tracing::warn!(key, successor, since, "a setting is deprecated, and a later release refuses it");
    }
    if let Err(error) = raise_file_limit() {
        tracing::warn!(%error, "cannot raise the limit on open files; fewer calls can be served at once");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(BLOCKING_THREADS)
        .on_thread_park(release_when_idle)
        .enable_all()
        .build();
    let outcome = runtime.map_err(anyhow::Error::new).and_then(|runtime| {
        let outcome = runtime.block_on(app::run(config, EBPF_OBJECT, log));
        runtime.shutdown_timeout(app::LAST_CALLS);
        outcome
    });
    match outcome {
        Ok(Stopped::Clean) => ExitCode::SUCCESS,
        Ok(Stopped::LeftWork) => ExitCode::from(LEFT_WORK),
        Err(error) => {
            eprintln!("ferrule-agent: {error:#}");
            let is_usage = error.chain().any(|cause| cause.is::<UnusableRange>());
            if is_usage { ExitCode::from(USAGE) } else { ExitCode::FAILURE }
        }
    }
}

fn uninstall(args: Args, stay: bool) -> ExitCode {
    let (places, kubernetes) = match args.into_places() {
        Ok(settings) => settings,
        Err(error) => {
            eprintln!("ferrule-agent: {error}");
            return ExitCode::from(USAGE);
        }
    };
    if let Err(error) = log::start(places.log.format, places.log.filter.clone()) {
        eprintln!("ferrule-agent: cannot start the log: {error}");
        return ExitCode::FAILURE;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = runtime.map_err(anyhow::Error::new);
    match outcome.and_then(|runtime| runtime.block_on(app::uninstall(places, kubernetes, stay))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ferrule-agent: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Service managers set a soft limit of 1024, for programs that use `select`.
fn raise_file_limit() -> nix::Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, soft.max(OPEN_FILES).min(hard), hard)
}
