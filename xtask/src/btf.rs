//! Makes text in the maps readable: renames the BTF type `i8` to `char`.
//!
//! bpftool prints an array as a string only if its elements are one byte wide and of a type that is named
//! `char` (or is encoded as one); everything else comes out as numbers, see `is_str_array` in bpftool's
//! `btf_dumper.c`. Rust has no type that LLVM describes like that: `c_char` is `i8` or `u8`. So the map types
//! use `i8` for text and for nothing else, and the object's `.BTF` section is rewritten here.
//!
//! Types and strings are referred to by number and by offset, from `.BTF` itself, from `.BTF.ext` and from
//! relocations. None of these may move: the new name is appended to the strings, and the section, now longer,
//! is appended to the file.

use anyhow::{Context as _, Result, bail, ensure};
use object::{
    Endian as _, Endianness, Object as _, ObjectSection as _,
    read::elf::{ElfFile64, FileHeader as _},
};

/// The BTF types and strings of an object: the section, and where its parts are.
#[derive(Debug)]
struct Btf<'a> {
    endian: Endianness,
    bytes: &'a [u8],
    types: Span,
    strings: Span,
}

/// A part of the section.
#[derive(Debug, Clone, Copy)]
struct Span {
    start: usize,
    len: usize,
}

const FROM: &[u8] = b"i8";
const TO: &[u8] = b"char\0";

// `struct btf_header`, in linux/btf.h.
const MAGIC: u16 = 0xeb9f;
const MAGIC_AT: usize = 0;
const HDR_LEN_AT: usize = 4;
const TYPE_OFF_AT: usize = 8;
const TYPE_LEN_AT: usize = 12;
const STR_OFF_AT: usize = 16;
const STR_LEN_AT: usize = 20;

// `struct btf_type`, in linux/btf.h.
const NAME_OFF_AT: usize = 0;
const INFO_AT: usize = 4;
const SIZE_AT: usize = 8;
const TYPE_SIZE: usize = 12;
const KIND_INT: u32 = 1;

// `Elf64_Shdr`.
const SH_OFFSET_AT: usize = 24;
const SH_SIZE_AT: usize = 32;
/// At least as strict as any alignment that LLVM asks for `.BTF`.
const ALIGN: usize = 8;

/// Returns `object`, an ELF file, with the one-byte integer type `i8` named `char`; or nothing, if it has no
/// such type.
///
/// # Errors
/// If `object` is no 64-bit ELF file with a sound `.BTF` section.
pub(crate) fn name_text(object: &[u8]) -> Result<Option<Vec<u8>>> {
    let elf = ElfFile64::<Endianness>::parse(object).context("not a 64-bit ELF file")?;
    let endian = elf.endian();
    let section = elf.section_by_name(".BTF").context("no .BTF section: was it linked with --btf?")?;
    let Some(btf) = Btf::parse(section.data()?, endian)?.renamed()? else {
        return Ok(None);
    };

    let header = elf.elf_header();
    let header_at = usize::from(header.e_shentsize(endian))
        .checked_mul(section.index().0)
        .and_then(|at| at.checked_add(usize::try_from(header.e_shoff(endian)).ok()?))
        .context("the section table is out of reach")?;

    // The old section stays where it was, and nothing refers to it any more: to move what comes after it
    // would mean to adjust every offset in the file.
    let mut out = object.to_vec();
    out.resize(out.len().next_multiple_of(ALIGN), 0);
    let offset = u64::try_from(out.len())?;
    let size = u64::try_from(btf.len())?;
    out.extend(btf);
    patch(&mut out, header_at + SH_OFFSET_AT, endian.write_u64(offset))?;
    patch(&mut out, header_at + SH_SIZE_AT, endian.write_u64(size))?;
    Ok(Some(out))
}

// === impl Btf ===

impl<'a> Btf<'a> {
    fn parse(bytes: &'a [u8], endian: Endianness) -> Result<Self> {
        let magic = endian.read_u16(array(bytes, MAGIC_AT)?);
        ensure!(magic == MAGIC, "the .BTF section starts with {magic:#x} instead of {MAGIC:#x}");
        let word = |at| word(bytes, endian, at);
        let part = |off: usize, len: usize| -> Result<Span> {
            let start = word(HDR_LEN_AT)?.checked_add(off).context("the .BTF header's offsets overflow")?;
            let span = Span { start, len };
            span.of(bytes)?;
            Ok(span)
        };
        let types = part(word(TYPE_OFF_AT)?, word(TYPE_LEN_AT)?)?;
        let strings = part(word(STR_OFF_AT)?, word(STR_LEN_AT)?)?;
        // Elsewhere, a longer string table would run into what follows it.
        ensure!(strings.start + strings.len == bytes.len(), "the strings are not the last part of .BTF");
        Ok(Self { endian, bytes, types, strings })
    }

