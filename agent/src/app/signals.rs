//! The signals that stop the agent, and the one that switches its log.

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::log;

pub(super) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

/// Registers the handler of SIGUSR1, which the returned task serves.
///
/// # Errors
/// If the kernel refuses.
pub(super) fn switch_log(log: log::Control) -> anyhow::Result<impl Future<Output = ()>> {
    let mut switch = signal(SignalKind::user_defined1()).context("cannot handle SIGUSR1")?;
    Ok(async move {
        while switch.recv().await.is_some() {
            log.toggle();
        }
    })
}

// === impl StopSignals ===

impl StopSignals {
    /// Registers the handlers; from then on, a signal is remembered.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next signal, and returns its name.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
