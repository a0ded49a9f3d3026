//! A compressed archive of bounded size.

use anyhow::Context as _;
use flate2::{Compression, write::GzEncoder};

use super::scrub::scrub;

pub(super) struct Archive {
    tar: tar::Builder<GzEncoder<Vec<u8>>>,
    /// Seconds since the Unix epoch.
    now: u64,
    left: usize,
}

/// Bytes of one file, and of all, before compression.
const MAX_FILE: usize = 4 << 20;
const MAX_ALL: usize = 32 << 20;
const DIRECTORY: &str = "ferrule-support";

// === impl Archive ===

impl Archive {
    pub(super) fn new(now: u64) -> anyhow::Result<Self> {
        let tar = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
        Ok(Self { tar, now, left: MAX_ALL })
    }

    /// Adds a text without secrets, cut at the limits.
    pub(super) fn add(&mut self, name: &str, text: &str) -> anyhow::Result<()> {
        let text = bounded(scrub(text), MAX_FILE.min(self.left));
        self.left = self.left.saturating_sub(text.len());
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(self.now);
        let path = format!("{DIRECTORY}/{name}");
        self.tar
            .append_data(&mut header, &path, text.as_bytes())
            .with_context(|| format!("cannot add {name}"))
    }

    pub(super) fn finish(self) -> anyhow::Result<Vec<u8>> {
        let compressed = self.tar.into_inner().context("cannot end the archive")?;
        compressed.finish().context("cannot compress the archive")
    }
}

/// Cut between two characters; the last line says so.
fn bounded(mut text: String, most: usize) -> String {
    if text.len() > most {
        let end = (0..=most).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        let cut = text.len() - end;
        text.truncate(end);
        text += &format!("\n... {cut} bytes more\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn files_and_the_whole_are_bounded_and_cut_where_it_says_so() {
        let mut archive = Archive::new(7).unwrap();
        archive.add("small.txt", "hello http://user:hidden@host/").unwrap();
        for number in 0..9 {
            archive.add(&format!("large-{number}.txt"), &"ä".repeat(MAX_FILE)).unwrap();
        }
        let bytes = archive.finish().unwrap();
        let mut read = tar::Archive::new(flate2::read::GzDecoder::new(bytes.as_slice()));
        let mut files = Vec::new();
        for entry in read.entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            files.push((entry.path().unwrap().display().to_string(), text));
        }
        assert_eq!(files[0], ("ferrule-support/small.txt".to_owned(), "hello http://host/".to_owned()));
        assert!(files[1].1.ends_with(&format!("... {MAX_FILE} bytes more\n")), "{}", files[1].1.len());
        let all: usize = files.iter().map(|it| it.1.len()).sum();
        assert!(files.len() == 10 && all < MAX_ALL + 1024, "{all}");
    }
}
