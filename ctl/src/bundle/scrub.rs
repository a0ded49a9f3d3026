//! Removes what may be a secret from text that the agent has not made for others' eyes: passwords and tokens
//! in URLs, and credentials of HTTP.

/// A URL keeps scheme, host and path; what follows `Bearer` or `Basic` is left out.
pub(super) fn scrub(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + "://".len());
        out.push_str(before);
        let end = after.find(is_end).unwrap_or(after.len());
        let (url, next) = after.split_at(end);
        let (authority, path) = url.split_at(url.find(['/', '?', '#']).unwrap_or(url.len()));
        out.push_str(authority.rsplit_once('@').map_or(authority, |(_, host)| host));
        out.push_str(path.split(['?', '#']).next().unwrap_or_default());
        rest = next;
    }
    out.push_str(rest);
    ["Bearer ", "Basic "].into_iter().fold(out, |text, scheme| without_credentials(&text, scheme))
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

/// Whether a character cannot be part of a URL in a text.
fn is_end(c: char) -> bool {
    c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '>' | '`' | ',' | ';' | ')' | ']' | '}')
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
        ] {
            assert_eq!(scrub(text), expected);
            assert!(!scrub(text).contains("hidden"));
        }
    }
}