    /// The section with the new name, or nothing if no type has the old one.
    fn renamed(&self) -> Result<Option<Vec<u8>>> {
        let found = self.find()?;
        if found.is_empty() {
            return Ok(None);
        }
        let name = u32::try_from(self.strings.len)?;
        let str_len = u32::try_from(self.strings.len + TO.len())?;
        let mut out = self.bytes.to_vec();
        out.extend(TO);
        patch(&mut out, STR_LEN_AT, self.endian.write_u32(str_len))?;
        for at in found {
            patch(&mut out, at + NAME_OFF_AT, self.endian.write_u32(name))?;
        }
        Ok(Some(out))
    }

    /// Where in the section the types are that want the new name.
    fn find(&self) -> Result<Vec<usize>> {
        let mut found = Vec::new();
        let mut at = self.types.start;
        let end = self.types.start + self.types.len;
        while at < end {
            let word = |field| word(self.bytes, self.endian, at + field);
            let info = u32::try_from(word(INFO_AT)?)?;
            let kind = (info >> 24) & 0x1f;
            let members = usize::try_from(info & 0xffff)?;
            if kind == KIND_INT && word(SIZE_AT)? == 1 && self.name(word(NAME_OFF_AT)?)? == FROM {
                found.push(at);
            }
            at += TYPE_SIZE + tail(kind, members)?;
        }
        ensure!(at == end, "the last BTF type ends {} bytes after the types", at - end);
        Ok(found)
    }

    fn name(&self, offset: usize) -> Result<&'a [u8]> {
        let strings = self.strings.of(self.bytes)?;
        let rest = strings.get(offset..).with_context(|| format!("no BTF string at {offset}"))?;
        rest.split(|byte| *byte == 0).next().context("split gives one part at least")
    }
}

// === impl Span ===

impl Span {
    fn of(self, bytes: &[u8]) -> Result<&[u8]> {
        let end = self.start.checked_add(self.len).context("the .BTF header's lengths overflow")?;
        bytes.get(self.start..end).with_context(|| {
            format!(".BTF has {} bytes, and its header speaks of {}..{end}", bytes.len(), self.start)
        })
    }
}

/// How many bytes follow a `struct btf_type` of this kind. The numbers are `BTF_KIND_*` of linux/btf.h.
fn tail(kind: u32, members: usize) -> Result<usize> {
    Ok(match kind {
        // PTR, FWD, TYPEDEF, VOLATILE, CONST, RESTRICT, FUNC, FLOAT, TYPE_TAG
        2 | 7..=12 | 16 | 18 => 0,
        // INT, VAR, DECL_TAG
        1 | 14 | 17 => 4,
        // ARRAY
        3 => 12,
        // ENUM, FUNC_PROTO
        6 | 13 => 8 * members,
        // STRUCT, UNION, DATASEC, ENUM64
        4 | 5 | 15 | 19 => 12 * members,
        _ => bail!("unknown kind {kind} of BTF type: has LLVM learnt a new one?"),
    })
}

fn word(bytes: &[u8], endian: Endianness, at: usize) -> Result<usize> {
    Ok(usize::try_from(endian.read_u32(array(bytes, at)?))?)
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N]> {
    let end = at.checked_add(N).context("an offset overflows")?;
    let found = bytes.get(at..end).with_context(|| format!("{} bytes end before {end}", bytes.len()))?;
    Ok(found.try_into()?)
}

fn patch<const N: usize>(bytes: &mut [u8], at: usize, new: [u8; N]) -> Result<()> {
    let end = at.checked_add(N).context("an offset overflows")?;
    bytes.get_mut(at..end).with_context(|| format!("nothing to patch at {at}..{end}"))?.copy_from_slice(&new);
    Ok(())
}

#[cfg(test)]
#[path = "btf_tests.rs"]
mod tests;
