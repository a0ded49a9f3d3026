//! The header of a file: checksum, kind and layout in one line of text, so that `cat` shows everything.
//!
//! ```text
//! crc32c:1a2b3c4d ferrule-attachment 3
//! {"key":"cluster/0123/eth0",…}
//! ```
//!
//! The checksum covers everything behind it, with the layout: a flipped bit never looks like a later layout.

use super::crc32c::crc32c;

/// A file with a correct checksum.
#[derive(Debug, PartialEq, Eq)]
pub struct Sealed<'a> {
    pub layout: u64,
    pub body: &'a [u8],
}

const CHECKSUM: &str = "crc32c:";

/// Puts the header before a body.
pub fn seal(kind: &str, layout: u64, body: &[u8]) -> Vec<u8> {
    let mut covered = format!(" {kind} {layout}\n").into_bytes();
    covered.extend_from_slice(body);
    let mut sealed = format!("{CHECKSUM}{:08x}", crc32c(&covered)).into_bytes();
    sealed.append(&mut covered);
    sealed
}

/// Checks the header of a file of a kind.
///
/// # Errors
/// Why the file is damaged.
pub fn unseal<'a>(kind: &str, bytes: &'a [u8]) -> Result<Sealed<'a>, &'static str> {
    if bytes.is_empty() {
        return Err("empty");
    }
    let (recorded, covered) = bytes
        .strip_prefix(CHECKSUM.as_bytes())
        .and_then(|rest| rest.split_at_checked(8))
        .ok_or("no checksum")?;
    // Compared as text: of the spellings of a number, only the one that was written is correct.
    if recorded != format!("{:08x}", crc32c(covered)).as_bytes() {
        return Err("wrong checksum");
    }
    let mut parts = covered.splitn(2, |byte| *byte == b'\n');
    let (header, body) = (parts.next().unwrap_or_default(), parts.next().ok_or("no content")?);
    let header = str::from_utf8(header).map_err(|_| "a header that is no text")?;
    let layout = header.strip_prefix(' ').and_then(|it| it.strip_prefix(kind)?.strip_prefix(' '));
    let layout = layout.and_then(|it| it.parse().ok()).ok_or("a header of another kind of file")?;
    Ok(Sealed { layout, body })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_body_is_text_with_a_header_line() {
        let sealed = seal("ferrule-test", 3, b"{}\n");
        assert_eq!(String::from_utf8(sealed.clone()).unwrap(), "crc32c:54831435 ferrule-test 3\n{}\n");
        assert_eq!(unseal("ferrule-test", &sealed), Ok(Sealed { layout: 3, body: b"{}\n" }));
        assert!(unseal("ferrule-other", &sealed).is_err());
    }

    #[test]
    fn every_truncation_every_flipped_bit_and_every_zeroed_rest_is_found() {
        let sealed = seal("ferrule-test", 3, br#"{"key":"cluster/0123/eth0","layout":3}"#);
        for at in 0..sealed.len() {
            assert!(unseal("ferrule-test", &sealed[..at]).is_err(), "cut at {at}");
            for bit in 0..8 {
                let mut flipped = sealed.clone();
                flipped[at] ^= 1 << bit;
                assert!(unseal("ferrule-test", &flipped).is_err(), "bit {bit} of byte {at}");
            }
            let mut zeroed = sealed.clone();
            zeroed[at..].fill(0);
            assert!(unseal("ferrule-test", &zeroed).is_err(), "zeros from {at}");
        }
        let longer = [&sealed[..], b"x"].concat();
        assert!(unseal("ferrule-test", &longer).is_err());
    }
}
