//! Stack depth of the programs, from the instructions of the object: an upper bound of the depth that the
//! verifier finds, which leaves out code that settings disable.

use std::collections::HashMap;

use anyhow::{Context as _, ensure};
use ferrule_tests::dist;
use object::{
    Object as _, ObjectSection as _, ObjectSymbol as _, RelocationTarget, SectionIndex, SymbolKind,
    read::elf::ElfFile64,
};

/// Bytes of the deepest call chain: the current numbers, so that a regression is seen.
const BUDGET: [(&str, u64); 6] = [
    ("from_pod", 480),
    ("to_pod", 448),
    ("from_tunnel", 480),
    ("from_uplink", 480),
    ("to_tunnel", 416),
    ("to_link", 448),
];
/// `MAX_BPF_STACK` in the kernel's `linux/filter.h`.
const KERNEL_LIMIT: u64 = 512;
/// The kernel rounds each frame up to as many bytes.
const FRAME: u64 = 32;
const INSTRUCTION: u64 = 8;

/// A function of the object, by section and offset.
type Place = (SectionIndex, u64);

#[derive(Debug, Default)]
struct Function {
    /// Bytes below the frame pointer.
    frame: u64,
    calls: Vec<Place>,
}

/// Instruction set: `linux/bpf.h`. Class in the lowest three bits of the code.
mod code {
    pub const LOAD: u8 = 1;
    pub const STORE: u8 = 2;
    pub const STORE_REGISTER: u8 = 3;
    pub const CALL: u8 = 0x85;
    pub const MOVE_REGISTER: u8 = 0xbf;
    pub const ADD_NUMBER: u8 = 0x07;
    pub const FRAME_POINTER: u8 = 10;
    /// In the place of a call's source register: of another function of the object.
    pub const LOCAL: u8 = 1;
}

/// All functions of the object, and the names of the programs.
fn functions(elf: &ElfFile64<'_>) -> anyhow::Result<(HashMap<Place, Function>, HashMap<String, Place>)> {
    let (mut functions, mut names) = (HashMap::new(), HashMap::new());
    for symbol in elf.symbols().filter(|it| it.kind() == SymbolKind::Text) {
        let section = symbol.section_index().context("a function without a section")?;
        let place = (section, symbol.address());
        functions.insert(place, function(elf, place, symbol.size())?);
        names.insert(symbol.name()?.to_owned(), place);
    }
    Ok((functions, names))
}

fn function(elf: &ElfFile64<'_>, (section, start): Place, size: u64) -> anyhow::Result<Function> {
    let found = elf.section_by_index(section)?;
    let data = found.data()?;
    let relocations: HashMap<_, _> = found.relocations().collect();
    let mut function = Function::default();
    // The registers that point into the frame, one bit each.
    let mut pointers = 0_u16;
    for at in (start..start + size).step_by(INSTRUCTION as usize) {
        let index = usize::try_from(at)?;
        let bytes = data.get(index..index + INSTRUCTION as usize).context("a function that is cut off")?;
        let &[code, registers, low, high, a, b, c, d] = bytes else { continue };
        let (target, source) = (registers & 0xf, registers >> 4);
        let (offset, number) = (i16::from_le_bytes([low, high]), i32::from_le_bytes([a, b, c, d]));
        let below = |value: i64| if value < 0 { value.unsigned_abs() } else { 0 };
        let used = match code & 7 {
            code::LOAD if source == code::FRAME_POINTER => below(offset.into()),
            code::STORE | code::STORE_REGISTER if target == code::FRAME_POINTER => below(offset.into()),
            _ if code == code::ADD_NUMBER && pointers & 1 << target != 0 => below(number.into()),
            _ => 0,
        };
        function.frame = function.frame.max(used);
        if code == code::CALL && source == code::LOCAL {
            let callee = match relocations.get(&at).map(|it| it.target()) {
                Some(RelocationTarget::Symbol(symbol)) => {
                    let symbol = elf.symbol_by_index(symbol)?;
                    let section = symbol.section_index().context("a call out of the object")?;
                    // The number counts instructions, and is one less than that of the callee.
                    (section, symbol.address().wrapping_add_signed((i64::from(number) + 1) * 8))
                }
                _ => (section, at.wrapping_add_signed((i64::from(number) + 1) * 8)),
            };
            function.calls.push(callee);
        }
        // Class 7 and class 4 write their target; so do loads.
        if matches!(code & 7, 0 | code::LOAD | 4 | 7) {
            let is_pointer = code == code::MOVE_REGISTER && source == code::FRAME_POINTER;
            pointers = pointers & !(1 << target) | u16::from(is_pointer) << target;
        }
    }
    Ok(function)
}

/// Of a function with all that it calls. The verifier refuses recursion, and more than eight frames.
fn depth(functions: &HashMap<Place, Function>, place: Place, frames: u32) -> anyhow::Result<u64> {
    ensure!(frames <= 8, "more than eight frames");
    let function = functions.get(&place).with_context(|| format!("no function at {place:?}"))?;
    let mut deepest = 0;
    for callee in &function.calls {
        deepest = deepest.max(depth(functions, *callee, frames + 1)?);
    }
    Ok(function.frame.max(1).next_multiple_of(FRAME) + deepest)
}

#[test]
fn stack_depth_stays_within_budget() {
    let object = dist::ebpf_object().unwrap();
    let elf = ElfFile64::parse(&object[..]).unwrap();
    let (functions, names) = functions(&elf).unwrap();
    for (program, budget) in BUDGET {
        let place = names.get(program).unwrap_or_else(|| panic!("no program {program}"));
        let depth = depth(&functions, *place, 1).unwrap();
        println!("{program}: {depth} bytes of stack, budget {budget}");
        assert!(depth > FRAME, "{program}: {depth} bytes of stack cannot be all");
        assert!(depth <= budget, "{program}: {depth} bytes of stack, over the budget of {budget}");
        assert!(budget <= KERNEL_LIMIT, "{program}: the kernel's limit is {KERNEL_LIMIT}");
    }
}
