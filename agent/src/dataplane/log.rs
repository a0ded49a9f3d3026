//! Forwards the log records of the eBPF programs to the agent's log.

use std::{io, os::fd::AsRawFd};

use aya::Ebpf;
use aya_log::EbpfLogger;
use tokio::io::{Interest, unix::AsyncFd};

/// The log level of the eBPF programs. At `Off`, the verifier removes the log statements as dead code.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    #[default]
    Off,
    /// Dropped packets.
    Debug,
    /// Every packet.
    Trace,
}

// === impl LogLevel ===

impl LogLevel {
    pub(super) fn as_u8(self) -> u8 {
        match self {
            Self::Off => 0,
            Self::Debug => aya_log::Level::Debug as u8,
            Self::Trace => aya_log::Level::Trace as u8,
        }
    }
}

/// Forwards the records in a background task that never ends. The dataplane works without its log, so
/// failures are only logged.
pub(super) fn follow(ebpf: &mut Ebpf) {
    let logger = match EbpfLogger::init(ebpf) {
        Ok(logger) => logger,
        Err(error) => return tracing::warn!(%error, "cannot open the log of the eBPF programs"),
    };
    let mut logger = match readable(logger) {
        Ok(logger) => logger,
        Err(error) => return tracing::warn!(%error, "cannot wait for the log of the eBPF programs"),
    };
    tokio::spawn(async move {
        while let Ok(mut ready) = logger.readable_mut().await {
            // All records first: after `clear_ready`, only a new record wakes the task.
            ready.get_inner_mut().flush();
            ready.clear_ready();
        }
    });
}

#[expect(unsafe_code, reason = "tokio asks for a promise about the descriptor")]
pub(super) fn readable<T: AsRawFd>(source: T) -> io::Result<AsyncFd<T>> {
    // SAFETY: the result owns the source, which owns the map and its descriptor: the descriptor stays open
    // and the same while it is registered.
    unsafe { AsyncFd::register_with_interest(source, Interest::READABLE) }.map_err(Into::into)
}
