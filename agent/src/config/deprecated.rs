//! Settings that a later release drops: `config check`, each start and the reference name them and their
//! successors.

use std::fmt;

/// A setting that is to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deprecated {
    /// As in the configuration file.
    pub key: &'static str,
    /// What to use instead, such as the key of another setting.
    pub successor: &'static str,
    /// The release that deprecated the setting. The minor release after the next one refuses the setting.
    pub since: &'static str,
}

/// A deprecated setting, and whether settings of the type `S` have it.
pub(super) type Entry<S> = (Deprecated, fn(&S) -> bool);

/// The deprecated settings that are set.
pub(super) fn used<S>(table: &[Entry<S>], settings: &S) -> Vec<Deprecated> {
    table.iter().filter(|(_, is_set)| is_set(settings)).map(|(deprecated, _)| *deprecated).collect()
}

// === impl Deprecated ===

impl fmt::Display for Deprecated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, successor, since } = self;
        write!(f, "{key} is deprecated since {since}, and a later release refuses it: use {successor}")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::Parser as _;

    use super::{
        super::{Args, DEPRECATED, Settings, manual},
        *,
    };

    const ENTRY: Entry<Settings> =
        (Deprecated { key: "vif_timeout", successor: "patience", since: "0.9.0" }, |it| {
            it.vif_timeout.is_some()
        });
    const SENTENCE: &str =
        "vif_timeout is deprecated since 0.9.0, and a later release refuses it: use patience";

    fn args(line: &[&str]) -> Args {
        let mut args = Args::try_parse_from([&["ferrule-agent"], line].concat()).unwrap();
        assert_eq!(args.deprecated.len(), DEPRECATED.len());
        args.deprecated = &[ENTRY];
        args
    }

    #[test]
    fn a_start_and_a_check_name_a_deprecated_setting_and_its_successor_wherever_it_is_set() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.toml");
        let path = path.to_str().unwrap();
        for (file, flags, is_set) in [
            ("standalone = true\npod_cidr = [\"10.0.0.0/24\"]\nvif_timeout = 9\n", &[][..], true),
            ("standalone = true\npod_cidr = [\"10.0.0.0/24\"]\n", &["--vif-timeout", "9"], true),
            ("standalone = true\npod_cidr = [\"10.0.0.0/24\"]\n", &["--self-heal", "off"], false),
        ] {
            fs::write(path, file).unwrap();
            let start = args(&[&["--config", path], flags].concat()).into_config().unwrap();
            assert_eq!(start.deprecated, if is_set { vec![ENTRY.0] } else { Vec::new() }, "{flags:?}");
            let check = args(&[flags, &["config", "check", path]].concat()).run_command().unwrap().unwrap();
            assert!(check.contains("valid") && check.contains(SENTENCE) == is_set, "{check}");
        }
    }

    #[test]
    fn the_reference_and_the_default_file_say_that_a_setting_is_deprecated() {
        let of_setting = |text: &str| text.matches("Deprecated since 0.9.0: use patience.").count();
        for text in [manual::reference(&[ENTRY]), manual::default_file(&[ENTRY])] {
            let joined = text.replace("\n# ", " ").replace('\n', " ");
            assert_eq!(of_setting(&joined), 1, "{text}");
        }
        assert_eq!(of_setting(&manual::reference(&[])), 0);
    }

    #[test]
    fn every_deprecated_key_is_a_setting_and_in_the_changelog() {
        let keys: Vec<_> = manual::settings().into_iter().map(|it| it.key).collect();
        let (_, changelog) =
            include_str!("../../../CHANGELOG.md").split_once("### Deprecated").unwrap_or_default();
        for (Deprecated { key, .. }, _) in DEPRECATED {
            assert!(keys.iter().any(|it| it == key), "{key} is no setting");
            assert!(changelog.contains(&format!("`{key}`")), "{key} is not under Deprecated in CHANGELOG.md");
        }
    }
}
