//! Colours, only on a terminal.

use std::{
    env,
    io::{self, IsTerminal as _},
    sync::atomic::{AtomicBool, Ordering},
};

/// Whether standard output, and standard error, get colours. Off until [`begin`].
static ON_STDOUT: AtomicBool = AtomicBool::new(false);
static ON_STDERR: AtomicBool = AtomicBool::new(false);

const RED: &str = "\u{1b}[31m";
const GREEN: &str = "\u{1b}[32m";
const YELLOW: &str = "\u{1b}[33m";
const RESET: &str = "\u{1b}[0m";

/// Turns colours on for the outputs that are terminals, unless the environment objects: `NO_COLOR` (see
/// no-color.org), or a terminal that calls itself dumb.
pub(crate) fn begin() {
    let objects = env::var_os("NO_COLOR").is_some_and(|it| !it.is_empty())
        || env::var_os("TERM").is_none_or(|it| it == "dumb");
    ON_STDOUT.store(!objects && io::stdout().is_terminal(), Ordering::Relaxed);
    ON_STDERR.store(!objects && io::stderr().is_terminal(), Ordering::Relaxed);
}

/// Well: green.
pub(crate) fn good(text: &str) -> String {
    painted(&ON_STDOUT, GREEN, text)
}

/// Worth a look: yellow.
pub(crate) fn warn(text: &str) -> String {
    painted(&ON_STDOUT, YELLOW, text)
}

/// Broken: red.
pub(crate) fn bad(text: &str) -> String {
    painted(&ON_STDOUT, RED, text)
}

pub(crate) fn bad_on_stderr(text: &str) -> String {
    painted(&ON_STDERR, RED, text)
}

/// The number of characters that a terminal shows of a text: colours take no place.
pub(crate) fn width(text: &str) -> usize {
    let mut width = 0;
    let mut in_colour = false;
    for c in text.chars() {
        match c {
            '\u{1b}' => in_colour = true,
            'm' if in_colour => in_colour = false,
            _ if in_colour => {}
            _ => width += 1,
        }
    }
    width
}

fn painted(on: &AtomicBool, colour: &str, text: &str) -> String {
    if on.load(Ordering::Relaxed) { format!("{colour}{text}{RESET}") } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_take_no_place_in_a_table() {
        let on = AtomicBool::new(true);
        let red = painted(&on, RED, "märz");
        assert_eq!((red.as_str(), width(&red)), ("\u{1b}[31mmärz\u{1b}[0m", 4));
    }

    #[test]
    fn nothing_is_painted_before_a_terminal_is_seen() {
        assert_eq!([good("a"), bad("b"), warn("c")], ["a", "b", "c"]);
    }
}
