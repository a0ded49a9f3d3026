//! Typing errors in keys that people write.

/// Whether a key is another one in other case, or with one character added, left out, replaced or swapped
/// with the next.
pub fn is_misspelt(key: &str, meant: &str) -> bool {
    if key == meant {
        return false;
    }
    if key.eq_ignore_ascii_case(meant) {
        return true;
    }
    let (key, meant): (Vec<char>, Vec<char>) = (key.chars().collect(), meant.chars().collect());
    let equal = key.iter().zip(&meant).take_while(|(a, b)| a == b).count();
    let (key, meant) = (key.get(equal..).unwrap_or_default(), meant.get(equal..).unwrap_or_default());
    match (key, meant) {
        ([_, key @ ..], meant) if key == meant => true,
        (key, [_, meant @ ..]) if key == meant => true,
        ([_, key @ ..], [_, meant @ ..]) if key == meant => true,
        ([a, b, key @ ..], [c, d, meant @ ..]) => a == d && b == c && key == meant,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_typing_error_is_found_and_two_are_not() {
        for key in ["mtuu", "xmtu", "mxtu", "MTU", "Mtu", "mt", "tu", "mu", "mut", "tmu", "mtx", "xtu"] {
            assert!(is_misspelt(key, "mtu"), "{key}");
        }
        for key in ["mtu", "", "m", "mtuxx", "utm", "xtx", "xmtux", "mru6", "dns"] {
            assert!(!is_misspelt(key, "mtu"), "{key}");
        }
    }
}
