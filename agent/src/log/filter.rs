//! The syntax of a filter: levels, and targets with levels.

use tracing_subscriber::{EnvFilter, filter::LevelFilter};

/// Reads a filter.
///
/// # Errors
/// Why the text is no filter. A typing error would silence the log.
pub(super) fn parse(text: &str) -> Result<EnvFilter, String> {
    let directives = text.split(',').map(str::trim).filter(|it| !it.is_empty());
    for directive in directives {
        let bare = directive.split(['=', '[']).next() == Some(directive);
        if bare && directive.parse::<LevelFilter>().is_err() && !directive.starts_with("ferrule") {
            return Err(format!(
                "{directive:?} is neither a level (error, warn, info, debug, trace, off) nor a target of the agent"
            ));
        }
    }
    EnvFilter::builder().parse(text).map_err(|error| format!("{text:?}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_level_is_refused() {
        for text in ["blah=foo", "inof", "ferrule_agent=debgu", "info,ferrule_agent=8x"] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(&format!("{text:?}")), "{error}");
        }
        for text in
            ["", "info", "DEBUG", "off", "ferrule_agent", "warn,ferrule_agent::watch=trace", "kube=debug"]
        {
            assert!(parse(text).is_ok(), "{text}");
        }
    }
}
