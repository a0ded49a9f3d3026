//! Field names, offsets and sizes of a type, from BTF.
//!
//! The format is described in `Documentation/bpf/btf.rst` and `include/uapi/linux/btf.h` of the kernel; byte
//! order is the host's. Only kinds that keys and values of maps can contain are understood.

use std::fmt;

/// BTF in the format of a `.BTF` section.
#[derive(Debug)]
pub(super) struct Btf<'a> {
    /// Type ID `n` is at index `n - 1`; ID 0 is `void`.
    types: Vec<&'a [u8]>,
    strings: &'a [u8],
}

/// A field that is not a struct, such as `egress.packets`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Field {
    pub(super) path: String,
    /// Bytes from the start of the outermost type.
    pub(super) offset: usize,
    /// Bytes.
    pub(super) size: usize,
}

/// Invalid or unsupported BTF.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BtfError {
    #[error("BTF is truncated or inconsistent")]
    Malformed,
    #[error("unsupported BTF kind {0}")]
    Kind(u32),
    #[error("BTF has no struct {of} with a member {name}")]
    Missing { of: &'static str, name: &'static str },
}

const INT: u32 = 1;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
/// More than any real type needs; bounds the recursion over malformed BTF.
const MAX_DEPTH: usize = 16;

// Offsets in `struct btf_header`.
const HEADER_LEN: usize = 4;
const TYPES: [usize; 2] = [8, 12];
const STRINGS: [usize; 2] = [16, 20];
// `struct btf_type`: name, info, size or type.
const TYPE_LEN: usize = 12;
const INFO: usize = 4;
const SIZE_OR_TYPE: usize = 8;
/// `struct btf_member`: name, type, offset in bits.
const MEMBER_LEN: usize = 12;

// === impl Btf ===

