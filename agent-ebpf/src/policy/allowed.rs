//! `POLICY_ALLOWED`: connections between two pods of this node that both ends' rules have allowed last.
//!
//! Rules see all of a TCP connection request but its source port. So the next request from the same pod to
//! the same port of the same pod needs no rule, as long as the rules of neither end have changed: the epochs
//! are those of [pairs](super::pairs), with the same meaning. A cache, one for each CPU: a row that another
//! one has replaced costs a question to the rules.

use core::cell::Cell;

use aya_ebpf::{btf_maps::PerCpuArray, macros::btf_map};

use super::case::{self, Both, Case};
use crate::address::Address;

const ROWS: u32 = 256;

#[btf_map]
static POLICY_ALLOWED: PerCpuArray<Row, { ROWS as usize }> = PerCpuArray::new();

#[repr(transparent)]
struct Row(Cell<Request>);

#[derive(Clone, Copy)]
#[repr(C)]
struct Request {
    client: Address,
    server: Address,
    /// Zeros in an unused row.
    both: Both,
    port: u64,
}

/// Whether both ends' rules have allowed such a connection request, and allow it still.
#[inline(always)]
pub fn contains(case: &Case) -> bool {
    let request = Request::of(case);
    row(&request).is_some_and(|row| row.get() == request)
}

/// Notes that both ends' rules allow the case's connection request.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn ferrule_note_allowed() -> u32 {
    let Some(case) = case::get() else { return 0 };
    let request = Request::of(case);
    if let Some(row) = row(&request) {
        row.set(request);
    }
    0
}

#[inline(always)]
fn row(request: &Request) -> Option<&'static Cell<Request>> {
    let Both { from, to, .. } = request.both;
    let ends = u64::from(from) << 32 | u64::from(to);
    let number = ((ends ^ request.port << 16).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32;
    // SAFETY: integers, valid whatever the bytes are. The row is this CPU's, and with BH disabled, no
    // other tc program runs there.
    POLICY_ALLOWED.get_ptr(number % ROWS).map(|row| unsafe { &(*row).0 })
}

// === impl Request ===

impl Request {
    #[inline(always)]
    fn of(case: &Case) -> Self {
        let (ends, [_, port]) = (case.ends.get(), case.ports.get());
        Self { client: ends.source, server: ends.destination, both: case.both.get(), port: port.into() }
    }
}

// === impl PartialEq ===

impl PartialEq for Request {
    /// Arithmetic instead of branches: the verifier would walk the rest once for each.
    #[inline(always)]
    fn eq(&self, other: &Self) -> bool {
        let ([a, b], [c, d]) = (self.client.words(), self.server.words());
        let ([e, f], [g, h]) = (other.client.words(), other.server.words());
        let (one, two) = (self.both, other.both);
        let both = (one.from ^ two.from) | (one.to ^ two.to) | (one.epochs ^ two.epochs);
        (a ^ e) | (b ^ f) | (c ^ g) | (d ^ h) | (self.port ^ other.port) | u64::from(both) == 0
    }
}
