//! The names of programs and maps in the kernel, for those who look whether any are left. Tests compare them
//! with the sources of the programs.

/// The programs.
pub const PROGRAMS: [&str; 7] =
    ["from_pod", "to_pod", "from_tunnel", "from_uplink", "to_tunnel", "to_link", "set_subject"];

/// The maps of policies.
pub const POLICY_MAPS: [&str; 13] = [
    "PEERS",
    "BLOCKS",
    "RULESETS",
    "RULES",
    "NAMED",
    "PORTS",
    "POLICY_FLOWS",
    "POLICY_PENDING",
    "POLICY_PLACES",
    "POLICY_CASE",
    "POLICY_ALLOWED",
    "FRAGMENTS",
    "FRAGMENT_PLACES",
];

/// The other maps.
pub const OTHER_MAPS: [&str; 20] = [
    "VIFS",
    "ENDPOINTS",
    "VIF_TRAFFIC",
    "VIF_COUNTERS",
    "STACK_FLOWS",
    "FLOW_RINGS",
    "NODES",
    "NODE_PREFIXES",
    "NODE_LENGTHS",
    "UNDERLAY",
    "TUNNEL_FLOWS",
    "LINK_COUNTERS",
    "EVENTS",
    "EVENT_BUDGETS",
    "FLOW_STATS",
    "FLOW_SAMPLING",
    "FLOW_ENDS",
    "FLOW_FACTS",
    "FLOW_PLACES",
    "NEW_FLOW",
];

/// The map of log records, which the crate `aya-log-ebpf` declares.
pub const LOG_MAP: &str = "AYA_LOGS";

/// Whether a program may be one of ours.
pub fn is_program(name: &str) -> bool {
    PROGRAMS.contains(&name)
}

/// Whether a map may be one of ours.
pub fn is_map(name: &str) -> bool {
    POLICY_MAPS.contains(&name) || OTHER_MAPS.contains(&name) || name == LOG_MAP
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::{
        collections::BTreeSet,
        fs,
        path::{Path, PathBuf},
        string::String,
        vec::Vec,
    };

    use super::*;

    /// The sources of the programs below a directory, with their paths.
    fn sources(directory: &Path, into: &mut Vec<(PathBuf, String)>) {
        for entry in fs::read_dir(directory).unwrap().map(|it| it.unwrap().path()) {
            if entry.is_dir() {
                sources(&entry, into);
            } else {
                into.push((entry.clone(), fs::read_to_string(entry).unwrap()));
            }
        }
    }

    fn all_sources() -> Vec<(PathBuf, String)> {
        let mut found = Vec::new();
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../agent-ebpf/src"), &mut found);
        found
    }

    /// The items behind an attribute: the words behind a keyword.
    fn items<'a>(text: &'a str, attribute: &str, keyword: &str) -> Vec<&'a str> {
        let behind = text.split(attribute).skip(1);
        let name = |it: &'a str| it.split_once(keyword).unwrap().1.split([':', '(']).next().unwrap();
        behind.map(name).collect()
    }

    #[test]
    fn every_map_of_the_programs_is_listed_and_no_other() {
        let (mut of_policies, mut others) = (BTreeSet::new(), BTreeSet::new());
        let all = all_sources();
        for (path, text) in &all {
            let is_of_policies = path.components().any(|it| it.as_os_str() == "policy");
            let into = if is_of_policies { &mut of_policies } else { &mut others };
            into.extend(items(text, "#[btf_map]\n", "static "));
        }
        assert_eq!(of_policies, BTreeSet::from(POLICY_MAPS));
        assert_eq!(others, BTreeSet::from(OTHER_MAPS));
        assert!(is_map("VIFS") && is_map("PEERS") && is_map("AYA_LOGS") && !is_map("theirs"));
    }

    #[test]
    fn every_program_is_listed_and_no_other() {
        let all = all_sources();
        let found: BTreeSet<_> =
            all.iter().flat_map(|(_, text)| items(text, "#[classifier]\n", "fn ")).collect();
        assert_eq!(found, BTreeSet::from(PROGRAMS));
    }
}
