//! A walk over the keys of a map, in short steps, for those that are not wanted.

use std::os::fd::AsFd as _;

use aya::{
    Pod,
    maps::{MapData, MapError},
};

use crate::dataplane::{bpf, maps::table::Pressure};

/// How the rows of a map deviate, and a walk over its keys for those that are not wanted.
pub(super) struct Walk<K> {
    pub(super) counts: Counts,
    /// The key to go on behind.
    last: Option<K>,
    walked: usize,
    is_over: bool,
}

/// How many rows deviate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) missing: usize,
    pub(super) wrong: usize,
    pub(super) stray: usize,
}

/// Rows of a step. A step takes about 0.2 ms, which a change may have to wait for.
pub(super) const STEP: usize = 128;

// === impl Walk ===

impl<K: Pod> Walk<K> {
    /// Goes on over the keys of a map. Returns those that are not wanted.
    pub(super) fn step(
        &mut self,
        map: &MapData,
        pressure: &Pressure,
        is_wanted: impl Fn(&K) -> bool,
        removes: bool,
    ) -> Result<Vec<K>, MapError> {
        let (mut stray, mut last) = (Vec::new(), self.last);
        for _ in 0..STEP {
            last = bpf::next_key(map.fd().as_fd(), last.as_ref()).map_err(MapError::IoError)?;
            let Some(key) = last else {
                pressure.observe(self.walked - if removes { self.counts.stray } else { 0 });
                self.is_over = true;
                break;
            };
            self.walked += 1;
            let is_wanted = is_wanted(&key);
            if !is_wanted {
                self.counts.stray += 1;
                stray.push(key);
            }
            // A walk begins again behind a key that is gone.
            if is_wanted || !removes {
                self.last = Some(key);
            }
        }
        self.is_over |= self.walked > pressure.walk_limit();
        Ok(stray)
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }
}

impl<K> Default for Walk<K> {
    fn default() -> Self {
        Self { counts: Counts::default(), last: None, walked: 0, is_over: false }
    }
}
