//! Trace context of a call, as defined by [W3C Trace Context](https://www.w3.org/TR/trace-context/).
//!
//! The shim reads the trace context from its environment and sends it as call metadata, from which the agent
//! reads it. Both validate it here. An invalid trace context is ignored: tracing never fails a call.

use std::fmt;

/// The caller's span, which is the parent of the agent's spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    /// Not all zero.
    pub trace_id: [u8; 16],
    /// Not all zero.
    pub span_id: [u8; 8],
    /// Whether the caller records its span.
    pub sampled: bool,
}

/// Metadata keys; the environment variables have the same names in upper case.
pub const TRACEPARENT: &str = "traceparent";
pub const TRACESTATE: &str = "tracestate";

/// Length of a version 00 `traceparent`, in bytes. Later versions may only append fields.
const LENGTH: usize = 55;
/// Bytes. The specification requires propagation up to this length and allows dropping a longer `tracestate`.
const MAX_STATE: usize = 512;
const MAX_MEMBERS: usize = 32;
const MAX_KEY: usize = 256;
const MAX_VALUE: usize = 256;

// === impl TraceParent ===

impl TraceParent {
    /// Parses `VERSION-TRACE-SPAN-FLAGS`. Of later versions than 00, only the fields of 00 are read.
    pub fn parse(text: &str) -> Option<Self> {
        let (known, more) = text.split_at_checked(LENGTH)?;
        let mut fields = known.split('-');
        let [version] = bytes(fields.next()?)?;
        let trace_id = bytes(fields.next()?)?;
        let span_id = bytes(fields.next()?)?;
        let [flags] = bytes(fields.next()?)?;
        let ends = match version {
            0 => more.is_empty(),
            0xff => false,
            _ => more.is_empty() || more.starts_with('-'),
        };
        let is_valid = ends && fields.next().is_none() && trace_id != [0; 16] && span_id != [0; 8];
        is_valid.then_some(Self { trace_id, span_id, sampled: flags & 1 == 1 })
    }
}

impl fmt::Display for TraceParent {
    /// Version 00, with the sampled flag only.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (trace, span) = (u128::from_be_bytes(self.trace_id), u64::from_be_bytes(self.span_id));
        write!(f, "00-{trace:032x}-{span:016x}-{:02x}", u8::from(self.sampled))
    }
}

/// Whether a text is a valid `tracestate`, a list of `KEY=VALUE`, and short enough to propagate.
pub fn is_trace_state(text: &str) -> bool {
    let mut members = 0;
    text.len() <= MAX_STATE
        && text.split(',').map(|member| member.trim_matches([' ', '\t'])).all(|member| {
            // The specification allows empty list members.
            members += usize::from(!member.is_empty());
            member.is_empty()
                || member.split_once('=').is_some_and(|(key, value)| is_key(key) && is_value(value))
        })
        && (1..=MAX_MEMBERS).contains(&members)
}

/// Parses exactly `N` bytes of lower-case hexadecimal.
fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    if pairs.len() != N {
        return None;
    }
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(bytes)
}

fn digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

fn is_key(key: &str) -> bool {
    let starts = key.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    let goes_on =
        |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'_' | b'-' | b'*' | b'/' | b'@');
    starts && key.len() <= MAX_KEY && key.bytes().all(goes_on)
}

/// `value` is trimmed.
fn is_value(value: &str) -> bool {
    let allowed = |b| matches!(b, b' '..=b'~') && !matches!(b, b',' | b'=');
    (1..=MAX_VALUE).contains(&value.len()) && value.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn traceparent_round_trips() {
        let parent = TraceParent::parse(GOOD).unwrap();
        assert_eq!(parent.trace_id[..2], [0x4b, 0xf9]);
        assert_eq!(parent.span_id, 0x00f0_67aa_0ba9_02b7_u64.to_be_bytes());
        assert!(parent.sampled);
        assert_eq!(parent.to_string(), GOOD);
        let unsampled = GOOD.replace("-01", "-00");
        assert_eq!(TraceParent::parse(&unsampled).unwrap().to_string(), unsampled);
    }

    #[test]
    fn fields_and_flags_of_later_versions_are_dropped() {
        let later = GOOD.replacen("00", "cc", 1).replace("b7-01", "b7-03");
        for more in ["", "-", "-what the future will be like"] {
            assert_eq!(TraceParent::parse(&format!("{later}{more}")).unwrap().to_string(), GOOD);
        }
    }

    #[test]
    fn malformed_traceparent_is_none() {
        for text in [
            "",
            "00",
            "-",
            &GOOD[..54],
            &format!("{GOOD} "),
            &format!("{GOOD}-00"),
            &format!(" {GOOD}"),
            &GOOD.replacen("00", "ff", 1),
            &GOOD.replacen("00", "cc", 1).replace("b7-01", "b7-01."),
            &GOOD.to_uppercase(),
            &GOOD.replace("4bf9", "4bg9"),
            &GOOD.replace("-00f0", "000f0"),
            &GOOD.replace("00f067aa0ba902b7", "0000000000000000"),
            &GOOD.replace("4bf92f3577b34da6a3ce929d0e0e4736", "00000000000000000000000000000000"),
            "00-4bf92f3577b34da6a3ce929d0e0e47-3600f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba90-b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-ö",
            "0ö-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(TraceParent::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn tracestate_is_a_bounded_list_of_pairs() {
        let many = |n| vec!["a=b"; n].join(",");
        let long = |n: usize| format!("a={}", "x".repeat(n));
        for good in [
            "a=b",
            "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE",
            "a=b, ,c=d\t",
            "t@s=a b~",
            "0/_-*=!",
            &many(32),
            &long(256),
        ] {
            assert!(is_trace_state(good), "{good:?}");
        }
        for bad in [
            "",
            ",",
            "a",
            "=b",
            "a=",
            "A=b",
            "@a=b",
            "a b=c",
            "a=b=c",
            "a=\u{7f}",
            "a=ö",
            "a=b\n",
            &many(33),
            &long(257),
            &format!("{},{}", long(255), long(255)),
        ] {
            assert!(!is_trace_state(bad), "{bad:?}");
        }
    }
}
