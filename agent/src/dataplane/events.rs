//! `EVENTS`: the records of the programs, read as they come.

use std::{io, path::Path};

use agent_common::event::Event;
use aya::maps::{MapData, RingBuf};
use tokio::{io::unix::AsyncFd, task::yield_now};

use super::{
    log::readable,
    maps::{EVENTS, MapFailure},
};

/// Reads the records of `EVENTS`. A ring buffer has one reader.
pub struct EventReader {
    ring: AsyncFd<RingBuf<MapData>>,
}

/// Records after which other tasks get their turn.
const TURN: usize = 256;

// === impl EventReader ===

impl EventReader {
    /// # Errors
    /// If the map cannot be opened, mapped or waited for.
    pub(super) fn open(pins: &Path) -> Result<Self, MapFailure> {
        let ring = EVENTS.open_pin(pins)?.try_into().map_err(EVENTS.failure("map"))?;
        let wait = |error| EVENTS.failure("wait for")(aya::maps::MapError::IoError(error));
        Ok(Self { ring: readable(ring).map_err(wait)? })
    }

    /// Reads all records, in order, also those that were written before; `None` is one of an unknown kind or
    /// size. Returns only on a failure.
    pub async fn run(mut self, mut on_event: impl FnMut(Option<Event>)) -> io::Error {
        loop {
            let mut ready = match self.ring.readable_mut().await {
                Ok(ready) => ready,
                Err(error) => return error,
            };
            let mut read = 0;
            while read < TURN
                && let Some(record) = ready.get_inner_mut().next()
            {
                on_event(Event::decode(&record));
                read += 1;
            }
            if read == TURN {
                yield_now().await;
            } else {
                // All records first: after this, only a new record wakes the task.
                ready.clear_ready();
            }
        }
    }
}
