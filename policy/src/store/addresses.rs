//! The addresses of a party, of which most have one.

use std::ops::Deref;

use crate::Addr;

/// Sorted addresses; a single one needs no memory of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Addresses {
    One(Addr),
    Other(Box<[Addr]>),
}

// === impl Addresses ===

impl FromIterator<Addr> for Addresses {
    fn from_iter<T: IntoIterator<Item = Addr>>(addresses: T) -> Self {
        let mut addresses: Vec<_> = addresses.into_iter().collect();
        addresses.sort_unstable();
        addresses.dedup();
        match addresses.as_slice() {
            [one] => Self::One(*one),
            _ => Self::Other(addresses.into()),
        }
    }
}

impl Deref for Addresses {
    type Target = [Addr];

    fn deref(&self) -> &[Addr] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Other(addresses) => addresses,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn addresses_are_sorted_and_distinct() {
        let addr = |n| Addr::from(std::net::IpAddr::from(Ipv4Addr::new(10, 0, 0, n)));
        let of = |numbers: &[u8]| numbers.iter().map(|n| addr(*n)).collect::<Addresses>();
        assert!(of(&[]).is_empty());
        assert_eq!(of(&[7, 7]), Addresses::One(addr(7)));
        assert_eq!(*of(&[9, 7, 9]), [addr(7), addr(9)]);
    }
}
