//! Removes what may be a secret from text that the agent has not made for others' eyes: passwords and tokens
//! in URLs, and credentials of HTTP.

const SCHEME_END: &str = "://";

/// A URL keeps scheme, host and path; what follows `Bearer` or `Basic` is left out.
///
/// Passwords and queries may have a `,`, `;`, `)` or `'` inside (RFC 3986): the characters that mostly follow
/// a URL in a text do not end them.
pub(super) fn scrub(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(SCHEME_END) {
        let (before, after) = rest.split_at(at + SCHEME_END.len());
        out.push_str(before);
        let (authority, _) = split_before(after, |c| is_never_part(c) || matches!(c, '/' | '?' | '#'));
        let host = authority.rfind('@').map_or(0, |at| at + 1);
        let (_, after) = after.split_at(host);
        let (path, next) = split_before(after, |c| is_never_part(c) || matches!(c, '?' | '#'));
        let (path, next) = path.find(SCHEME_END).map_or((path, next), |another| after.split_at(another));
        out.push_str(path);
        rest = without_query(next);
    }
    out.push_str(rest);
    ["Bearer ", "Basic "].into_iter().fold(out, |text, scheme| without_credentials(&text, scheme))
}

/// Leaves the punctuation at its end, and the `\` of a quotation mark inside JSON.
fn without_query(text: &str) -> &str {
    if !text.starts_with(['?', '#']) {
        return text;
    }
    let (query, _) = split_before(text, is_never_part);
    let (_, rest) = text.split_at(query.trim_end_matches(|c| is_end(c) || c == '\\').len());
    rest
}

fn without_credentials(text: &str, scheme: &str) -> String {
    let mut parts = text.split(scheme);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(is_end).unwrap_or(part.len());
        out += scheme;
        out += if end > 0 { "…" } else { "" };
        out += part.get(end..).unwrap_or_default();
    }
    out
}

fn split_before(text: &str, ends: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(ends).unwrap_or(text.len()))
}

/// Whether a character mostly follows a URL or a credential in a text.
fn is_end(c: char) -> bool {
    is_never_part(c) || matches!(c, '\'' | ',' | ';' | ')' | ']' | '}')
}

/// Whether a character is no part of any URL.
fn is_never_part(c: char) -> bool {
    c.is_whitespace() || matches!(c, '"' | '<' | '>' | '`')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_lose_passwords_and_queries_and_keep_the_rest() {
        for (text, expected) in [
            ("no URL", "no URL"),
            ("to http://127.0.0.1:4317 yet", "to http://127.0.0.1:4317 yet"),
            ("to http://user:hidden@host:4317/v1?token=hidden yet", "to http://host:4317/v1 yet"),
            ("\"https://hidden@host\", https://a/b#hidden", "\"https://host\", https://a/b"),
            ("https://host?x=hid@den", "https://host"),
            ("Authorization: Bearer hidden\nBasic hidden==", "Authorization: Bearer …\nBasic …"),
            ("ü://ü@ü", "ü://ü"),
            ("http://user:hid,hidden@proxy, then", "http://proxy, then"),
            ("(http://user:h;hidden)'hidden]@proxy:80/a).", "(http://proxy:80/a)."),
            ("http://user:hidden@hidden@host", "http://host"),
            ("https://host/a,b;c?x=1,hidden)&hidden;, next", "https://host/a,b;c;, next"),
            ("a=http://a:1,http://user:hidden@b?hidden,c=d e", "a=http://a:1,http://b e"),
            ("http://a/http://user:hidden@b/c", "http://a/http://b/c"),
            ("{'x': 'http://a?hidden'}, mail a@b", "{'x': 'http://a'}, mail a@b"),
            ("{\"x\": \"\\\"http://a?hidden\\\"\"}", "{\"x\": \"\\\"http://a\\\"\"}"),
            ("http://a?b\\u0026hidden", "http://a"),
            ("http://a, b@c; http://d/e@f <http://g> h@i", "http://a, b@c; http://d/e@f <http://g> h@i"),
        ] {
            assert_eq!(scrub(text), expected);
            assert!(!scrub(text).contains("hidden"));
        }
    }
}
