//! An error and its causes on one line, for logs and answers.

use std::error::Error;

/// All messages of the chain, the outermost first, without those that only repeat.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        // A transparent error shows as its cause.
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text.replace('\n', " ")
}
