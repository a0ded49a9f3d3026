//! What is read back from the maps, by key, judges as the compiler's rows do.

use std::{collections::BTreeMap, convert::Infallible};

use agent_common::policy::{self as maps, Bits, BlockKey, Peer, PeerKey, Ruleset, Subject};
use fastrand::Rng;
use ferrule_policy::{Compiler, Direction, EndpointId, Maps, Op, Table, lookup, recorded};
use serde_json::json;

use super::{
    random,
    world::{End, TCP, World, packet},
};

/// The maps as the kernel would hold them.
#[derive(Default)]
struct Kernel {
    subjects: BTreeMap<u32, Subject>,
    peers: BTreeMap<PeerKey, Peer>,
    blocks: BTreeMap<BlockKey, u32>,
    rulesets: BTreeMap<u32, Ruleset>,
    rules: BTreeMap<maps::RuleKey, Bits>,
    named: BTreeMap<maps::NamedKey, Bits>,
    ports: BTreeMap<maps::PortKey, Bits>,
}

impl Kernel {
    fn of(compiler: &Compiler) -> Self {
        let mut kernel = Self::default();
        for op in compiler.rows().all() {
            match op {
                Op::Peer(key, row) => drop(kernel.peers.insert(key.key(Table::A), row.unwrap().into())),
                Op::Block(key, row) => drop(kernel.blocks.insert(key.key(Table::A), row.unwrap().0)),
                Op::Ruleset(key, row) => drop(kernel.rulesets.insert(key.0, (&*row.unwrap()).into())),
                Op::Rule(key, row) => drop(kernel.rules.insert(key.into(), row.unwrap().0)),
                Op::Named(key, row) => drop(kernel.named.insert(key.into(), row.unwrap().0)),
                Op::Port(key, row) => drop(kernel.ports.insert(key.into(), row.unwrap().0)),
                Op::Endpoint(key, row) => drop(kernel.subjects.insert(key.0, row.unwrap().into())),
            }
        }
        kernel
    }
}

/// Whether the first `bits` of two keys are equal.
fn shares(bits: u32, a: &[u8], b: &[u8]) -> bool {
    let bit = |of: &[u8], n: usize| of[n / 8] >> (7 - n % 8) & 1;
    (0..bits as usize).all(|n| bit(a, n) == bit(b, n))
}

fn block_bytes(key: &BlockKey) -> Vec<u8> {
    [&key.table.to_ne_bytes()[..], &key.address[..]].concat()
}

fn port_bytes(key: &maps::PortKey) -> Vec<u8> {
    [&key.ruleset.to_ne_bytes()[..], &[key.protocol, key.reserved], &key.port[..]].concat()
}

impl Maps for Kernel {
    type Error = Infallible;

    fn subject(&self, endpoint: EndpointId) -> Result<Option<Subject>, Infallible> {
        Ok(self.subjects.get(&endpoint.0).copied())
    }

    fn ruleset(&self, ruleset: u32) -> Result<Option<Ruleset>, Infallible> {
        Ok(self.rulesets.get(&ruleset).copied())
    }

    fn peer(&self, key: PeerKey) -> Result<Option<Peer>, Infallible> {
        Ok(self.peers.get(&key).copied())
    }

    fn block(&self, key: BlockKey) -> Result<Option<u32>, Infallible> {
        let covers = |it: &&BlockKey| {
            it.prefix_len <= key.prefix_len && shares(it.prefix_len, &block_bytes(it), &block_bytes(&key))
        };
        let longest = self.blocks.keys().filter(covers).max_by_key(|it| it.prefix_len);
        Ok(longest.map(|it| self.blocks[it]))
    }

    fn rule(&self, key: maps::RuleKey) -> Result<Option<Bits>, Infallible> {
        Ok(self.rules.get(&key).copied())
    }

    fn named(&self, key: maps::NamedKey) -> Result<Option<Bits>, Infallible> {
        Ok(self.named.get(&key).copied())
    }

    fn port(&self, key: maps::PortKey) -> Result<Option<Bits>, Infallible> {
        let covers = |it: &&maps::PortKey| {
            it.prefix_len <= key.prefix_len && shares(it.prefix_len, &port_bytes(it), &port_bytes(&key))
        };
        let longest = self.ports.keys().filter(covers).max_by_key(|it| it.prefix_len);
        Ok(longest.map(|it| self.ports[it]))
    }
}

/// Compares all packets between all ends; returns how many had a verdict.
fn compare(world: &World) -> usize {
    let engine = world.engine();
    let kernel = Kernel::of(&engine.compiler);
    let mut compared = 0;
    for own in random::ends(world) {
        for peer in random::ends(world) {
            for direction in [Direction::Ingress, Direction::Egress] {
                for traffic in random::TRAFFIC.into_iter().chain([(TCP, 1000), (TCP, 1048)]) {
                    let Some(packet) = packet(world, direction, own, peer, traffic) else { continue };
                    let Ok(found) = recorded(&kernel, &packet);
                    let expected = lookup(&engine.rows, &packet);
                    assert_eq!(lookup(&found.rows, &packet), expected, "{packet:?}");
                    compared += 1;
                }
            }
        }
    }
    compared
}

#[test]
fn rows_that_are_read_back_judge_random_packets_as_the_compiler_does() {
    let mut rng = Rng::with_seed(11);
    let compared: usize = (0..40).map(|_| compare(&random::world(&mut rng))).sum();
    assert!(compared > 10_000, "{compared}");
}

#[test]
fn a_block_of_all_ipv6_is_none_of_ipv4_though_both_are_in_one_trie() {
    let mut world = World::default();
    world.add_namespace("a", &[]);
    world.add_pod("a", "server", "10.0.0.1", &[]);
    let spec = json!({"podSelector": {}, "ingress": [{"from": [{"ipBlock": {"cidr": "::/0"}}]}]});
    world.policies.insert(("a".to_owned(), "p".to_owned()), spec);
    assert!(compare(&world) > 0);
}

#[test]
fn ports_that_are_too_many_for_the_header_are_read_from_their_map() {
    let mut world = World::default();
    world.add_namespace("a", &[]);
    world.add_pod("a", "server", "10.0.0.1", &[]);
    world.add_pod("a", "client", "10.0.0.2", &[]);
    let ports: Vec<_> = (0..40).map(|n| json!({"port": 1000 + 2 * n})).collect();
    let spec = json!({"podSelector": {}, "ingress": [{"ports": ports}]});
    world.policies.insert(("a".to_owned(), "p".to_owned()), spec);
    assert!(compare(&world) > 0);
    assert!(!Kernel::of(&world.engine().compiler).ports.is_empty());
}

#[test]
fn an_endpoint_without_a_row_passes_nothing_and_its_ruleset_is_not_known() {
    let mut world = World::default();
    world.add_namespace("a", &[]);
    world.add_pod("a", "server", "10.0.0.1", &[]);
    let other = End::Outside("10.0.0.9".parse().unwrap());
    let packet = packet(&world, Direction::Ingress, world.end("a/server"), other, (TCP, 80)).unwrap();
    let Ok(found) = recorded(&Kernel::default(), &packet);
    assert_eq!((found.ruleset, found.is_audited), (None, false));
    assert!(!lookup(&found.rows, &packet).is_allowed);
}
