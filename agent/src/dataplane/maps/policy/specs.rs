//! Names, capacities and settings of the maps.

use agent_common::{
    policy::{Bits, NamedKey, Peer, PeerKey, RuleKey, Ruleset},
    rulesets,
};

use super::{
    super::table::{MapSpec, count_entries},
    trie,
};

const RULES_SETTING: &str = "--max-policy-rules";

pub(in crate::dataplane) const PEERS: MapSpec = MapSpec {
    name: "PEERS",
    setting: "--max-policy-peers",
    capacity: |capacities| capacities.policy_peers,
    count: count_entries::<PeerKey, Peer>,
};
pub(in crate::dataplane) const BLOCKS: MapSpec = MapSpec {
    name: "BLOCKS",
    setting: RULES_SETTING,
    capacity: |capacities| capacities.policy_rules / 4,
    count: trie::count_entries::<20, u32>,
};
pub(in crate::dataplane) const RULESETS: MapSpec = MapSpec {
    name: "RULESETS",
    setting: RULES_SETTING,
    capacity: |capacities| rulesets(capacities.policy_rules),
    count: count_entries::<u32, Ruleset>,
};
pub(in crate::dataplane) const RULES: MapSpec = MapSpec {
    name: "RULES",
    setting: RULES_SETTING,
    capacity: |capacities| capacities.policy_rules,
    count: count_entries::<RuleKey, Bits>,
};
pub(in crate::dataplane) const NAMED: MapSpec = MapSpec {
    name: "NAMED",
    setting: RULES_SETTING,
    capacity: |capacities| capacities.policy_rules / 2,
    count: count_entries::<NamedKey, Bits>,
};
pub(in crate::dataplane) const PORTS: MapSpec = MapSpec {
    name: "PORTS",
    setting: RULES_SETTING,
    capacity: |capacities| capacities.policy_rules / 8,
    count: trie::count_entries::<8, Bits>,
};
