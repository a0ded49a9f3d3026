//! The verification of the programs, which lasts longer than all else at the start of an agent of another
//! build: meanwhile, the agent reads what its predecessor has left, and writes the maps.

use std::{
    panic::resume_unwind,
    sync::{Mutex, OnceLock, PoisonError},
    thread::{self, JoinHandle},
};

use super::{loading::LoadError, programs::Programs};

/// Programs that the kernel may still verify.
pub(super) struct Verification {
    /// Empty until [`Verification::end`].
    programs: OnceLock<Programs>,
    running: Mutex<Option<JoinHandle<Result<Programs, LoadError>>>>,
}

// === impl Verification ===

impl Verification {
    /// Programs that an earlier agent has loaded.
    pub(super) fn of_earlier(programs: Programs) -> Self {
        Self { programs: programs.into(), running: Mutex::default() }
    }

    /// Loads programs, on a thread of its own.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(super) fn begin(
        load: impl FnOnce() -> Result<Programs, LoadError> + Send + 'static,
    ) -> Result<Self, LoadError> {
        let thread = thread::Builder::new().name("verification".to_owned()).spawn(load);
        let running = Mutex::new(Some(thread.map_err(LoadError::Thread)?));
        Ok(Self { programs: OnceLock::new(), running })
    }

    /// Waits until the programs are loaded. Idempotent.
    ///
    /// # Errors
    /// If the kernel has refused a program, on the first call.
    pub(super) fn end(&self) -> Result<(), LoadError> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(running) = running {
            let programs = running.join().unwrap_or_else(|panic| resume_unwind(panic))?;
            let _ = self.programs.set(programs);
        }
        Ok(())
    }

    /// The programs. Waits for [`Verification::end`]: an agent that has not called it has no use for them.
    pub(super) fn programs(&self) -> &Programs {
        self.programs.wait()
    }
}
