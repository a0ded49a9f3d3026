//! The settings as texts: a commented configuration file, and the reference in `docs/settings.md`.

use std::fmt::Write as _;

use clap::{ArgAction, CommandFactory as _};

use super::{Args, Settings, deprecated::Entry};

/// A setting, as the command line declares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Setting {
    /// The key in the configuration file: the long flag, with `_` instead of `-`.
    pub key: String,
    flag: String,
    environment: String,
    help: String,
    /// In words, or as a value; empty: unset.
    default: String,
    /// The allowed values, or none if they cannot be listed.
    values: Vec<String>,
    /// A placeholder such as `FILE`.
    placeholder: String,
    is_list: bool,
    is_switch: bool,
}

/// All settings of the configuration file, in the order of `--help`.
pub(super) fn settings() -> Vec<Setting> {
    let mut command = Args::command();
    command.build();
    command.get_arguments().filter_map(Setting::of).collect()
}

/// A configuration file that sets nothing: each setting as a comment, with its default.
pub(super) fn default_file(deprecated: &[Entry<Settings>]) -> String {
    let mut text = String::from(
        "# The configuration of ferrule-agent. Keys are its long flags, with `_` instead of `-`. Flags override\n\
         # environment variables, which override this file. `ferrule-agent config check FILE` checks a file.\n",
    );
    for setting in settings() {
        text.push('\n');
        for line in wrapped(&setting.sentence(deprecated)) {
            let _ = writeln!(text, "# {line}");
        }
        let _ = writeln!(text, "# {} = {}", setting.key, setting.example());
    }
    text
}

/// The reference of all settings, in Markdown.
pub(super) fn reference(deprecated: &[Entry<Settings>]) -> String {
    let mut text = String::from(
        "# Settings of the agent\n\n\
         `ferrule-agent config reference` prints this page, and a test compares both. A setting is a flag, an\n\
         environment variable, or a key of the configuration file, by default `/etc/ferrule/agent.toml`. Flags\n\
         override the environment, which overrides the file. An agent reads them at start;\n\
         [configure.md](configure.md) lists what changes without a restart. The value of a key below\n\
         is the default, or an example.\n",
    );
    for it in settings() {
        let (key, flag, environment) = (&it.key, &it.flag, &it.environment);
        let _ = writeln!(text, "\n## {key}\n\n`{key} = {}`, `--{flag}`, `{environment}`\n", it.example());
        for line in wrapped(&it.sentence(deprecated)) {
            let _ = writeln!(text, "{line}");
        }
    }
    text
}

// === impl Setting ===

impl Setting {
    /// `None`: the argument is not a setting of the file.
    fn of(arg: &clap::Arg) -> Option<Self> {
        let flag = arg.get_long()?;
        // Not `--config`, which names the file, nor `--help` and `--version`, which have no variable.
        let environment = arg.get_env()?.to_str()?.to_owned();
        if arg.get_id() == "config" {
            return None;
        }
        let help = arg.get_help()?.to_string();
        let (help, default) = match help.rsplit_once(" [default") {
            // Such as "[default: 60]" and "[default with Kubernetes: the node's spec.podCIDRs]".
            Some((help, default)) => {
                (help.to_owned(), default.trim_end_matches(']').trim_start_matches(": "))
            }
            None => (help.clone(), ""),
        };
        let values = arg.get_possible_values();
        let is_switch = values.iter().map(|it| it.get_name()).eq(["true", "false"]);
        let names = arg.get_value_names().unwrap_or_default();
        Some(Self {
            key: flag.replace('-', "_"),
            flag: flag.to_owned(),
            environment,
            help: help.trim_end_matches('.').to_owned(),
            default: default.trim().to_owned(),
            values: if is_switch { Vec::new() } else { names_of(&values) },
            placeholder: names.first().map(ToString::to_string).unwrap_or_default(),
            is_list: matches!(arg.get_action(), ArgAction::Append),
            is_switch,
        })
    }

    fn sentence(&self, deprecated: &[Entry<Settings>]) -> String {
        let mut text = format!("{}.", self.help);
        if self.placeholder == "SECONDS" {
            text.push_str(" In seconds.");
        }
        if !self.values.is_empty() {
            let _ = write!(text, " Values: {}.", self.values.join(", "));
        }
        if !self.default.is_empty() {
            let _ = write!(text, " Default: {}.", self.default);
        }
        for (it, _) in deprecated.iter().filter(|(it, _)| it.key == self.key) {
            let _ = write!(text, " Deprecated since {}: use {}.", it.since, it.successor);
        }
        text
    }

    /// The example in the help, such as `this`, or else the placeholder.
    fn proposal(&self) -> &str {
        let example = self.help.split_once("such as `").and_then(|(_, rest)| rest.split_once('`'));
        example.map_or(&self.placeholder, |(example, _)| example)
    }

    /// A value in TOML: the default, if the default is a value.
    fn example(&self) -> String {
        let value = match self.default.as_str() {
            "" if self.is_switch => return "true".to_owned(),
            words if words.is_empty() || words.contains(' ') || words == "none" => self.proposal(),
            value if value.parse::<u64>().is_ok() => return value.to_owned(),
            value => value,
        };
        // JSON's strings are valid in TOML.
        let quoted = serde_json::Value::from(value).to_string();
        if self.is_list { format!("[{quoted}]") } else { quoted }
    }
}

fn names_of(values: &[clap::builder::PossibleValue]) -> Vec<String> {
    values.iter().map(|it| it.get_name().to_owned()).collect()
}

/// Breaks a text into lines of at most 108 characters.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = vec![String::new()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.chars().count() + 1 + word.chars().count() <= 108 => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::DEPRECATED;

    #[test]
    fn the_default_file_sets_nothing_and_each_of_its_lines_is_a_valid_key() {
        let file = default_file(DEPRECATED);
        assert!(toml::from_str::<Settings>(&file).is_ok());
        assert!(file.parse::<toml::Table>().unwrap().is_empty());
        for setting in settings() {
            let line = format!("{} = {}", setting.key, setting.example());
            assert!(file.contains(&format!("\n# {line}\n")), "{line}");
            let parsed = toml::from_str::<Settings>(&line);
            // A placeholder has the right type, but is no address.
            assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
        }
    }

    #[test]
    fn defaults_and_allowed_values_are_those_of_the_command_line() {
        let file = default_file(DEPRECATED);
        for expected in [
            "# vif_timeout = 60\n",
            "# self_heal = \"on\"\n",
            "# http = \"127.0.0.1:9469\"\n",
            "# pod_cidr = [\"CIDR\"]\n",
            "# standalone = true\n",
            "Values: auto, on, off. Default: auto.",
        ] {
            assert!(file.contains(expected), "{expected}\n{file}");
        }
    }

    /// `ferrule-agent config reference > docs/settings.md` renews the page.
    #[test]
    fn the_page_of_settings_is_the_one_that_the_agent_prints() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/settings.md");
        let page = std::fs::read_to_string(path).unwrap();
        assert!(
            page == reference(DEPRECATED),
            "docs/settings.md is stale: ferrule-agent config reference > docs/settings.md"
        );
    }
}
