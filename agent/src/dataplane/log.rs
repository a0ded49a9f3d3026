//! What the programs log, brought to the agent's own log.

use std::{io, os::fd::AsRawFd};

use aya::Ebpf;
use aya_log::EbpfLogger;
use tokio::io::{Interest, unix::AsyncFd};

/// How much the programs log. At `Off`, the verifier removes the statements: they cost nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Nothing.
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

/// Forwards the programs' records for ever, in the background. Without them the dataplane works as well, so
/// that a failure here is only said.
pub(super) fn follow(ebpf: &mut Ebpf) {
    let logger = match EbpfLogger::init(ebpf) {
        Ok(logger) => logger,
        Err(error) => return tracing::warn!(%error, "the eBPF programs' log cannot be read"),
    };
    let mut logger = match readable(logger) {
        Ok(logger) => logger,
        Err(error) => return tracing::warn!(%error, "the eBPF programs' log cannot be followed"),
    };
    tokio::spawn(async move {
        while let Ok(mut ready) = logger.readable_mut().await {
            // To the end, before it is called dry: only a new record wakes us again.
            ready.get_inner_mut().flush();
            ready.clear_ready();
        }
    });
}

#[expect(unsafe_code, reason = "tokio asks for a promise about the descriptor")]
fn readable<T: AsRawFd>(logger: T) -> io::Result<AsyncFd<T>> {
    // SAFETY: the logger owns the map, and with it the descriptor, and is owned by the result: the descriptor is
    // neither closed nor another one for as long as it is registered.
    unsafe { AsyncFd::register_with_interest(logger, Interest::READABLE) }.map_err(Into::into)
}
