//! The configuration file: TOML, with a suggestion for each unknown key.

use std::{fmt, fs, io, path::Path};

use super::{ConfigError, DEFAULT_FILE, Settings, manual};

/// A key that no setting has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownKey {
    key: String,
    /// The most similar key, if one is similar.
    suggestion: Option<String>,
}

/// The least Jaro similarity of a suggestion; clap suggests flags from 0.7.
const SIMILAR: f64 = 0.7;

/// In the place of a file's path: standard input.
const STDIN: &str = "-";

/// The settings of a file, or of standard input for `-`, and the keys that are set, in order. A missing file
/// is an error, also the default one.
///
/// # Errors
/// As [`Settings::read`].
pub(super) fn check(path: &Path) -> Result<(Settings, Vec<String>), ConfigError> {
    let is_stdin = path == Path::new(STDIN);
    // Once: a pipe is empty when it is read again.
    let text = if is_stdin { io::read_to_string(io::stdin()) } else { fs::read_to_string(path) };
    let text = text.map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    Ok((parse(path, &text)?, keys(path, &text)?))
}

fn parse(path: &Path, text: &str) -> Result<Settings, ConfigError> {
    let known: Vec<String> = manual::settings().into_iter().map(|it| it.key).collect();
    let unknown: Vec<UnknownKey> = keys(path, text)?
        .iter()
        .filter(|key| !known.contains(key))
        .map(|key| UnknownKey { key: key.clone(), suggestion: most_similar(key, &known) })
        .collect();
    if !unknown.is_empty() {
        return Err(ConfigError::UnknownKeys { path: path.to_owned(), keys: listed(&unknown) });
    }
    // From the text once more: the table no longer knows lines and columns.
    toml::from_str(text).map_err(|source| invalid(path, source))
}

fn keys(path: &Path, text: &str) -> Result<Vec<String>, ConfigError> {
    let table: toml::Table = text.parse().map_err(|source| invalid(path, source))?;
    Ok(table.into_iter().map(|(key, _)| key).collect())
}

fn invalid(path: &Path, source: toml::de::Error) -> ConfigError {
    ConfigError::Parse { path: path.to_owned(), source: Box::new(source) }
}

fn most_similar(key: &str, known: &[String]) -> Option<String> {
    // Flags have dashes where keys have underscores.
    let key = key.to_lowercase().replace('-', "_");
    let similarity = |it: &String| strsim::jaro(&key, it);
    let best = known.iter().max_by(|a, b| similarity(a).total_cmp(&similarity(b)))?;
    (similarity(best) > SIMILAR).then(|| best.clone())
}

fn listed(unknown: &[UnknownKey]) -> String {
    let each: Vec<String> = unknown.iter().map(ToString::to_string).collect();
    each.join(", ")
}

// === impl Settings ===

impl Settings {
    /// Reads the settings of a file; a missing default file has none.
    ///
    /// # Errors
    /// If the file cannot be read or parsed, or has keys of no setting.
    pub(super) fn read(path: &Path) -> Result<Self, ConfigError> {
        match fs::read_to_string(path) {
            Ok(text) => parse(path, &text),
            Err(error) if error.kind() == io::ErrorKind::NotFound && path == Path::new(DEFAULT_FILE) => {
                Ok(Self::default())
            }
            Err(source) => Err(ConfigError::Read { path: path.to_owned(), source }),
        }
    }
}

// === impl UnknownKey ===

impl fmt::Display for UnknownKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.suggestion {
            Some(suggestion) => write!(f, "{:?} (did you mean {suggestion:?}?)", self.key),
            None => write!(f, "{:?}", self.key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        parse(Path::new("/etc/ferrule/agent.toml"), text).unwrap_err().to_string()
    }

    #[test]
    fn every_unknown_key_is_named_with_the_most_similar_setting() {
        let error = refused("vif_timeout = 9\nmax_vif = 3\nself-heal = \"on\"\nzzz = 1\n");
        for named in [
            "\"max_vif\" (did you mean \"max_vifs\"?)",
            "\"self-heal\" (did you mean \"self_heal\"?)",
            "\"zzz\"",
            "\"/etc/ferrule/agent.toml\"",
        ] {
            assert!(error.contains(named), "{named}: {error}");
        }
        assert!(!error.contains("vif_timeout") && !error.contains("\"zzz\" (did"), "{error}");
    }

    #[test]
    fn a_value_of_the_wrong_type_is_named_with_its_line() {
        let error = refused("# one\nvif_timeout = \"soon\"\n");
        assert!(error.contains("line 2") && error.contains("vif_timeout"), "{error}");
    }

    #[test]
    fn a_flag_or_command_of_the_command_line_is_no_key() {
        for line in ["config = \"/x\"", "help = true", "version = true"] {
            assert!(refused(line).contains("unknown"), "{line}");
        }
    }
}
