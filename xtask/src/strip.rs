//! Takes the debug information out of the eBPF object. The linker has made the BTF from it, and nothing else
//! reads it; but it is six sevenths of the object, which each agent contains, and hashes at each start.

use anyhow::{Context as _, Result};
use object::{
    build::elf::{Builder, SectionData},
    elf::SHT_STRTAB,
};

/// Names of sections with debug information, and of those with its relocations, begin so.
const DEBUG: [&[u8]; 2] = [b".debug_", b".rel.debug_"];
const NAMES: &str = ".shstrtab";

/// Returns `object`, an ELF file, without debug information.
///
/// # Errors
/// If the file is damaged.
pub(crate) fn debug_information(object: &[u8]) -> Result<Vec<u8>> {
    let mut elf = Builder::read64(object).context("not a 64-bit ELF file")?;
    for section in &mut elf.sections {
        section.delete = DEBUG.iter().any(|prefix| section.name.as_slice().starts_with(prefix));
    }
    elf.delete_orphans();
    // LLVM keeps the names of sections among those of symbols, and the builder does not.
    if !elf.sections.iter().any(|it| matches!(it.data, SectionData::SectionString)) {
        let names = elf.sections.add();
        (names.name, names.sh_type) = (NAMES.into(), SHT_STRTAB);
        names.data = SectionData::SectionString;
    }
    let mut stripped = Vec::new();
    elf.write(&mut stripped)?;
    Ok(stripped)
}

#[cfg(test)]
mod tests {
    use object::{
        Endianness, Object as _, ObjectSection as _,
        elf::{EM_BPF, ET_REL, SHT_PROGBITS},
        read::elf::ElfFile64,
    };

    use super::*;

    const SECTIONS: [(&str, &[u8]); 4] =
        [(".text", b"code"), (".debug_info", b"debug"), (".BTF", b"types"), (".debug_str", b"text")];

    fn object() -> Vec<u8> {
        let mut elf = Builder::new(Endianness::Little, true);
        (elf.header.e_type, elf.header.e_machine) = (ET_REL, EM_BPF);
        for (name, data) in SECTIONS {
            let section = elf.sections.add();
            (section.name, section.sh_type, section.sh_addralign) = (name.into(), SHT_PROGBITS, 1);
            section.data = SectionData::Data(data.into());
        }
        let names = elf.sections.add();
        (names.name, names.data) = (NAMES.into(), SectionData::SectionString);
        let mut object = Vec::new();
        elf.write(&mut object).unwrap();
        object
    }

    #[test]
    fn everything_stays_but_the_debug_information() {
        let stripped = debug_information(&object()).unwrap();
        let elf = ElfFile64::<Endianness>::parse(&*stripped).unwrap();
        let data = |name: &str| elf.section_by_name(name).map(|it| it.data().unwrap());
        for (name, bytes) in SECTIONS {
            let expected = (!name.starts_with(".debug")).then_some(bytes);
            assert_eq!(data(name), expected, "{name}");
        }
        assert_eq!(debug_information(&stripped).unwrap(), stripped, "twice is once");
    }

    #[test]
    fn what_is_no_object_is_an_error() {
        assert!(debug_information(b"text").is_err());
        let object = object();
        assert!(debug_information(&object[..object.len() / 2]).is_err());
    }
}
