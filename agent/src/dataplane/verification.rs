//! The verification of the programs, which lasts longer than all else at the start of an agent of another
//! build: meanwhile, the agent reads what its predecessor has left, and writes the maps.

use std::{
    io,
    panic::resume_unwind,
    sync::{Mutex, OnceLock, PoisonError},
    thread::{self, JoinHandle},
};

use super::programs::Programs;

/// Programs that the kernel may still verify, and refuse with an `E`.
pub(super) struct Verification<E> {
    /// Empty until [`Verification::end`].
    programs: OnceLock<Programs>,
    running: Mutex<Option<JoinHandle<Result<Programs, E>>>>,
}

// === impl Verification ===

impl<E: Send + 'static> Verification<E> {
    /// Programs that an earlier agent has loaded.
    pub(super) fn of_earlier(programs: Programs) -> Self {
        Self { programs: programs.into(), running: Mutex::default() }
    }

    /// Loads programs, on a thread of its own.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(super) fn begin(load: impl FnOnce() -> Result<Programs, E> + Send + 'static) -> io::Result<Self> {
        let thread = thread::Builder::new().name("verification".to_owned()).spawn(load)?;
        Ok(Self { programs: OnceLock::new(), running: Mutex::new(Some(thread)) })
    }

    /// Waits until the programs are loaded. An agent that gets an error has to end.
    ///
    /// # Errors
    /// If the kernel has refused a program.
    pub(super) fn end(&self) -> Result<(), E> {
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

impl<E> Drop for Verification<E> {
    /// No thread changes pins after its agent has unlocked them.
    fn drop(&mut self) {
        if let Some(running) = self.running.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = running.join();
        }
    }
}
