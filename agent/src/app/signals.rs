//! The signals that stop the agent.

use tokio::signal::unix::{Signal, SignalKind, signal};

pub(super) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
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
