//! Kubernetes' notation of quantities, as annotations about bandwidth have it (`10M`, `1.5Gi`, `1e6`).

/// Suffixes with what they multiply by: a numerator and a denominator.
const SUFFIXES: [(&str, u128, u128); 16] = [
    ("Ki", 1 << 10, 1),
    ("Mi", 1 << 20, 1),
    ("Gi", 1 << 30, 1),
    ("Ti", 1 << 40, 1),
    ("Pi", 1 << 50, 1),
    ("Ei", 1 << 60, 1),
    ("n", 1, 1_000_000_000),
    ("u", 1, 1_000_000),
    ("m", 1, 1000),
    ("k", 1000, 1),
    ("M", 1_000_000, 1),
    ("G", 1_000_000_000, 1),
    ("T", 1_000_000_000_000, 1),
    ("P", 1_000_000_000_000_000, 1),
    ("E", 1_000_000_000_000_000_000, 1),
    ("", 1, 1),
];
/// Digits before and behind the point, so that no product overflows.
const DIGITS: usize = 18;

/// The value, rounded up to a whole number as Kubernetes does. `None` if the text is no quantity, is
/// negative, or is too large.
pub(super) fn parse(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && !matches!(c, '.' | '+')).unwrap_or(text.len());
    let (number, suffix) = text.split_at_checked(end)?;
    let number = number.strip_prefix('+').unwrap_or(number);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let is_number = |digits: &str| digits.len() <= DIGITS && digits.bytes().all(|it| it.is_ascii_digit());
    if (whole.is_empty() && fraction.is_empty()) || !is_number(whole) || !is_number(fraction) {
        return None;
    }
    let digits = format!("{whole}{fraction}").parse::<u128>().ok()?;
    let (up, down) = factor(suffix)?;
    let down = down.checked_mul(10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?)?;
    u64::try_from(digits.checked_mul(up)?.div_ceil(down)).ok()
}

fn factor(suffix: &str) -> Option<(u128, u128)> {
    if let Some((_, up, down)) = SUFFIXES.iter().find(|(name, ..)| *name == suffix) {
        return Some((*up, *down));
    }
    let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    let power = 10_u128.checked_pow(exponent.unsigned_abs()).filter(|_| exponent.unsigned_abs() <= 18)?;
    Some(if exponent < 0 { (1, power) } else { (power, 1) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        for (text, expected) in [
            ("10M", 10_000_000),
            ("1", 1),
            ("+5k", 5000),
            ("1.5Gi", 1_610_612_736),
            ("100m", 1),
            ("1500m", 2),
            (".5k", 500),
            ("2.", 2),
            ("1e6", 1_000_000),
            ("1E3", 1000),
            ("12e-1", 2),
            ("1P", 1_000_000_000_000_000),
            ("2E", 2_000_000_000_000_000_000),
            ("0", 0),
        ] {
            assert_eq!(parse(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn anything_else_is_no_quantity() {
        for text in [
            "",
            "M",
            ".",
            "-1M",
            "10 M",
            "10Mbit",
            "10mb",
            "1.2.3",
            "1e",
            "e6",
            "0x10",
            "++1",
            "1e99",
            "99E",
            "1234567890123456789",
            "10K",
            "१०",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
