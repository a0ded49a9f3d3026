//! Whether the ranges have addresses for new pods.

use std::collections::BTreeSet;

use super::{Family, Usage};

/// Remembers the exhausted families. A family is exhausted once no address is free and none comes back from
/// its cooldown, and until one is free again: an ADD in between would fail.
#[derive(Debug, Default)]
pub struct Pressure {
    exhausted: BTreeSet<Family>,
}

/// More free addresses than this are not counted in messages.
const MANY: u128 = 1_000_000;

// === impl Pressure ===

impl Pressure {
    /// Describes the usage of all families.
    ///
    /// # Errors
    /// The description, if a family is exhausted.
    pub fn update(&mut self, usage: &[Usage]) -> Result<String, String> {
        for it in usage {
            if it.free > 0 {
                self.exhausted.remove(&it.family);
            } else if it.cooling_down == 0 {
                self.exhausted.insert(it.family);
            }
        }
        self.exhausted.retain(|family| usage.iter().any(|it| it.family == *family));
        if usage.is_empty() {
            return Ok("no ranges yet".to_owned());
        }
        let described = usage.iter().map(describe).collect::<Vec<_>>().join("; ");
        if self.exhausted.is_empty() {
            return Ok(described);
        }
        let families = self.exhausted.iter().map(|it| it.as_str()).collect::<Vec<_>>().join(" and ");
        Err(format!("every {families} address is in use, so that new pods get none: {described}"))
    }
}

fn describe(usage: &Usage) -> String {
    let Usage { family, ranges, free, used, cooling_down } = usage;
    let free = if *free > MANY { format!("over {MANY}") } else { free.to_string() };
    format!("{family}: {free} free, {used} in use, {cooling_down} in cooldown ({ranges})")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(family: Family, free: u128, cooling_down: usize) -> Usage {
        Usage { family, ranges: "10.0.0.0/29".to_owned(), free, used: 5, cooling_down }
    }

    #[test]
    fn a_family_is_exhausted_from_its_last_address_until_one_is_free_again() {
        let mut pressure = Pressure::default();
        let mut is_exhausted =
            |free, cooling_down| pressure.update(&[usage(Family::Ipv4, free, cooling_down)]).is_err();
        assert!(!is_exhausted(1, 0));
        assert!(!is_exhausted(0, 1), "one comes back");
        assert!(is_exhausted(0, 0));
        assert!(is_exhausted(0, 1), "still none for an ADD");
        assert!(!is_exhausted(1, 0));
        assert!(!is_exhausted(0, 2));
    }

    #[test]
    fn one_exhausted_family_is_enough_and_is_named() {
        let mut pressure = Pressure::default();
        let both = [usage(Family::Ipv4, 7, 0), usage(Family::Ipv6, 0, 0)];
        let why = pressure.update(&both).unwrap_err();
        assert!(why.starts_with("every IPv6 address is in use"), "{why}");
        assert!(why.contains("IPv4: 7 free, 5 in use, 0 in cooldown (10.0.0.0/29)"), "{why}");
        assert!(pressure.update(&both[..1]).is_ok(), "the IPv6 range is gone");
        assert_eq!(pressure.update(&[]).unwrap(), "no ranges yet");
        let huge = pressure.update(&[usage(Family::Ipv6, 1 << 64, 0)]).unwrap();
        assert!(huge.contains("IPv6: over 1000000 free"), "{huge}");
    }
}
