//! Tests of the renaming, on objects made by hand: both byte orders, and damage of every kind.

use super::*;

const LITTLE: Endianness = Endianness::Little;
const BIG: Endianness = Endianness::Big;

const KIND_ARRAY: u32 = 3;
const KIND_STRUCT: u32 = 4;

#[test]
fn the_type_is_renamed_and_nothing_else() {
    for endian in [LITTLE, BIG] {
        let before = elf(endian, &sample(endian, "i8"));
        let after = name_text(&before).unwrap().expect("it has an i8");
        assert_eq!(names(&before), ["i8", "u8", "i8", "", "Vif"]);
        assert_eq!(names(&after), ["char", "u8", "i8", "", "Vif"], "{endian:?}: the 4-byte i8 is not text");
    }
}

#[test]
fn only_the_section_header_changes_in_what_was_there() {
    let before = elf(LITTLE, &sample(LITTLE, "i8"));
    let after = name_text(&before).unwrap().unwrap();
    let changed: Vec<usize> = (0..before.len()).filter(|at| before[*at] != after[*at]).collect();
    let header = before.len() - SECTION_HEADER;
    assert!(changed.iter().all(|at| (header + 24..header + 40).contains(at)), "{changed:?}");
}

#[test]
fn strings_keep_their_offsets() {
    let before = sample(LITTLE, "i8");
    let object = name_text(&elf(LITTLE, &before)).unwrap().unwrap();
    let after = section(&object);
    assert_eq!(after.len(), before.len() + TO.len());
    assert!(after.ends_with(b"\0Vif\0char\0"));
}

#[test]
fn an_object_without_text_is_left_alone() {
    assert_eq!(name_text(&elf(LITTLE, &sample(LITTLE, "i9"))).unwrap(), None);
    let done = name_text(&elf(LITTLE, &sample(LITTLE, "i8"))).unwrap().unwrap();
    assert_eq!(name_text(&done).unwrap(), None, "twice is once");
}

#[test]
fn an_object_without_btf_is_refused() {
    let mut object = elf(LITTLE, &sample(LITTLE, "i8"));
    let at = object.windows(5).position(|window| window == b".BTF\0").unwrap();
    object[at + 1] = b'X';
    assert!(name_text(&object).unwrap_err().to_string().contains("no .BTF section"));
}

#[test]
fn damage_is_an_error_and_no_panic() {
    let good = sample(LITTLE, "i8");
    for at in 0..good.len() {
        for value in [0x00, 0x01, 0x7f, 0x80, 0xff] {
            let mut bad = good.clone();
            bad[at] = value;
            // Whatever it says, it says it without a panic.
            let _ = name_text(&elf(LITTLE, &bad));
        }
        assert!(name_text(&elf(LITTLE, &good[..at])).is_err(), "cut at {at}");
    }
    let object = elf(LITTLE, &good);
    for at in 0..object.len() {
        let _ = name_text(&object[..at]);
        let mut bad = object.clone();
        bad[at] = 0xff;
        let _ = name_text(&bad);
    }
}

#[test]
fn unknown_kinds_are_named() {
    let unknown = btf(LITTLE, &[ty(LITTLE, 0, 31, 0, 0, &[])], "\0");
    assert!(name_text(&elf(LITTLE, &unknown)).unwrap_err().to_string().contains("unknown kind 31"));
}

/// What a map with a text field looks like, in short, its text type being `text`: two integers, one of them
/// text, a wider one of the same name, an array and a struct.
fn sample(endian: Endianness, text: &str) -> Vec<u8> {
    let strings = format!("\0{text}\0u8\0Vif\0");
    let types = [
        ty(endian, 1, KIND_INT, 0, 1, &[0x0100_0008]),
        ty(endian, 4, KIND_INT, 0, 1, &[8]),
        ty(endian, 1, KIND_INT, 0, 4, &[32]),
        ty(endian, 0, KIND_ARRAY, 0, 0, &[1, 2, 64]),
        ty(endian, 7, KIND_STRUCT, 2, 68, &[4, 4, 0, 7, 2, 512]),
    ];
    btf(endian, &types, &strings)
}

fn ty(endian: Endianness, name: u32, kind: u32, members: u32, size: u32, tail: &[u32]) -> Vec<u8> {
    let words = [name, kind << 24 | members, size];
    words.iter().chain(tail).flat_map(|word| endian.write_u32(*word)).collect()
}

fn btf(endian: Endianness, types: &[Vec<u8>], strings: &str) -> Vec<u8> {
    let types = types.concat();
    let type_len = u32::try_from(types.len()).unwrap();
    let mut out = endian.write_u16(MAGIC).to_vec();
    out.extend([1, 0]);
    for word in [24, 0, type_len, type_len, u32::try_from(strings.len()).unwrap()] {
        out.extend(endian.write_u32(word));
    }
    out.extend(types);
    out.extend(strings.as_bytes());
    out
}

const ELF_HEADER: usize = 64;
const SECTION_HEADER: usize = 64;
const SECTION_NAMES: &[u8] = b"\0.shstrtab\0.BTF\0";

/// The smallest ELF file that has a `.BTF` section: header, `.shstrtab`, `.BTF`, section table.
fn elf(endian: Endianness, btf: &[u8]) -> Vec<u8> {
    let u16 = |value| endian.write_u16(value);
    let btf_at = ELF_HEADER + SECTION_NAMES.len();
    let table_at = (btf_at + btf.len()).next_multiple_of(8);

    let data = if endian == LITTLE { 1 } else { 2 };
    let mut out = vec![0x7f, b'E', b'L', b'F', 2, data, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    out.extend([u16(1), u16(247)].concat()); // ET_REL, EM_BPF
    out.extend(endian.write_u32(1));
    for value in [0, 0, table_at as u64] {
        out.extend(endian.write_u64(value)); // e_entry, e_phoff, e_shoff
    }
    out.extend(endian.write_u32(0));
    out.extend([u16(64), u16(0), u16(0), u16(64), u16(3), u16(1)].concat());
    out.extend(SECTION_NAMES);
    out.extend(btf);
    out.resize(table_at, 0);
    let sections = [(0, 0, 0, 0), (1, 3, ELF_HEADER, SECTION_NAMES.len()), (11, 1, btf_at, btf.len())];
    for (name, kind, offset, size) in sections {
        out.extend([endian.write_u32(name), endian.write_u32(kind)].concat());
        for value in [0, 0, offset as u64, size as u64, 0, 1, 0] {
            out.extend(endian.write_u64(value)); // sh_link and sh_info are one of them
        }
    }
    out
}

fn section(object: &[u8]) -> Vec<u8> {
    let elf = ElfFile64::<Endianness>::parse(object).unwrap();
    elf.section_by_name(".BTF").unwrap().data().unwrap().to_vec()
}

/// The names of the types of [`sample`], in order.
fn names(object: &[u8]) -> Vec<String> {
    let bytes = section(object);
    let endian = ElfFile64::<Endianness>::parse(object).unwrap().endian();
    let btf = Btf::parse(&bytes, endian).unwrap();
    let at = |index: usize| btf.types.start + [0, 16, 32, 48, 72][index];
    (0..5)
        .map(|index| btf.name(word(&bytes, endian, at(index)).unwrap()).unwrap())
        .map(|name| String::from_utf8(name.to_vec()).unwrap())
        .collect()
}
