//! The configuration file of ip-masq-agent, read as it is.

use std::{
    collections::BTreeMap,
    fs::{self, Metadata},
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use ipnet::IpNet;
use serde_json::Value;

use crate::{chain::chain, ipam::parse_cidr};

/// The settings of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct FileSettings {
    pub kept: Vec<IpNet>,
    pub masquerades_link_local_v4: bool,
    pub masquerades_link_local_v6: bool,
}

/// The file and its last valid content.
#[derive(Debug)]
pub(super) struct File {
    path: PathBuf,
    /// What [`Self::refresh`] has read; another inode also means another content.
    seen: Option<Stamp>,
    /// `None` before the first valid content.
    good: Option<FileSettings>,
    trouble: Option<String>,
}

/// Device, inode, time of change in ns, length.
type Stamp = (u64, u64, i128, u64);

/// Bytes: far more than [`MOST`] networks need.
const LARGEST: u64 = 1 << 20;
/// Networks in one file.
pub(super) const MOST: usize = 4096;

// === impl FileSettings ===

impl FileSettings {
    /// Those without a file: services with link-local addresses, such as a cloud's metadata service and its
    /// resolver, answer to nodes only. A file that does not mention these addresses keeps pods' sources, as
    /// with ip-masq-agent.
    pub fn without_file() -> Self {
        Self { masquerades_link_local_v4: true, ..Self::default() }
    }
}

// === impl File ===

impl File {
    pub fn new(path: PathBuf) -> Self {
        Self { path, seen: None, good: None, trouble: None }
    }

    /// Whether [`Self::refresh`] would read or report anything.
    pub fn has_changed(&self) -> bool {
        match fs::metadata(&self.path) {
            Ok(found) => self.seen != Some(stamp(&found)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.seen.is_some() || self.good.is_none()
            }
            Err(_) => true,
        }
    }

    /// Reads the file if it has changed. A missing file is no failure: a ConfigMap may be optional.
    pub fn refresh(&mut self) {
        let found = match fs::metadata(&self.path) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                (self.seen, self.good, self.trouble) = (None, Some(FileSettings::without_file()), None);
                return;
            }
            Err(error) => {
                self.fail(&error.to_string());
                return;
            }
        };
        let stamp = stamp(&found);
        if self.seen == Some(stamp) {
            return;
        }
        match read(&self.path, &found) {
            Ok(settings) => (self.good, self.trouble) = (Some(settings), None),
            Err(why) => self.fail(&why),
        }
        self.seen = Some(stamp);
    }

    /// The last valid content.
    pub fn good(&self) -> Option<&FileSettings> {
        self.good.as_ref()
    }

    /// Why the file's present content is not in use.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    fn fail(&mut self, why: &str) {
        let consequence = match self.good {
            Some(_) => "its last valid content stays in use",
            None => "the table stays as an earlier agent has left it",
        };
        let trouble = format!("cannot use {}: {why}; {consequence}", self.path.display());
        if self.trouble.as_deref() != Some(&trouble) {
            tracing::error!(path = %self.path.display(), why, "cannot use the file of ip-masq-agent");
        }
        self.trouble = Some(trouble);
    }
}

fn stamp(found: &Metadata) -> Stamp {
    let changed = i128::from(found.ctime()) * 1_000_000_000 + i128::from(found.ctime_nsec());
    (found.dev(), found.ino(), changed, found.size())
}

fn read(path: &Path, found: &Metadata) -> Result<FileSettings, String> {
    if found.len() > LARGEST {
        return Err(format!("{} bytes are too many", found.len()));
    }
    parse(&fs::read_to_string(path).map_err(|error| error.to_string())?)
}

/// JSON or YAML. As ip-masq-agent does, ignores the case of keys; unlike it, refuses unknown ones, because a
/// misspelt `nonMasqueradeCIDRs` would masquerade what must keep its source.
fn parse(text: &str) -> Result<FileSettings, String> {
    let mut settings = FileSettings::default();
    if text.trim().is_empty() {
        return Ok(settings);
    }
    let keys: BTreeMap<String, Value> = serde_saphyr::from_str(text).map_err(|error| chain(&error))?;
    for (key, value) in keys {
        let switch = |value: &Value| match value {
            Value::Null => Ok(false),
            Value::Bool(value) => Ok(*value),
            _ => Err(format!("{key} must be true or false, not {value}")),
        };
        match key.to_lowercase().as_str() {
            "nonmasqueradecidrs" => settings.kept = networks(&key, &value)?,
            "masqlinklocal" => settings.masquerades_link_local_v4 = switch(&value)?,
            "masqlinklocalipv6" => settings.masquerades_link_local_v6 = switch(&value)?,
            // The agent notices a change within a second.
            "resyncinterval" => {}
            _ => {
                return Err(format!(
                    "unknown key {key:?}; known are nonMasqueradeCIDRs, masqLinkLocal, masqLinkLocalIPv6 and \
                     resyncInterval"
                ));
            }
        }
    }
    Ok(settings)
}

