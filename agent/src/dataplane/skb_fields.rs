//! Places in this kernel's `struct sk_buff`, by its BTF: the programs cannot be relocated as those of C are.

use std::{fs, io};

use agent_common::SkbFields;

use super::btf::{Btf, BtfError};

/// The places are not known.
#[derive(Debug, thiserror::Error)]
pub(super) enum SkbFieldsError {
    #[error("cannot read the kernel's BTF {KERNEL}")]
    Read(#[source] io::Error),
    #[error("cannot find the places of checksums in the kernel's BTF {KERNEL}")]
    Btf(#[from] BtfError),
    #[error("the fields of struct sk_buff lie too far apart: bytes {0} to {1}")]
    Apart(usize, usize),
}

const KERNEL: &str = "/sys/kernel/btf/vmlinux";

/// Reads the places: some milliseconds.
///
/// # Errors
/// If the kernel's BTF lacks them.
pub(super) fn find() -> Result<SkbFields, SkbFieldsError> {
    within(&fs::read(KERNEL).map_err(SkbFieldsError::Read)?)
}

fn within(btf: &[u8]) -> Result<SkbFields, SkbFieldsError> {
    let btf = Btf::parse(btf)?;
    let of = |name| btf.member("sk_buff", name);
    let (ip_summed, csum_start, network_header) =
        (of("ip_summed")?, of("csum_start")? / 8, of("network_header")? / 8);
    let window = csum_start.min(network_header).min(ip_summed / 8);
    let end = csum_start.max(network_header).max(ip_summed / 8) + size_of::<u32>();
    let apart = || SkbFieldsError::Apart(window, end);
    if end - window > SkbFields::WINDOW {
        return Err(apart());
    }
    let place = |place: usize| u16::try_from(place).map_err(|_| apart());
    Ok(SkbFields {
        window: place(window)?,
        ip_summed: place(ip_summed - window * 8)?,
        csum_start: place(csum_start - window)?,
        network_header: place(network_header - window)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_kernels_fields_are_within_one_window() {
        let found = find().unwrap();
        let last = found.csum_start.max(found.network_header).max(found.ip_summed / 8);
        assert!(found.window > 0 && usize::from(last) + 4 <= SkbFields::WINDOW, "{found:?}");
        assert!(found.csum_start.is_multiple_of(4) && found.network_header.is_multiple_of(2), "{found:?}");
    }

    #[test]
    fn what_is_no_btf_names_the_file() {
        let error = within(&[0; 8]).unwrap_err();
        assert!(error.to_string().contains(KERNEL), "{error}");
    }
}
