//! Long work says how far it is: with `--nocapture`, as it goes on.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Instant,
};

/// Counts the steps of some work, also of several threads.
pub struct Progress {
    all: u32,
    what: &'static str,
    done: AtomicU32,
    start: Instant,
}

/// A line for each of so many parts: 5 %.
const PARTS: u64 = 20;

// === impl Progress ===

impl Progress {
    /// Of `all` things to do.
    #[must_use]
    pub fn of(all: u32, what: &'static str) -> Self {
        Self { all, what, done: AtomicU32::new(0), start: Instant::now() }
    }

    /// One more thing is done. Prints a line if another part of the whole is.
    pub fn step(&self) {
        if let Some(line) = self.line(self.done.fetch_add(1, Ordering::Relaxed) + 1) {
            println!("{line} after {} s", self.start.elapsed().as_secs());
        }
    }

    fn line(&self, done: u32) -> Option<String> {
        let part = |done: u32| (u64::from(done) * PARTS).checked_div(self.all.into());
        let percent = part(done)? * 100 / PARTS;
        (part(done) > part(done.saturating_sub(1)))
            .then(|| format!("{percent} %: {done} of {} {}", self.all, self.what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_each_twentieth_and_the_end() {
        let of = |all: u32| {
            let progress = Progress::of(all, "pods");
            (1..=all).filter_map(|done| progress.line(done)).collect::<Vec<_>>()
        };
        let lines = of(1500);
        assert_eq!((lines.len(), lines[0].as_str()), (20, "5 %: 75 of 1500 pods"));
        assert_eq!(lines[19], "100 %: 1500 of 1500 pods");
        assert_eq!(of(3), ["30 %: 1 of 3 pods", "65 %: 2 of 3 pods", "100 %: 3 of 3 pods"]);
        assert!(of(0).is_empty());
    }
}
