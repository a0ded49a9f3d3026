//! The last lines of the log, kept for bug reports.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex, PoisonError},
};

/// Bounded; an old line gives way to a new one. Clones share the lines.
#[derive(Debug, Clone, Default)]
pub(super) struct Recent(Arc<Mutex<VecDeque<u8>>>);

/// Bytes.
const MAX: usize = 256 * 1024;

// === impl Recent ===

impl Recent {
    pub(super) fn text(&self) -> String {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (first, second) = kept.as_slices();
        String::from_utf8_lossy(&[first, second].concat()).into_owned()
    }
}

impl io::Write for Recent {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(bytes);
        let excess = kept.len().saturating_sub(MAX);
        if excess > 0 {
            // To the end of a line: what is kept begins with a whole one, unless there is no other.
            let end = kept.iter().skip(excess - 1).position(|it| *it == b'\n').map(|at| excess + at);
            let end = end.filter(|end| *end < kept.len());
            kept.drain(..end.unwrap_or(excess));
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn the_last_lines_are_kept_whole_within_the_bound() {
        let recent = Recent::default();
        let mut writer = recent.clone();
        for number in 0..30_000 {
            writeln!(writer, "line {number:05}").unwrap();
        }
        let text = recent.text();
        assert!(text.len() <= 256 * 1024 && text.len() > 256 * 1024 - 16, "{}", text.len());
        assert!(text.starts_with("line ") && text.ends_with("line 29999\n"), "{:?}", text.get(..32));
        writeln!(writer, "{}", "x".repeat(MAX)).unwrap();
        assert_eq!(recent.text().len(), MAX, "one line that is longer than the bound loses its beginning");
    }
}
