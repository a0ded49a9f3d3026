//! The arithmetic that takes the place of branches, and the order of a flow's ends, against those of the
//! standard library.

use agent_common::{EndpointKey, FlowKey};

use crate::{
    address::Address,
    branchless::{Condition, pick},
    flow_key::Key,
    random,
};

/// Where arithmetic overflows, and signs change.
const NUMBERS: [u64; 9] = [0, 1, 2, u64::MAX >> 1, 1 << 63, u64::MAX - 1, u64::MAX, u32::MAX as u64, 1 << 31];

#[test]
fn conditions_are_those_of_the_comparisons() {
    for one in NUMBERS {
        let low = one as u32;
        assert_eq!(Condition::nonzero(one).factor(), u64::from(one != 0), "{one:x}");
        assert_eq!(Condition::negative(low).factor(), u64::from(low.cast_signed() < 0), "{low:x}");
        for other in NUMBERS {
            let (is_greater, found) = (one > other, Condition::greater(one, other));
            assert_eq!(found.factor(), u64::from(is_greater), "{one:x} {other:x}");
            assert_eq!((!found).factor(), u64::from(!is_greater), "{one:x} {other:x}");
            assert_eq!(pick(found.mask(), one, other), one.max(other), "{one:x} {other:x}");
            let (is_set, set) = (other != 0, Condition::nonzero(other));
            assert_eq!((found & set).factor(), u64::from(is_greater & is_set), "{one:x} {other:x}");
            assert_eq!((found | set).factor(), u64::from(is_greater | is_set), "{one:x} {other:x}");
            let chosen = if is_greater { is_set } else { !is_set };
            assert_eq!(found.select(set, !set).factor(), u64::from(chosen), "{one:x} {other:x}");
        }
    }
}

#[test]
fn a_flow_has_the_key_of_user_space_whatever_its_ends_are() {
    random::each(|rng| {
        // Few bytes, so that ends have all, half or none of an address in common.
        let mut end = || {
            let (half, byte, port) = (rng.bool(), rng.u8(..3) * 0x7f, rng.u16(..3) * 0x7fff);
            let address: [u8; 16] = std::array::from_fn(|at| if (at < 8) == half { byte } else { 1 });
            (address, port)
        };
        let (one, other) = (end(), end());
        let of_user = |(address, port): ([u8; 16], u16)| (EndpointKey { address }, port);
        let expected = FlowKey::between(17, of_user(one), of_user(other));
        let of_program = |(address, port): ([u8; 16], u16)| (Address::v6(address), port);
        for [from, to] in [[one, other], [other, one]] {
            let found = *Key::between(17.into(), of_program(from), of_program(to)).as_flow();
            assert_eq!(found, expected, "{from:x?} {to:x?}");
        }
    });
}
