//! Which network configuration the runtime uses: the first by name.

use std::{fs, io, path::Path};

use serde::Deserialize;

/// The part of a configuration that tells whose it is: a list of plugins, or a single one.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Network {
    r#type: String,
    plugins: Vec<Plugin>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Plugin {
    r#type: String,
}

/// The suffixes that libcni reads.
const SUFFIXES: [&str; 3] = ["conf", "conflist", "json"];
/// Bytes; a longer file is taken for another plugin's.
const MAX_LENGTH: u64 = 1 << 20;

/// The name of the file that a runtime uses instead of one with the plugin, if any.
///
/// # Errors
/// If the directory cannot be listed.
pub(super) fn foreign_first(directory: &Path, plugin: &str) -> io::Result<Option<String>> {
    let mut first: Option<String> = None;
    for entry in fs::read_dir(directory)? {
        let Ok(name) = entry?.file_name().into_string() else { continue };
        let has_suffix =
            Path::new(&name).extension().is_some_and(|it| SUFFIXES.iter().any(|ours| it == *ours));
        if has_suffix && first.as_ref().is_none_or(|first| name < *first) {
            first = Some(name);
        }
    }
    Ok(first.filter(|name| !has_plugin(&directory.join(name), plugin)))
}

/// Whether a configuration has the plugin: the agent's own file, or an operator's chain.
fn has_plugin(path: &Path, plugin: &str) -> bool {
    let is_short = fs::metadata(path).is_ok_and(|it| it.is_file() && it.len() <= MAX_LENGTH);
    let content = if is_short { fs::read(path).unwrap_or_default() } else { Vec::new() };
    let network: Network = serde_json::from_slice(&content).unwrap_or_default();
    network.r#type == plugin || network.plugins.iter().any(|it| it.r#type == plugin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_file_by_name_wins_unless_it_has_the_plugin() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, content: &str| fs::write(dir.path().join(name), content).unwrap();
        let first = || foreign_first(dir.path(), "ferrule").unwrap();
        assert_eq!(first(), None, "no file at all");
        let ours = r#"{"name":"n","plugins":[{"type":"ferrule"},{"type":"portmap"}]}"#;
        put("05-ferrule.conflist", ours);
        let other = r#"{"name":"n","plugins":[{"type":"bridge"}]}"#;
        for later in ["10-bridge.conflist", "00-readme.txt", ".00-hidden.tmp", "00-old.conflist.bak"] {
            put(later, other);
        }
        assert_eq!(first(), None);
        put("04-chain.conflist", ours);
        put("04-single.conf", r#"{"name":"n","type":"ferrule"}"#);
        assert_eq!(first(), None, "an operator's chain");
        for (name, content) in [
            ("03-bridge.conflist", other),
            ("02-bridge.conf", r#"{"name":"n","type":"bridge"}"#),
            ("01-garbage.json", "{"),
        ] {
            put(name, content);
            assert_eq!(first().as_deref(), Some(name));
        }
    }
}