impl<'a> Btf<'a> {
    /// # Errors
    /// If `bytes` is not valid BTF.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, BtfError> {
        let header = word(bytes, HEADER_LEN)?;
        let section = |[offset, len]: [usize; 2]| {
            let start = header.checked_add(word(bytes, offset)?).ok_or(BtfError::Malformed)?;
            let rest = bytes.get(start..).ok_or(BtfError::Malformed)?;
            rest.get(..word(bytes, len)?).ok_or(BtfError::Malformed)
        };
        let (mut rest, strings) = (section(TYPES)?, section(STRINGS)?);
        let mut types = Vec::new();
        while !rest.is_empty() {
            let len = TYPE_LEN + extra_len(rest)?;
            let (one, others) = rest.split_at_checked(len).ok_or(BtfError::Malformed)?;
            types.push(one);
            rest = others;
        }
        Ok(Self { types, strings })
    }

    /// The fields of a type, in order; nested structs are flattened.
    ///
    /// # Errors
    /// If the type is missing or contains an unsupported kind.
    pub(super) fn fields(&self, id: usize) -> Result<Vec<Field>, BtfError> {
        let mut fields = Vec::new();
        self.flatten(id, "", 0, MAX_DEPTH, &mut fields)?;
        Ok(fields)
    }

    /// The place of a member of a struct, in bits; the members of its anonymous parts are its own.
    ///
    /// # Errors
    /// If no struct of this name has the member.
    pub(super) fn member(&self, of: &'static str, name: &'static str) -> Result<usize, BtfError> {
        let is_it = |it: &&&[u8]| kind(it) == Ok(STRUCT) && self.is_named(it, of);
        let mut found = self.types.iter().filter(is_it).map(|it| self.member_of(it, name, MAX_DEPTH));
        found.find_map(Result::transpose).unwrap_or(Err(BtfError::Missing { of, name }))
    }

    fn member_of(&self, of: &[u8], name: &str, depth: usize) -> Result<Option<usize>, BtfError> {
        let depth = depth.checked_sub(1).ok_or(BtfError::Malformed)?;
        // Then a member's offset has the width of a bit field in its upper bits.
        let has_bit_fields = word(of, INFO)? >> 31 != 0;
        for member in of.get(TYPE_LEN..).unwrap_or_default().as_chunks::<MEMBER_LEN>().0 {
            let bits = word(member, 8)? & if has_bit_fields { 0xff_ffff } else { usize::MAX };
            if self.is_named(member, name) {
                return Ok(Some(bits));
            }
            if word(member, 0)? != 0 {
                continue;
            }
            let part = self.unqualified(word(member, 4)?)?;
            if matches!(kind(part)?, STRUCT | UNION)
                && let Some(inside) = self.member_of(part, name, depth)?
            {
                return Ok(Some(bits.checked_add(inside).ok_or(BtfError::Malformed)?));
            }
        }
        Ok(None)
    }

    /// Whether a type or member has a name.
    fn is_named(&self, it: &[u8], name: &str) -> bool {
        let text = word(it, 0).ok().and_then(|at| self.strings.get(at..));
        text.is_some_and(|text| {
            text.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&0))
        })
    }

    fn flatten(
        &self,
        id: usize,
        path: &str,
        offset: usize,
        depth: usize,
        fields: &mut Vec<Field>,
    ) -> Result<(), BtfError> {
        let depth = depth.checked_sub(1).ok_or(BtfError::Malformed)?;
        let found = self.unqualified(id)?;
        if kind(found)? != STRUCT {
            fields.push(Field { path: path.to_owned(), offset, size: self.size(id, depth)? });
            return Ok(());
        }
        for member in found.get(TYPE_LEN..).unwrap_or_default().as_chunks::<MEMBER_LEN>().0 {
            let name = self.string(word(member, 0)?)?;
            let path = if path.is_empty() { name } else { format!("{path}.{name}") };
            let bits = word(member, 8)?;
            let offset = offset.checked_add(bits / 8).ok_or(BtfError::Malformed)?;
            self.flatten(word(member, 4)?, &path, offset, depth, fields)?;
        }
        Ok(())
    }

    /// Bytes.
    fn size(&self, id: usize, depth: usize) -> Result<usize, BtfError> {
        let depth = depth.checked_sub(1).ok_or(BtfError::Malformed)?;
        let found = self.unqualified(id)?;
        match kind(found)? {
            INT | STRUCT => word(found, SIZE_OR_TYPE),
            ARRAY => {
                let (element, length) = (word(found, TYPE_LEN)?, word(found, TYPE_LEN + 8)?);
                self.size(element, depth)?.checked_mul(length).ok_or(BtfError::Malformed)
            }
            other => Err(BtfError::Kind(other)),
        }
    }

    /// The type behind typedefs and qualifiers.
    fn unqualified(&self, mut id: usize) -> Result<&'a [u8], BtfError> {
        for _ in 0..MAX_DEPTH {
            let index = id.checked_sub(1).ok_or(BtfError::Malformed)?;
            let found = self.types.get(index).ok_or(BtfError::Malformed)?;
            match kind(found)? {
                // TYPEDEF, VOLATILE, CONST, RESTRICT
                8..=11 => id = word(found, SIZE_OR_TYPE)?,
                _ => return Ok(found),
            }
        }
        Err(BtfError::Malformed)
    }

    fn string(&self, offset: usize) -> Result<String, BtfError> {
        let rest = self.strings.get(offset..).ok_or(BtfError::Malformed)?;
        let name = rest.split(|byte| *byte == 0).next().unwrap_or_default();
        Ok(String::from_utf8_lossy(name).into_owned())
    }
}

// === impl Field ===

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "field {:?} of {} bytes at offset {}", self.path, self.size, self.offset)
    }
}

fn kind(found: &[u8]) -> Result<u32, BtfError> {
    let info = word(found, INFO)?;
    Ok(u32::try_from((info >> 24) & 0x1f).unwrap_or_default())
}

