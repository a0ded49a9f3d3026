//! Which network configuration the runtime uses: the first by name.

use std::{fs, io, path::Path};

use serde_json::Value;

/// The agent's own. Runtimes use the first file by name.
pub(super) const CONFLIST: &str = "05-ferrule.conflist";
/// The suffixes that libcni reads.
const SUFFIXES: [&str; 3] = ["conf", "conflist", "json"];
/// Bytes; a longer file is taken for another plugin's.
pub(super) const MAX_LENGTH: u64 = 1 << 20;

/// The name of the file that a runtime uses instead of one with the plugin, if any.
///
/// # Errors
/// If the directory cannot be listed.
pub(super) fn foreign_first(directory: &Path, plugin: &str) -> io::Result<Option<String>> {
    let first = configurations(directory)?.into_iter().min();
    Ok(first.filter(|name| !has_plugin(&directory.join(name), plugin)))
}

/// The names of all files whose configuration calls the plugin, in their order.
///
/// # Errors
/// If the directory cannot be listed.
pub(super) fn with_plugin(directory: &Path, plugin: &str) -> io::Result<Vec<String>> {
    let mut names = configurations(directory)?;
    names.retain(|name| has_plugin(&directory.join(name), plugin));
    names.sort_unstable();
    Ok(names)
}

fn configurations(directory: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        let Ok(name) = entry?.file_name().into_string() else { continue };
        if Path::new(&name).extension().is_some_and(|it| SUFFIXES.iter().any(|ours| it == *ours)) {
            names.push(name);
        }
    }
    Ok(names)
}

/// Whether a configuration calls the plugin: the agent's own file, an operator's chain, or Multus.
fn has_plugin(path: &Path, plugin: &str) -> bool {
    let is_short = fs::metadata(path).is_ok_and(|it| it.is_file() && it.len() <= MAX_LENGTH);
    let content = if is_short { fs::read(path).unwrap_or_default() } else { Vec::new() };
    serde_json::from_slice(&content).is_ok_and(|network| calls(&network, plugin))
}

/// Multus has configurations in `delegates`, or names one in `clusterNetwork`: a file, as it sees the
/// directory, or a network (its `docs/configuration.md`). The agent's network has the plugin's name.
fn calls(network: &Value, plugin: &str) -> bool {
    let text = |field: &str| network.get(field).and_then(Value::as_str).unwrap_or_default();
    let named = Path::new(text("clusterNetwork")).file_name().unwrap_or_default();
    let parts = ["plugins", "delegates"].into_iter().filter_map(|field| network.get(field)?.as_array());
    text("type") == plugin
        || named == CONFLIST
        || named == plugin
        || parts.flatten().any(|part| calls(part, plugin))
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
        let delegates = format!(r#"{{"name":"m","type":"multus","delegates":[{ours}]}}"#);
        let file = r#"{"type":"multus-shim","clusterNetwork":"/host/etc/cni/net.d/05-ferrule.conflist"}"#;
        let network = r#"{"type":"multus","clusterNetwork":"ferrule"}"#;
        for multus in [&delegates, file, network] {
            put("03-multus.conf", multus);
            assert_eq!(first(), None, "{multus}");
        }
        let called = ["03-multus.conf", "04-chain.conflist", "04-single.conf", "05-ferrule.conflist"];
        assert_eq!(with_plugin(dir.path(), "ferrule").unwrap(), called);
        for (name, content) in [
            ("03-multus.conf", r#"{"type":"multus-shim","clusterNetwork":"/etc/cni/net.d/10-x.conflist"}"#),
            ("03-bridge.conflist", other),
            ("02-bridge.conf", r#"{"name":"n","type":"bridge"}"#),
            ("01-garbage.json", "{"),
        ] {
            put(name, content);
            assert_eq!(first().as_deref(), Some(name));
        }
    }
}
