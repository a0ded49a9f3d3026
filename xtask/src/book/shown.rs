//! The commands that documents show: lines of `console` and `sh` blocks, as words of a shell.
//!
//! Unit tests of other crates compile this file too, each to parse the lines of its own program. So it has
//! nothing of xtask.

use std::{fs, io, path::Path};

/// A shown command line of one program.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    /// Document and line.
    pub(crate) place: String,
    /// From the program's name on.
    pub(crate) words: Vec<String>,
}

/// The command lines of `program` (`cargo xtask`, `ferrulectl`) in all documents of the workspace.
///
/// # Errors
/// If a document cannot be read.
pub(crate) fn commands(root: &Path, program: &str) -> io::Result<Vec<Shown>> {
    let mut shown = Vec::new();
    for folder in ["", "docs"] {
        for entry in fs::read_dir(root.join(folder))? {
            let path = entry?.path();
            if path.extension().is_some_and(|it| it == "md") {
                let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
                shown.extend(of_page(&name, &fs::read_to_string(&path)?, program));
            }
        }
    }
    Ok(shown)
}

fn of_page(page: &str, text: &str, program: &str) -> Vec<Shown> {
    let mut shown = Vec::new();
    let mut prompts: Option<&[&str]> = None;
    let mut before = String::new();
    for (number, line) in (1..).zip(text.lines()) {
        if let Some(language) = line.strip_prefix("```") {
            prompts = match (prompts, language) {
                (None, "console") => Some(&["# ", "$ "]),
                (None, "sh") => Some(&[""]),
                (None, _) => Some(&[]),
                (Some(_), _) => None,
            };
            continue;
        }
        let begins = prompts.unwrap_or_default().iter().find_map(|prompt| line.strip_prefix(prompt));
        let Some(part) = begins.or_else(|| (!before.is_empty()).then_some(line)) else { continue };
        before += part;
        if before.ends_with('\\') {
            before.pop();
            continue;
        }
        for words in commands_of(&std::mem::take(&mut before)) {
            if is_of(&words, program) {
                shown.push(Shown { place: format!("{page}:{number}"), words });
            }
        }
    }
    shown
}

/// Whether the words are a call of the program, whatever its directory.
fn is_of(words: &[String], program: &str) -> bool {
    let mut words = words.iter();
    program.split(' ').all(|part| words.next().is_some_and(|word| word.rsplit('/').next() == Some(part)))
}

/// The words of each command of a line: between pipes, semicolons and ampersands, and without redirections,
/// comments and assignments before the program. What a `$(…)` prints counts as one word, and its own command
/// as a further one.
fn commands_of(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![];
    let mut words: Vec<String> = vec![];
    let mut word = String::new();
    let mut quote = None;
    let mut inner = None;
    let mut rest = line.chars().peekable();
    while let Some(c) = rest.next() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                // An empty word is a word.
                if rest.peek() == Some(&c) {
                    word.push('\u{0}');
                }
            }
            (None | Some('"'), '$') if rest.peek() == Some(&'(') => {
                let text: String = rest.by_ref().skip(1).take_while(|c| *c != ')').collect();
                inner = Some(text);
                word.push_str("SHELL");
            }
            (None, '#') if word.is_empty() => break,
            (None, ' ') => push(&mut words, &mut word),
            (None, '|' | ';' | '&' | '(' | ')') if !word.ends_with(['>', '<']) => {
                push(&mut words, &mut word);
                commands.push(std::mem::take(&mut words));
            }
            (_, c) => word.push(c),
        }
    }
    push(&mut words, &mut word);
    commands.push(words);
    let mut commands: Vec<Vec<String>> = commands.into_iter().map(without_redirections).collect();
    commands.extend(inner.into_iter().flat_map(|it| commands_of(&it)));
    commands.retain(|it| !it.is_empty());
    commands
}

fn push(words: &mut Vec<String>, word: &mut String) {
    if !word.is_empty() {
        words.push(std::mem::take(word).replace('\u{0}', ""));
    }
}

fn without_redirections(words: Vec<String>) -> Vec<String> {
    let is_assignment = |word: &String| {
        word.split_once('=').is_some_and(|(name, _)| name.chars().all(|c| c.is_ascii_uppercase() || c == '_'))
    };
    let mut kept = Vec::new();
    let mut words = words.into_iter().skip_while(is_assignment);
    while let Some(word) = words.next() {
        let target = word.trim_start_matches(|c: char| c.is_ascii_digit());
        match target.strip_prefix(['>', '<']) {
            Some(file) if file.trim_start_matches(['>', '<']).is_empty() => drop(words.next()),
            Some(_) => {}
            None => kept.push(word),
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Vec<String> {
        of_page("x.md", text, "ferrulectl")
            .iter()
            .map(|it| format!("{}: {}", it.place, it.words.join("|")))
            .collect()
    }

    #[test]
    fn commands_are_those_after_a_prompt() {
        let text = "```console\n# ferrulectl status     # a comment\nferrulectl: output\n$ ferrulectl ipam\n```\n\
                    ferrulectl prose\n```sh\nferrulectl top\n```\n```yaml\n# ferrulectl no\n```\n";
        assert_eq!(
            of(text),
            ["x.md:2: ferrulectl|status", "x.md:4: ferrulectl|ipam", "x.md:8: ferrulectl|top"]
        );
    }

    #[test]
    fn a_line_may_have_several_commands_quotes_and_redirections() {
        let shell = |line: &str| of(&format!("```sh\n{line}\n```"));
        assert_eq!(
            shell(
                "A=b target/dist/ferrulectl drops --pod 'a b' -o json 2>&1 | jq '.x | .y' > z; ferrulectl top >f &"
            ),
            ["x.md:2: target/dist/ferrulectl|drops|--pod|a b|-o|json", "x.md:2: ferrulectl|top"]
        );
        assert_eq!(
            shell("ip link set $(ferrulectl explain a | head -1) down"),
            ["x.md:2: ferrulectl|explain|a"]
        );
        assert_eq!(shell("ferrulectl nodes \\\n  -o wide"), ["x.md:3: ferrulectl|nodes|-o|wide"]);
        assert_eq!(shell("kubectl ferrulectl"), [] as [&str; 0]);
    }
}
