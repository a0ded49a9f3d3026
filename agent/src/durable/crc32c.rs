//! CRC-32C (Castagnoli), as in iSCSI and ext4: finds every error of up to three bits in a record's length.

/// One entry for each byte; the reflected polynomial 0x1EDC6F41.
const TABLE: [u32; 256] = table();

/// The checksum of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        let [low, ..] = crc.to_le_bytes();
        TABLE.get(usize::from(low ^ byte)).copied().unwrap_or_default() ^ (crc >> 8)
    };
    !bytes.iter().fold(!0, step)
}

#[expect(clippy::indexing_slicing, reason = "evaluated by the compiler, with an index below 256")]
const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut bit) = (byte as u32, 0);
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::crc32c;

    #[test]
    fn agrees_with_published_values() {
        // RFC 3720, B.4, and the usual check value.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(b""), 0);
    }
}
