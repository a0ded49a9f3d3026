//! The expressions of nftables' rules that the agent uses: `linux/netfilter/nf_tables.h`.
//!
//! Each loads into or tests register 1, which has 16 bytes, unless it says otherwise.

use super::{
    super::message::Attribute,
    numbers::{
        DATA_VALUE, DATA_VERDICT, DROP, EXPRESSION_DATA, EXPRESSION_NAME, IMMEDIATE_DATA, IMMEDIATE_REGISTER,
        VERDICT_CHAIN, VERDICT_CODE,
    },
};

/// An expression: its name, and its data.
pub(super) type Expression = Vec<Attribute>;

/// Which port of a range the kernel gives to a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    /// A random one that is free.
    Random,
    /// That of the client, if it is in the range and free; otherwise the remainder of its division by the
    /// size of the range, counted from the first port, or the next free port.
    OfClient,
}

/// A verdict that ends a rule.
#[derive(Debug, Clone, Copy)]
pub(super) enum Verdict {
    Goto(&'static str),
    Return,
    Drop,
}

/// `NFT_META_…`.
const MARK: u32 = 3;
const INTERFACE: u32 = 6;
const OUTPUT_INTERFACE: u32 = 7;
pub(super) const FAMILY: u32 = 15;
pub(super) const PROTOCOL: u32 = 16;
/// `NFT_CMP_…`.
pub(super) const EQUAL: u32 = 0;
const NOT_EQUAL: u32 = 1;
pub(super) const AT_MOST: u32 = 3;
pub(super) const AT_LEAST: u32 = 5;
const VERDICT_REGISTER: u32 = 0;
/// `NFT_GOTO` and `NFT_RETURN`.
const GOTO: u32 = -4_i32 as u32;
const RETURN: u32 = -5_i32 as u32;
const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;
/// `NFT_CT_…`; and `NF_CT_STATE_UNTRACKED_BIT` and `IPS_DST_NAT` in
/// `linux/netfilter/nf_conntrack_common.h`.
const STATE: u32 = 0;
const UNTRACKED: u32 = 1 << 6;
const STATUS: u32 = 2;
const DESTINATION_TRANSLATED: u32 = 1 << 5;
/// `NFT_NAT_SNAT` and `NFT_NAT_DNAT`.
const SOURCE: u32 = 0;
const DESTINATION: u32 = 1;
const INVERTED: u32 = 1;
/// `NF_NAT_RANGE_MAP_IPS`, `…_PROTO_SPECIFIED`, `…_PROTO_RANDOM_FULLY` and `…_PROTO_OFFSET` in
/// `linux/netfilter/nf_nat.h`.
const ADDRESS: u32 = 1;
const SPECIFIED: u32 = 1 << 1;
const RANDOM: u32 = 1 << 4;
/// Counted from port 0: nftables has no attribute for another one, and nft no word for the flag.
const OFFSET: u32 = 1 << 5;
/// kube-proxy's marks (masquerade 0x4000, drop 0x8000) and that of `portmap` (0x2000): their owners' rules
/// decide about these packets.
const FOREIGN_MARKS: u32 = 0xe000;
/// `NFT_FIB_RESULT_ADDRTYPE` and `NFTA_FIB_F_DADDR`, and `RTN_LOCAL` in `linux/rtnetlink.h`.
const ADDRESS_TYPE: u32 = 3;
const OF_DESTINATION: u32 = 1 << 1;
const LOCAL: u32 = 2;
/// `NFT_REG32_00`: the first of the registers of 4 bytes. The register 1 is made of the first four.
const REGISTER: u32 = 8;

/// `NFTA_META_KEY`, `NFTA_META_DREG`.
pub(super) fn meta(key: u32) -> Expression {
    expression("meta", vec![Attribute::number(2, key), Attribute::number(1, 1)])
}

/// `NFTA_CMP_SREG`, `NFTA_CMP_OP`, `NFTA_CMP_DATA`.
pub(super) fn compare(how: u32, with: &[u8]) -> Expression {
    expression("cmp", vec![Attribute::number(1, 1), Attribute::number(2, how), value(3, with)])
}

/// `NFTA_BITWISE_SREG`, `…_DREG`, `…_LEN`, `…_MASK`, `…_XOR`. Marks and flags have the byte order of the
/// host.
fn masked(mask: u32) -> Expression {
    let registers = [Attribute::number(1, 1), Attribute::number(2, 1), Attribute::number(3, 4)];
    let masks = [value(4, &mask.to_ne_bytes()), value(5, &[0; 4])];
    expression("bitwise", registers.into_iter().chain(masks).collect())
}

/// Whether the flow's destination is translated.
pub(super) fn is_destination_translated() -> [Expression; 3] {
    [conntrack(STATUS), masked(DESTINATION_TRANSLATED), compare(NOT_EQUAL, &0_u32.to_ne_bytes())]
}

/// Whether conntrack sees the packet.
pub(super) fn is_tracked() -> [Expression; 2] {
    [conntrack(STATE), compare(NOT_EQUAL, &UNTRACKED.to_ne_bytes())]
}

/// Whether the destination is an address of the node. `NFTA_FIB_DREG`, `NFTA_FIB_RESULT`, `NFTA_FIB_FLAGS`.
pub(super) fn is_to_node() -> [Expression; 2] {
    let data = [(1, 1), (2, ADDRESS_TYPE), (3, OF_DESTINATION)];
    let kind = expression("fib", data.map(|(kind, value)| Attribute::number(kind, value)).to_vec());
    [kind, compare(EQUAL, &LOCAL.to_ne_bytes())]
}

/// Leaves a packet with a mark of others to their rules.
pub(super) fn return_if_marked() -> Vec<Expression> {
    let no_mark = compare(NOT_EQUAL, &0_u32.to_ne_bytes());
    vec![meta(MARK), masked(FOREIGN_MARKS), no_mark, verdict(Verdict::Return)]
}

/// Bytes of the network header.
pub(super) fn header(offset: u32, length: u32) -> Expression {
    payload(1, NETWORK_HEADER, offset, length)
}

/// The same, into the registers that begin with one of 4 bytes.
pub(super) fn header_at(register: u32, offset: u32, length: u32) -> Expression {
    payload(REGISTER + register, NETWORK_HEADER, offset, length)
}

/// The transport protocol into a register of 4 bytes, and the destination port into the next.
pub(super) fn protocol_and_port_at(register: u32) -> [Expression; 2] {
    let data = vec![Attribute::number(2, PROTOCOL), Attribute::number(1, shown(REGISTER + register))];
    [expression("meta", data), payload(REGISTER + register + 1, TRANSPORT_HEADER, 2, 2)]
}

/// The source port of TCP, UDP or SCTP.
pub(super) fn source_port() -> Expression {
    payload(1, TRANSPORT_HEADER, 0, 2)
}

/// The destination port of TCP, UDP or SCTP.
pub(super) fn destination_port() -> Expression {
    payload(1, TRANSPORT_HEADER, 2, 2)
}

/// Whether the packet has come by an interface whose name begins with a prefix.
pub(super) fn came_by(prefix: &str) -> [Expression; 2] {
    [meta(INTERFACE), compare(EQUAL, prefix.as_bytes())]
}

/// Whether the packet leaves by such an interface.
pub(super) fn leaves_by(prefix: &str) -> [Expression; 2] {
    [meta(OUTPUT_INTERFACE), compare(EQUAL, prefix.as_bytes())]
}

/// The first bytes of the network header's field.
pub(super) fn begins_with(offset: u32, prefix: &[u8]) -> [Expression; 2] {
    [header(offset, prefix.len() as u32), compare(EQUAL, prefix)]
}

/// Keeps the packet from conntrack.
pub(super) fn notrack() -> Expression {
    vec![Attribute::text(EXPRESSION_NAME, "notrack")]
}

/// `NFTA_LOOKUP_SET`, `…_SREG`, `…_FLAGS`.
pub(super) fn is_in(set: &str) -> Expression {
    lookup(set, 0)
}

pub(super) fn is_not_in(set: &str) -> Expression {
    lookup(set, INVERTED)
}

/// Loads what a map has for the key in the register 1 into the register 1.
pub(super) fn look_up(map: &str) -> Expression {
    let of = [Attribute::text(1, map), Attribute::number(2, 1), Attribute::number(3, 1)];
    expression("lookup", of.to_vec())
}

/// Loads a port.
pub(super) fn port(register: u32, port: u16) -> Expression {
    expression(
        "immediate",
        vec![Attribute::number(IMMEDIATE_REGISTER, register), value(IMMEDIATE_DATA, &port.to_be_bytes())],
    )
}

pub(super) fn verdict(verdict: Verdict) -> Expression {
    let (code, chain) = match verdict {
        Verdict::Goto(chain) => (GOTO, Some(chain)),
        Verdict::Return => (RETURN, None),
        Verdict::Drop => (DROP, None),
    };
    let mut verdict = vec![Attribute::number(VERDICT_CODE, code)];
    verdict.extend(chain.map(|name| Attribute::text(VERDICT_CHAIN, name)));
    let data = Attribute::Nest(IMMEDIATE_DATA, vec![Attribute::Nest(DATA_VERDICT, verdict)]);
    expression("immediate", vec![Attribute::number(IMMEDIATE_REGISTER, VERDICT_REGISTER), data])
}

/// To a random port or identifier, or to the client's while no other flow has that one. `NFTA_MASQ_FLAGS`.
pub(super) fn masquerade(is_random: bool) -> Expression {
    expression("masq", is_random.then(|| Attribute::number(1, RANDOM)).into_iter().collect())
}

/// To a port from that in register 1 to that in register 2: a random one, or that of the client if it is in
/// the range and free. `NFTA_MASQ_FLAGS`, `NFTA_MASQ_REG_PROTO_MIN`, `…_MAX`.
pub(super) fn masquerade_to_ports(is_random: bool) -> Expression {
    let flags = if is_random { RANDOM | SPECIFIED } else { SPECIFIED };
    let data = [(1, flags), (2, 1), (3, 2)];
    expression("masq", data.map(|(kind, value)| Attribute::number(kind, value)).to_vec())
}

/// Translates the source to the address in register 1, and to a port from that in register 2 to that in
/// register 3. `NFTA_NAT_TYPE`, `…_FAMILY`, `…_REG_ADDR_MIN`, `…_REG_PROTO_MIN`, `…_REG_PROTO_MAX`,
/// `…_FLAGS`.
pub(super) fn translate_source(family: u8, choice: Choice) -> Expression {
    let choice = match choice {
        Choice::Random => RANDOM,
        Choice::OfClient => OFFSET,
    };
    let data = [(1, SOURCE), (2, family.into()), (3, 1), (5, 2), (6, 3), (7, choice | SPECIFIED | ADDRESS)];
    expression("nat", data.map(|(kind, value)| Attribute::number(kind, value)).to_vec())
}

/// `NFTA_CT_DREG`, `NFTA_CT_KEY`.
fn conntrack(key: u32) -> Expression {
    expression("ct", vec![Attribute::number(1, 1), Attribute::number(2, key)])
}

/// Translates the destination to the address in the register 1 and the port behind the address.
pub(super) fn translate_destination(family: u8, length: u32) -> Expression {
    let port = shown(REGISTER + length / 4);
    let data = [
        (1, DESTINATION),
        (2, family.into()),
        (3, 1),
        (4, 1),
        (5, port),
        (6, port),
        (7, SPECIFIED | ADDRESS),
    ];
    expression("nat", data.map(|(kind, value)| Attribute::number(kind, value)).to_vec())
}

/// `NFTA_PAYLOAD_DREG`, `…_BASE`, `…_OFFSET`, `…_LEN`.
fn payload(register: u32, base: u32, offset: u32, length: u32) -> Expression {
    let place = [(1, shown(register)), (2, base), (3, offset), (4, length)];
    expression("payload", place.map(|(kind, value)| Attribute::number(kind, value)).to_vec())
}

/// The kernel's name of a register: one of 16 bytes, if it begins there.
fn shown(register: u32) -> u32 {
    match register.checked_sub(REGISTER) {
        Some(small) if small.is_multiple_of(4) => small / 4 + 1,
        _ => register,
    }
}

fn lookup(set: &str, flags: u32) -> Expression {
    let of = [Attribute::text(1, set), Attribute::number(2, 1), Attribute::number(5, flags)];
    expression("lookup", of.to_vec())
}

fn expression(name: &str, data: Vec<Attribute>) -> Expression {
    vec![Attribute::text(EXPRESSION_NAME, name), Attribute::Nest(EXPRESSION_DATA, data)]
}

fn value(kind: u16, bytes: &[u8]) -> Attribute {
    Attribute::Nest(kind, vec![Attribute::Value(DATA_VALUE, bytes.to_vec())])
}