/// Bytes that follow a `struct btf_type`.
fn extra_len(found: &[u8]) -> Result<usize, BtfError> {
    let members = word(found, INFO)? & 0xffff;
    Ok(match kind(found)? {
        // PTR, FWD, TYPEDEF, VOLATILE, CONST, RESTRICT, FUNC, FLOAT, TYPE_TAG
        2 | 7..=12 | 16 | 18 => 0,
        // INT, VAR, DECL_TAG
        INT | 14 | 17 => 4,
        ARRAY => 12,
        // ENUM, FUNC_PROTO
        6 | 13 => 8 * members,
        // STRUCT, UNION, DATASEC, ENUM64
        STRUCT | UNION | 15 | 19 => 12 * members,
        other => return Err(BtfError::Kind(other)),
    })
}

fn word(bytes: &[u8], at: usize) -> Result<usize, BtfError> {
    let word = at.checked_add(4).and_then(|end| bytes.get(at..end)?.try_into().ok());
    let word = word.map(u32::from_ne_bytes).ok_or(BtfError::Malformed)?;
    usize::try_from(word).map_err(|_| BtfError::Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `struct outer { inner pair; u8 bytes[6]; }` with `struct inner { u32 first; u32 second; }`, as BTF.
    fn sample() -> Vec<u8> {
        let strings = b"\0u32\0u8\0first\0second\0pair\0bytes\0";
        let name = |text: &str| {
            let wanted = format!("\0{text}\0");
            let found = strings.windows(wanted.len()).position(|it| it == wanted.as_bytes()).unwrap();
            u32::try_from(found).unwrap() + 1
        };
        let info = |kind: u32, members: u32| (kind << 24) | members;
        let types: Vec<u32> = [
            // 1: u32, 2: u8
            vec![name("u32"), info(INT, 0), 4, 32],
            vec![name("u8"), info(INT, 0), 1, 8],
            // 3: inner
            vec![0, info(STRUCT, 2), 8, name("first"), 1, 0, name("second"), 1, 32],
            // 4: u8[6]
            vec![0, info(ARRAY, 0), 0, 2, 1, 6],
            // 5: outer
            vec![0, info(STRUCT, 2), 16, name("pair"), 3, 0, name("bytes"), 4, 64],
            // 6: const outer, 7: PTR to outer
            vec![0, info(10, 0), 5],
            vec![0, info(2, 0), 5],
        ]
        .concat();
        let types: Vec<u8> = types.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let (types_len, strings_len) =
            (u32::try_from(types.len()).unwrap(), u32::try_from(strings.len()).unwrap());
        let header = [24, 0, types_len, types_len, strings_len];
        let mut bytes = vec![0x9f, 0xeb, 1, 0];
        bytes.extend(header.iter().flat_map(|word| word.to_ne_bytes()));
        bytes.extend(types);
        bytes.extend(strings);
        bytes
    }

    #[test]
    fn nested_structs_are_flattened_and_arrays_are_one_field() {
        let bytes = sample();
        let btf = Btf::parse(&bytes).unwrap();
        let field = |path: &str, offset, size| Field { path: path.to_owned(), offset, size };
        let expected = [field("pair.first", 0, 4), field("pair.second", 4, 4), field("bytes", 8, 6)];
        assert_eq!(btf.fields(5).unwrap(), expected);
        assert_eq!(btf.fields(6).unwrap(), expected, "qualifiers do not matter");
        assert_eq!(btf.fields(1).unwrap(), [field("", 0, 4)]);
    }

    #[test]
    fn malformed_btf_is_an_error() {
        let bytes = sample();
        let btf = Btf::parse(&bytes).unwrap();
        assert_eq!(btf.fields(0), Err(BtfError::Malformed));
        assert_eq!(btf.fields(8), Err(BtfError::Malformed));
        assert_eq!(btf.fields(7), Err(BtfError::Kind(2)));
        for len in 0..bytes.len() {
            assert!(Btf::parse(&bytes[..len]).is_err(), "{len} bytes");
        }
    }
}
