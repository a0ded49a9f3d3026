//! What a file has of the CNI configuration. Only the first entry is the agent's: programs such as the CNI
//! plugins of service meshes append entries to the first configuration of the directory, and do so again
//! whenever theirs is gone. The entries behind the agent's are theirs.
//!
//! Every entry that an agent writes has the type of the plugin, in every release: an entry of that type
//! behind the first one is no other program's, and does not stay.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use serde_json::Value;

use super::first::MAX_LENGTH;

/// A file's content, compared with the wanted one.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Present {
    /// Whether all that is the agent's is as wanted, and the rest well-formed.
    pub is_intact: bool,
    /// The entries of other programs, in their order.
    pub others: Vec<Value>,
}

const PLUGINS: &str = "plugins";
/// Bytes of a plugin's type, which is the name of its file.
const LONGEST_TYPE: usize = 255;
/// With any of these, the file may have the content of any user.
const WRITABLE_FOR_OTHERS: u32 = 0o022;

// === impl Present ===

impl Present {
    /// Compares with `wanted`, whose only entry is the agent's. Nothing counts of a file that is a link, too
    /// long, writable for others than its owner, or unreadable.
    pub fn read(path: &Path, wanted: &Value) -> Self {
        read(path).map(|network| Self::of(network, wanted)).unwrap_or_default()
    }

    fn of(mut network: Value, wanted: &Value) -> Self {
        let ours = wanted.get(PLUGINS).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let Some(Value::Array(entries)) = network.get_mut(PLUGINS).map(Value::take) else {
            return Self::default();
        };
        let is_ours = |entry: &Value| ours.iter().any(|it| kind(it) == kind(entry));
        // A network without an entry of the agent is another program's: nothing of it belongs behind ours.
        let behind = entries.iter().position(is_ours).and_then(|first| entries.get(first + 1..));
        let behind = behind.unwrap_or_default();
        let others: Vec<_> = behind.iter().filter(|it| kind(it).is_some() && !is_ours(it)).cloned().collect();
        let has_keys = wanted.as_object().is_some_and(|it| {
            it.iter().all(|(key, value)| key == PLUGINS || network.get(key) == Some(value))
        });
        Self { is_intact: has_keys && entries.starts_with(ours) && others.len() == behind.len(), others }
    }
}

/// The type of an entry; `None` if runtimes would refuse the entry.
pub(super) fn kind(entry: &Value) -> Option<&str> {
    let kind = entry.get("type")?.as_str()?;
    (!kind.is_empty() && kind.len() <= LONGEST_TYPE && !kind.contains('/')).then_some(kind)
}

fn read(path: &Path) -> Option<Value> {
    let found = fs::symlink_metadata(path).ok()?;
    let is_trusted = found.is_file() && found.permissions().mode() & WRITABLE_FOR_OTHERS == 0;
    let content = (is_trusted && found.len() <= MAX_LENGTH).then(|| fs::read(path))?;
    serde_json::from_slice(&content.ok()?).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(network: Value) -> Present {
        let plugin = json!({ "type": "ferrule", "capabilities": { "bandwidth": true } });
        let wanted = json!({ "cniVersion": "1.0.0", "name": "ferrule", "plugins": [plugin] });
        Present::of(network, &wanted)
    }

    fn network(plugins: &Value) -> Value {
        json!({ "name": "ferrule", "cniVersion": "1.0.0", "plugins": plugins })
    }

    #[test]
    fn entries_behind_the_agents_are_others_whatever_stands_in_them() {
        let ours = json!({ "capabilities": { "bandwidth": true }, "type": "ferrule" });
        let (mesh, tuning) =
            (json!({ "type": "istio-cni", "log_level": 1 }), json!({ "type": "tuning", "sysctl": {} }));
        let found = of(network(&json!([ours, mesh, tuning])));
        assert_eq!(found, Present { is_intact: true, others: vec![mesh.clone(), tuning] });
        let mut further = network(&json!([ours]));
        further["disableCheck"] = true.into();
        assert_eq!(of(further), Present { is_intact: true, others: vec![] }, "a further key of the network");
        for (changed, key, value) in [
            ("of an earlier release", "/plugins/0/capabilities", json!({})),
            ("of another network", "/name", json!("other")),
            ("with a version that old runtimes refuse", "/cniVersion", json!("1.1.0")),
        ] {
            let mut network = network(&json!([ours, mesh]));
            *network.pointer_mut(key).unwrap() = value;
            assert_eq!(of(network), Present { is_intact: false, others: vec![mesh.clone()] }, "{changed}");
        }
    }

    #[test]
    fn nothing_stays_that_runtimes_refuse_or_that_belongs_to_another_network() {
        let ours = json!({ "type": "ferrule", "capabilities": { "bandwidth": true } });
        let mesh = json!({ "type": "linkerd-cni" });
        let long = "x".repeat(256);
        for refused in [
            json!({}),
            json!({ "type": "" }),
            json!({ "type": 1 }),
            json!({ "type": "../x" }),
            json!({ "type": long }),
            json!("portmap"),
            ours.clone(),
            json!({ "type": "ferrule" }),
        ] {
            let found = of(network(&json!([ours, refused, mesh])));
            assert_eq!(found, Present { is_intact: false, others: vec![mesh.clone()] }, "{refused}");
        }
        for plugins in [json!([{ "type": "bridge" }, mesh]), json!([]), json!({}), json!(null)] {
            assert_eq!(of(network(&plugins)), Present::default(), "{plugins}");
        }
        let before = of(network(&json!([mesh, ours, { "type": "tuning" }])));
        assert_eq!(before, Present { is_intact: false, others: vec![json!({ "type": "tuning" })] });
        assert_eq!(of(json!("ferrule")), Present::default());
    }

    #[test]
    fn only_a_regular_file_counts_that_its_owner_alone_may_write() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("file"), dir.path().join("link"));
        let wanted = json!({ "plugins": [{ "type": "ferrule" }] });
        let found = |path: &Path| Present::read(path, &wanted).is_intact;
        assert!(!found(&path), "missing");
        fs::write(&path, wanted.to_string()).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        for (mode, is_intact) in [(0o644, true), (0o600, true), (0o664, false), (0o646, false)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(found(&path), is_intact, "{mode:o}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(found(&path) && !found(&link));
        fs::write(&path, wanted.to_string() + &" ".repeat(1 << 20)).unwrap();
        assert!(!found(&path), "too long");
    }
}