fn networks(key: &str, value: &Value) -> Result<Vec<IpNet>, String> {
    let all = match value {
        Value::Null => return Ok(Vec::new()),
        Value::Array(all) if all.len() <= MOST => all,
        Value::Array(all) => {
            return Err(format!("{key} has {} networks, at most {MOST} are allowed", all.len()));
        }
        _ => return Err(format!("{key} must be a list of CIDRs, not {value}")),
    };
    let network = |(number, it): (usize, &Value)| {
        let text = it.as_str().ok_or_else(|| format!("{key}[{number}] must be a CIDR, not {it}"))?;
        parse_cidr(text.trim()).map_err(|error| format!("{key}[{number}]: {}", chain(&error)))
    };
    all.iter().enumerate().map(network).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(nets: &[&str]) -> FileSettings {
        FileSettings { kept: nets.iter().map(|it| it.parse().unwrap()).collect(), ..FileSettings::default() }
    }

    #[test]
    fn yaml_and_json_of_ip_masq_agent_are_read() {
        let yaml =
            "nonMasqueradeCIDRs:\n  - 10.0.0.0/8\n  - fd00::/8\nmasqLinkLocal: true\nresyncInterval: 60s\n";
        let mut expected = kept(&["10.0.0.0/8", "fd00::/8"]);
        expected.masquerades_link_local_v4 = true;
        assert_eq!(parse(yaml), Ok(expected.clone()));
        let json = r#"{"NonMasqueradeCIDRs":["10.0.0.0/8","fd00::/8"],"MasqLinkLocal":true,"ResyncInterval":"1m0s"}"#;
        assert_eq!(parse(json), Ok(expected), "Go ignores the case of keys");
        assert_eq!(parse(" \n"), Ok(FileSettings::default()));
        assert_eq!(parse("nonMasqueradeCIDRs:\nmasqLinkLocalIPv6: false"), Ok(FileSettings::default()));
        assert!(parse("masqLinkLocalIPv6: true").unwrap().masquerades_link_local_v6);
    }

    #[test]
    fn what_cannot_be_meant_is_refused_by_name() {
        for (text, parts) in [
            ("nonMasqueradeCIDRs: [10.0.0.0/8, 10.0.0.1/8]", ["nonMasqueradeCIDRs[1]", "10.0.0.0/8"]),
            ("nonMasqueradeCIDRs: [10.0.0.0]", ["nonMasqueradeCIDRs[0]", "not a CIDR"]),
            ("nonMasqueradeCIDRs: 10.0.0.0/8", ["nonMasqueradeCIDRs", "list"]),
            ("nonMasqueradeCIDR: []", ["\"nonMasqueradeCIDR\"", "nonMasqueradeCIDRs"]),
            ("masqLinkLocal: perhaps", ["masqLinkLocal", "perhaps"]),
            ("{", ["", ""]),
        ] {
            let why = parse(text).unwrap_err();
            assert!(parts.iter().all(|part| why.contains(part)), "{text}: {why}");
        }
        let many = format!("nonMasqueradeCIDRs: [{}]", vec!["10.0.0.0/8"; 4097].join(","));
        assert!(parse(&many).unwrap_err().contains("4097"));
    }

    #[test]
    fn a_bad_change_leaves_the_last_valid_content_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        let mut file = File::new(path.clone());
        let mut look = |text: Option<&str>| {
            if let Some(text) = text {
                // As a ConfigMap changes: another file under the same name.
                fs::write(dir.path().join("new"), text).unwrap();
                fs::rename(dir.path().join("new"), &path).unwrap();
            }
            file.refresh();
            (file.good().cloned(), file.trouble().map(str::to_owned))
        };
        let (good, trouble) = look(Some("{"));
        assert!(good.is_none() && trouble.unwrap().contains("earlier agent"));
        assert_eq!(look(Some("nonMasqueradeCIDRs: [10.0.0.0/8]")), (Some(kept(&["10.0.0.0/8"])), None));
        let (good, trouble) = look(Some("nonMasqueradeCIDRs: [10.0.0.0/33]"));
        assert_eq!(good, Some(kept(&["10.0.0.0/8"])));
        assert!(trouble.unwrap().contains("last valid"));
        let (good, trouble) = look(None);
        assert!(good.is_some() && trouble.is_some(), "still bad");
        assert_eq!(look(Some("{}")), (Some(FileSettings::default()), None));
        fs::remove_file(&path).unwrap();
        file.refresh();
        assert_eq!((file.good(), file.trouble()), (Some(&FileSettings::without_file()), None));
    }
}
