//! The language of comments, documents, messages and names: plain words, and lines that fit.

use std::path::Path;

use crate::finding::Finding;

/// The most characters of a line of a comment or of prose.
const MAX_WIDTH: usize = 110;

/// Phrases without a subject or outside the field's vocabulary, in lower case; each in two parts, so that
/// this file can be checked too.
const BANNED: [(&str, &str); 15] = [
    (concat!("some", "body"), "name the subject"),
    (concat!("no", "body"), "name the subject"),
    (concat!("who", "ever"), "name the subject"),
    (concat!("an", "ew"), "again, recreated, restored, rebuilt"),
    (concat!("in va", "in"), "without effect, failed"),
    (concat!("is to", "ld"), "say who notifies whom"),
    (concat!("are to", "ld"), "say who notifies whom"),
    (concat!("was to", "ld"), "say who notifies whom"),
    (concat!("be to", "ld"), "say who notifies whom"),
    (concat!("been to", "ld"), "say who notifies whom"),
    (concat!("put ri", "ght"), "repaired"),
    (concat!("puts ri", "ght"), "repairs"),
    (concat!("looked", " at"), "checked, inspected, compared"),
    (concat!("brings to", "gether"), "reconciles, compares, joins"),
    (concat!("has not", " the"), "wrong …, expected …"),
];

/// Checks one file of text.
pub(crate) fn check(file: &Path, text: &str) -> Vec<Finding> {
    let extension = file.extension().and_then(|it| it.to_str()).unwrap_or_default();
    let mut findings = Vec::new();
    let mut in_code_block = false;
    for (number, line) in (1..).zip(text.lines()) {
        let trimmed = line.trim_start();
        let is_prose = match extension {
            "md" => {
                let fence = trimmed.starts_with("```");
                in_code_block ^= fence;
                !fence && !in_code_block
            }
            "rs" | "proto" => trimmed.starts_with("//"),
            _ => trimmed.starts_with('#'),
        };
        let width = line.chars().count();
        if is_prose && width > MAX_WIDTH && can_wrap(trimmed) {
            let what = format!("{width} characters, and {MAX_WIDTH} are the most: wrap the line");
            findings.push(Finding::new(file, number, what));
        }
        // Names of functions count as words.
        let words = format!(" {} ", line.to_lowercase().replace(|c: char| !c.is_alphabetic(), " "));
        for (phrase, instead) in BANNED {
            if words.contains(&format!(" {phrase} ")) {
                findings.push(Finding::new(file, number, format!("\"{phrase}\": write instead: {instead}")));
            }
        }
    }
    findings
}

/// Whether a line has a place to break: not a row of a table, nor a single long word such as a link.
fn can_wrap(line: &str) -> bool {
    let text = line.trim_start_matches(['/', '!', '#', '*', '-', ' ']);
    !text.starts_with('|') && text.contains(' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(file: &str, text: &str) -> Vec<String> {
        check(Path::new(file), text).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn banned_phrases_are_found_in_comments_strings_and_names() {
        let [(phrase, instead), ..] = BANNED;
        let finding = [format!("x.rs:1: \"{phrase}\": write instead: {instead}")];
        let title = format!("{}{}", phrase[..1].to_uppercase(), &phrase[1..]);
        for text in [format!("// {title}."), format!("f(\"x {phrase}!\")"), format!("fn a_{phrase}_b() {{}}")]
        {
            assert_eq!(found("x.rs", &text), finding, "{text}");
        }
        assert_eq!(found("x.rs", &format!("let x{phrase} = 1;")), [] as [&str; 0]);
    }

    #[test]
    fn long_lines_are_found_in_comments_and_prose_but_not_in_code_and_tables() {
        let long = "word ".repeat(30);
        let finding =
            |file| [format!("{file}:1: 149 characters, and {MAX_WIDTH} are the most: wrap the line")];
        let prose = long.trim_end();
        assert_eq!(found("x.md", prose), finding("x.md"));
        assert_eq!(found("x.rs", &format!("// {}", &prose[3..])), finding("x.rs"));
        assert_eq!(found("x.yaml", &format!("# {}", &prose[2..])), finding("x.yaml"));
        for (file, text) in [
            ("x.rs", format!("f(\"{long}\");")),
            ("x.rs", format!("/// | {long} |")),
            ("x.md", format!("| {long} |")),
            ("x.md", format!("```\n{long}\n```")),
            ("x.md", format!("[1]:{}", "x".repeat(200))),
        ] {
            assert_eq!(found(file, &text), [] as [&str; 0], "{text}");
        }
    }
}
