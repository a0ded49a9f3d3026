//! Files of the store, read and written as the documentation describes them.

use std::{fs, path::Path};

use anyhow::{Context as _, ensure};
use serde_json::Value;

/// The header and the JSON of a file.
pub(crate) fn read(path: &Path) -> anyhow::Result<(String, Value)> {
    let text = fs::read_to_string(path)?;
    let (header, json) = text.split_once('\n').context("no header")?;
    let (checksum, kind) = header.split_once(' ').context("no checksum")?;
    ensure!(checksum == sum(kind, json), "wrong checksum in {text}");
    Ok((kind.to_owned(), serde_json::from_str(json)?))
}

/// Replaces the file by one with a correct checksum. `kind` is the header without the checksum.
pub(crate) fn write(path: &Path, kind: &str, json: &Value) -> anyhow::Result<()> {
    let json = format!("{json}\n");
    Ok(fs::write(path, format!("{} {kind}\n{json}", sum(kind, &json)))?)
}

/// CRC-32C, bit by bit.
fn sum(kind: &str, json: &str) -> String {
    let mut crc = !0_u32;
    for byte in format!(" {kind}\n{json}").bytes() {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    format!("crc32c:{:08x}", !crc)
}
