//! Manifests in files.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use anyhow::{Context as _, bail};

/// Most values in a YAML manifest for each 16 bytes of the largest one: in memory, a value is many times
/// larger than its text.
const BYTES_OF_VALUE: usize = 16;
/// Most nodes of a YAML manifest that aliases may repeat.
const MAX_REPLAYED: usize = 10_000;

/// The text of a file; `-` is standard input.
pub(crate) fn read(file: &Path, max_bytes: usize) -> anyhow::Result<String> {
    let input: Box<dyn Read> = if file.as_os_str() == "-" {
        Box::new(io::stdin().lock())
    } else {
        Box::new(File::open(file).with_context(|| format!("cannot open {}", file.display()))?)
    };
    read_bounded(input, max_bytes).with_context(|| format!("cannot read {}", file.display()))
}

/// Whether a text is JSON, whose parser has better errors than that of YAML.
pub(crate) fn is_json(text: &str) -> bool {
    text.trim_start().starts_with('{')
}

/// The documents of a text in YAML.
pub(crate) fn yaml(text: &str, max_bytes: usize) -> anyhow::Result<Vec<serde_json::Value>> {
    let max_values = max_bytes / BYTES_OF_VALUE;
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: 3 * max_values,
            max_nodes: max_values,
            max_total_scalar_bytes: max_bytes,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_REPLAYED },
        with_snippet: false,
    };
    serde_saphyr::from_multiple_with_options(text, options).context("the input is not YAML")
}

fn read_bounded(input: impl Read, max_bytes: usize) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    // One byte above the limit detects longer input.
    input.take(max_bytes as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > max_bytes {
        bail!("input is longer than {max_bytes} bytes");
    }
    String::from_utf8(bytes).context("input is not UTF-8")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oversized_and_non_utf8_input_is_refused() {
        let error = read_bounded(io::repeat(b' '), 1 << 24).unwrap_err().to_string();
        assert_eq!(error, "input is longer than 16777216 bytes");
        assert_eq!(read_bounded(&b"\xff"[..], 9).unwrap_err().to_string(), "input is not UTF-8");
        assert!(read(Path::new("/nonexistent"), 9).unwrap_err().to_string().contains("/nonexistent"));
    }
}
