//! The floor: two pods whose host ends redirect each packet to the other pod, without looking into it.
//!
//! No path through `bpf_redirect_peer` can be faster on this machine. The distance to loopback is the price
//! of two veth ends; Ferrule's distance to this path is the price of Ferrule's program.

use anyhow::Context as _;
use aya::{Ebpf, programs::SchedClassifier};
use ferrule_tests::{node::Node, sys, wire};
use object::{
    Architecture, BinaryFormat, Endianness, SectionKind, SymbolFlags, SymbolKind, SymbolScope,
    write::{Object, Symbol, SymbolSection},
};

use super::path;
use crate::rates::path::Path;

const ENDS: [&str; 2] = ["bench-r0", "bench-r1"];
const ADDRESSES: [&str; 2] = ["10.248.0.1", "10.248.0.2"];
const BPF_FS: &str = "/sys/fs/bpf";

// From `linux/bpf.h`: operations, and the number of the helper.
const MOVE_NUMBER: u8 = 0xb7;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
const REDIRECT_PEER: u32 = 155;

/// Two pods with static neighbours and routes, and a program at each host end.
pub(super) fn redirect(node: &Node) -> anyhow::Result<Path> {
    let pods = [node.pod("redirect-client")?, node.pod("redirect-server")?];
    for (pod, end) in pods.iter().zip(ENDS) {
        let pod = pod.path().display();
        sys::run(&format!("ip link add {end} type veth peer name eth0 netns {pod}"))?;
        sys::run(&format!("ip link set {end} up"))?;
    }
    let others = ENDS.iter().rev().zip(ADDRESSES.iter().rev());
    for (((pod, end), address), (other_end, other)) in pods.iter().zip(ENDS).zip(ADDRESSES).zip(others) {
        // The host end must consider frames its own: after the redirect, the kernel does not compare again.
        let mac = wire::mac(end)?.map(|byte| format!("{byte:02x}")).join(":");
        pod.run(&format!("ip address add {address}/32 dev eth0"))?;
        pod.run("ip link set eth0 up")?;
        pod.run(&format!("ip route add {other}/32 dev eth0"))?;
        pod.run(&format!("ip neighbour add {other} lladdr {mac} dev eth0 nud permanent"))?;
        attach(end, u32::try_from(wire::link(other_end)?.ifindex())?)
            .with_context(|| format!("cannot attach a program that redirects to {end}"))?;
    }
    let [client, server] = &pods;
    Ok(Path::new(path::REDIRECT, client, server, ADDRESSES[1].parse()?))
}

/// Attaches a filter to a clsact qdisc, as the agent does. The filter keeps the program loaded.
fn attach(interface: &str, to: u32) -> anyhow::Result<()> {
    let mut ebpf = Ebpf::load(&elf(&instructions(to))?)?;
    let program: &mut SchedClassifier = ebpf.program_mut(path::REDIRECT).context("no program")?.try_into()?;
    program.load()?;
    let pin = format!("{BPF_FS}/{interface}");
    program.pin(&pin)?;
    sys::run(&format!("tc qdisc add dev {interface} clsact"))?;
    sys::run(&format!("tc filter add dev {interface} ingress bpf direct-action object-pinned {pin}"))
        .map(drop)
}

/// `return bpf_redirect_peer(to, 0)`.
fn instructions(to: u32) -> [[u8; 8]; 4] {
    let instruction = |operation, register, [a, b, c, d]: [u8; 4]| [operation, register, 0, 0, a, b, c, d];
    [
        instruction(MOVE_NUMBER, 1, to.to_le_bytes()),
        instruction(MOVE_NUMBER, 2, [0; 4]),
        instruction(CALL, 0, REDIRECT_PEER.to_le_bytes()),
        instruction(EXIT, 0, [0; 4]),
    ]
}

/// An object file with one tc program, as the loader reads it.
fn elf(instructions: &[[u8; 8]]) -> anyhow::Result<Vec<u8>> {
    let mut elf = Object::new(BinaryFormat::Elf, Architecture::Bpf, Endianness::Little);
    let section = elf.add_section(Vec::new(), b"classifier".to_vec(), SectionKind::Text);
    let code = instructions.concat();
    elf.append_section_data(section, &code, 8);
    elf.add_symbol(Symbol {
        name: path::REDIRECT.into(),
        value: 0,
        size: code.len() as u64,
        kind: SymbolKind::Text,
        scope: SymbolScope::Dynamic,
        weak: false,
        section: SymbolSection::Section(section),
        flags: SymbolFlags::None,
    });
    Ok(elf.write()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loader_reads_the_four_instructions() {
        let elf = elf(&instructions(0x0102_0304)).unwrap();
        let object = aya_obj::Object::parse(&elf).unwrap();
        let function = object.functions.values().next().unwrap();
        assert_eq!(function.name, "redirect");
        let code: Vec<_> = function.instructions.iter().map(|it| (it.code, it.dst_reg(), it.imm)).collect();
        assert_eq!(code, [(0xb7, 1, 0x0102_0304), (0xb7, 2, 0), (0x85, 0, 155), (0x95, 0, 0)]);
    }
}
