//! What is in an eBPF object, as a table.

use std::fmt;

use anyhow::{Context as _, Result};
use object::{
    Endianness, Object as _, ObjectSection as _, ObjectSymbol as _, SymbolKind, read::elf::ElfFile64,
};

/// The programs and the maps of an object. Its `Display` is the table.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    programs: Vec<Program>,
    maps: Vec<String>,
    btf: u64,
}

#[derive(Debug, PartialEq, Eq)]
struct Program {
    name: String,
    section: String,
    bytes: u64,
}

/// Where aya-ebpf puts maps: with BTF, and without.
const MAPS: [&str; 2] = [".maps", "maps"];
/// The size of every BPF instruction; a 64-bit load counts as two, as the kernel counts it.
const INSTRUCTION: u64 = 8;

/// Reads `object`.
///
/// # Errors
/// If it is no ELF file, or a symbol is not where it says.
pub(crate) fn of(object: &[u8]) -> Result<Report> {
    let elf = ElfFile64::<Endianness>::parse(object).context("not a 64-bit ELF file")?;
    let mut report = Report::default();
    for symbol in elf.symbols() {
        let Some(section) = symbol.section_index() else { continue };
        let section = elf.section_by_index(section)?.name()?;
        let name = symbol.name()?.to_owned();
        match symbol.kind() {
            SymbolKind::Text => {
                report.programs.push(Program { name, section: section.to_owned(), bytes: symbol.size() });
            }
            SymbolKind::Data if MAPS.contains(&section) => report.maps.push(name),
            _ => {}
        }
    }
    // Programs first, then the functions that they call, which are in .text.
    report.programs.sort_by_key(|program| (program.section == ".text", program.name.clone()));
    report.maps.sort();
    report.btf = elf.section_by_name(".BTF").map_or(0, |section| section.size());
    Ok(report)
}

// === impl Report ===

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: fn(&Program) -> &str, title: &str| {
            self.programs.iter().map(|program| column(program).len()).fold(title.len(), usize::max)
        };
        let name = width(|program| &program.name, "program");
        let section = width(|program| &program.section, "section");
        writeln!(f, "{:name$}  {:section$}  {:>12}  {:>7}", "program", "section", "instructions", "bytes")?;
        for program in &self.programs {
            let Program { name: program, section: place, bytes } = program;
            writeln!(f, "{program:name$}  {place:section$}  {:>12}  {bytes:>7}", bytes / INSTRUCTION)?;
        }
        writeln!(f, "maps: {}", self.maps.join(", "))?;
        writeln!(f, ".BTF: {} bytes", self.btf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_lines_up() {
        let program = |name: &str, section: &str, bytes| Program {
            name: name.to_owned(),
            section: section.to_owned(),
            bytes,
        };
        let report = Report {
            programs: vec![program("from_pod", "classifier", 24), program("f", ".text", 1600)],
            maps: vec!["VIFS".to_owned(), "ENDPOINTS".to_owned()],
            btf: 99,
        };
        assert_eq!(
            report.to_string(),
            "program   section     instructions    bytes\n\
             from_pod  classifier             3       24\n\
             f         .text                200     1600\n\
             maps: VIFS, ENDPOINTS\n\
             .BTF: 99 bytes\n"
        );
    }
}
