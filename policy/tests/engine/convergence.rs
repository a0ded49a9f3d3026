//! Random clusters: after each edit, the rows judge as the oracle does, as a compiler from scratch does, and
//! as the policies themselves do; and after each single row, each endpoint is judged as before or as after,
//! and no flow is allowed for good that is denied in the end.

use std::{collections::BTreeSet, env};

use fastrand::Rng;
use ferrule_policy::{Change, Compiler, Direction, Op, Packet, Rows, TraceError, Verdict, lookup};

use super::{
    oracle::{self, Way},
    random::{self, TRAFFIC},
    world::{End, Engine, Pod, Traffic, World, packet},
};

/// Clusters by default; `FERRULE_POLICY_CLUSTERS` has another number, for hours.
const CLUSTERS: u64 = 20;
const EDITS: usize = 8;

#[test]
fn random_clusters_are_judged_as_by_the_oracle_after_each_edit() {
    let clusters = env::var("FERRULE_POLICY_CLUSTERS").map_or(CLUSTERS, |it| it.parse().unwrap());
    let first = env::var("FERRULE_POLICY_SEED").map_or(0, |it| it.parse().unwrap());
    for seed in first..first + clusters {
        cluster(seed);
    }
}

fn cluster(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let mut world = random::world(&mut rng);
    let mut changes = world.changes();
    rng.shuffle(&mut changes);
    let mut engine = Engine::default();
    for change in changes {
        engine.apply([change]);
    }
    check(seed, &world, &engine);
    for _ in 0..EDITS {
        let before = world.clone();
        // The agent applies at once what has come meanwhile.
        let edits = if rng.u8(..3) == 0 { rng.usize(2..=5) } else { 1 };
        let events: Vec<_> = (0..edits).flat_map(|_| random::edit(&mut rng, &mut world)).collect();
        let is_one = events.len() == 1;
        let batches = if edits > 1 { vec![events] } else { events.into_iter().map(|it| vec![it]).collect() };
        for batch in batches {
            let of_policy = matches!(batch.as_slice(), [Change::Policy(_) | Change::PolicyGone { .. }]);
            let old = engine.rows.clone();
            let delta = engine.apply(batch);
            check_prefixes(seed, &[&before, &world], &old, &delta.ops, (is_one, of_policy));
        }
        check(seed, &world, &engine);
        from_scratch(seed, &mut rng, &world, &engine);
    }
}

fn check(seed: u64, world: &World, engine: &Engine) {
    check_marks(seed, world, engine);
    let ends = random::ends(world);
    for (from, to) in pairs(&ends) {
        for traffic in TRAFFIC {
            let context = || format!("seed {seed}: {from:?} to {to:?}, {traffic:?} in {world:#?}");
            for (way, direction, me, other) in
                [(Way::Out, Direction::Egress, from, to), (Way::In, Direction::Ingress, to, from)]
            {
                let Some(verdict) = engine.verdict(world, direction, me, other, traffic) else { continue };
                let expected = oracle::one_way(world, way, me, other, traffic);
                assert_eq!(verdict.is_allowed, expected, "{direction:?} {verdict:?} {}", context());
            }
            let traced = match engine.try_trace(world, from, to, traffic) {
                Err(TraceError::Service(address)) => {
                    assert!(world.services.values().flatten().any(|it| *it == address), "{}", context());
                    continue;
                }
                traced => traced.unwrap(),
            };
            // A trace chooses among the addresses of a pod.
            let is_single = [from, to].iter().all(|end| match end {
                End::Pod(uid, _) => world.pods[*uid].addresses.len() == 1,
                End::Outside(_) => true,
                // Its address is not part of the question.
                End::OwnNode(_) => false,
            });
            if is_single {
                assert_eq!(
                    traced.is_allowed,
                    oracle::allowed(world, from, to, traffic),
                    "{traced:?} {}",
                    context()
                );
                let verdict = engine.verdict(world, Direction::Egress, from, to, traffic);
                same_rule(engine, verdict, traffic, &traced.egress, &context);
                let verdict = engine.verdict(world, Direction::Ingress, to, from, traffic);
                same_rule(engine, verdict, traffic, &traced.ingress, &context);
            }
        }
    }
}

/// Each address is known as what the world says, and no others are known.
fn check_marks(seed: u64, world: &World, engine: &Engine) {
    let living = || world.pods.values().filter(|pod| !pod.is_terminal && !pod.host_network);
    let pods: BTreeSet<_> = living().flat_map(|pod| &pod.addresses).collect();
    let services: BTreeSet<_> = world.services.values().flatten().collect();
    let known: BTreeSet<_> = pods.iter().chain(&services).copied().chain(&world.own).collect();
    for address in known {
        let row = engine.rows.peer((*address).into());
        let found = row.map(|it| (it.is_pod, it.is_service, it.is_own_node));
        let is_pod = pods.contains(address);
        let expected = (is_pod, !is_pod && services.contains(address), world.own.contains(address));
        assert_eq!(found, Some(expected), "seed {seed}: {address} in {world:#?}");
        let found = engine.compiler.pod_with(*address);
        let has = |pod: &Pod| found == Some((&pod.namespace, &pod.name)) && pod.addresses.contains(address);
        let is_named = if is_pod { living().any(has) } else { found.is_none() };
        assert!(is_named, "seed {seed}: {address} is {found:?} in {world:#?}");
    }
}

/// Rows and policies agree on which tier and action decides; of rules that are a union, either may be named.
fn same_rule(
    engine: &Engine,
    verdict: Option<Verdict>,
    traffic: Traffic,
    step: &ferrule_policy::Step,
    context: &dyn Fn() -> String,
) {
    let Some(verdict) = verdict else { return };
    let ferrule_policy::Because::Rule(traced, action) = &step.because else {
        assert_eq!(
            engine.compiler.rule_of(&verdict, Some(traffic)),
            None,
            "{verdict:?} {step:?} {}",
            context()
        );
        return;
    };
    let decided = engine.compiler.rule_of(&verdict, Some(traffic));
    let decided = decided.unwrap_or_else(|| panic!("{verdict:?} {step:?} {}", context())).rule;
    let tier =
        |id| engine.compiler.policies().find(|it| it.id == id).map(|it| std::mem::discriminant(&it.tier));
    assert_eq!(tier(decided.policy), tier(traced.policy.clone()), "{verdict:?} {step:?} {}", context());
    assert_eq!(verdict.is_allowed, *action == ferrule_policy::Action::Accept);
}

fn pairs<'a>(ends: &[End<'a>]) -> Vec<(End<'a>, End<'a>)> {
    let is_v4 = |end: &End<'_>| match end {
        End::Pod(_, address) | End::Outside(address) | End::OwnNode(address) => address.is_ipv4(),
    };
    let all = ends.iter().flat_map(|from| ends.iter().map(|to| (*from, *to)));
    all.filter(|(from, to)| is_v4(from) == is_v4(to)).collect()
}

/// The questions whose answers must not mix: by endpoint, all packets that both worlds have.
pub fn questions(worlds: &[&World]) -> Vec<Packet> {
    let mut packets = Vec::new();
    for world in worlds {
        let ends = random::ends(world);
        for (own, peer) in pairs(&ends) {
            for direction in [Direction::Ingress, Direction::Egress] {
                let of = |traffic| packet(world, direction, own, peer, traffic);
                packets.extend(TRAFFIC.into_iter().filter_map(of));
            }
        }
    }
    packets
}

/// After each single row, nothing passes with an endpoint's last epoch that is denied in the end: its flow
/// would stay allowed. If it is one event, each packet is judged as before or as after.
fn check_prefixes(seed: u64, worlds: &[&World], old: &Rows, ops: &[Op], (is_one, of_policy): (bool, bool)) {
    let packets = questions(worlds);
    let judge = |rows: &Rows| packets.iter().map(|it| lookup(rows, it).is_allowed).collect::<Vec<_>>();
    let mut rows = old.clone();
    let before = judge(&rows);
    let mut all = rows.clone();
    ops.iter().for_each(|op| all.apply(op));
    let after = judge(&all);
    let check_epochs = |n: usize, rows: &Rows, now: &[bool]| {
        let epoch = |rows: &Rows, packet: &Packet| rows.endpoint(packet.endpoint).map(|row| row.epoch);
        for (packet, (now, after)) in packets.iter().zip(now.iter().zip(&after)) {
            let passes = *now && !after && epoch(rows, packet) == epoch(&all, packet);
            assert!(!passes, "seed {seed}: {packet:?} passes for good after the first {n} of {ops:#?}");
        }
    };
    check_epochs(0, &rows, &before);
    for (n, op) in ops.iter().enumerate() {
        rows.apply(op);
        let now = judge(&rows);
        check_epochs(n + 1, &rows, &now);
        if !is_one {
            continue;
        }
        for (packet, ((before, after), now)) in packets.iter().zip(before.iter().zip(&after).zip(&now)) {
            assert!(now == before || now == after, "seed {seed}: {packet:?} {now} after {n} of {ops:#?}");
        }
        if of_policy {
            for endpoint in packets.iter().map(|it| it.endpoint).collect::<std::collections::BTreeSet<_>>() {
                let of = |answers: &[bool]| {
                    let answers = packets.iter().zip(answers).filter(|(it, _)| it.endpoint == endpoint);
                    answers.map(|(_, it)| *it).collect::<Vec<_>>()
                };
                let now = of(&now);
                let is_whole = now == of(&before) || now == of(&after);
                assert!(is_whole, "seed {seed}: {endpoint:?} is judged by a mix after {n} of {ops:#?}");
            }
        }
    }
}

/// Another compiler, which gets everything in any order and at once, has as many rows, and the same verdicts.
fn from_scratch(seed: u64, rng: &mut Rng, world: &World, engine: &Engine) {
    let mut changes = world.changes();
    rng.shuffle(&mut changes);
    let mut compiler = Compiler::default();
    compiler.apply(changes).unwrap();
    assert_eq!(compiler.usage(), engine.compiler.usage(), "seed {seed}");
    let sorted = |rows: &Rows| {
        let kinds = rows.all().map(|op| std::mem::discriminant(&op));
        kinds.fold(Vec::<(_, usize)>::new(), |mut counts, kind| {
            match counts.last_mut() {
                Some((last, count)) if *last == kind => *count += 1,
                _ => counts.push((kind, 1)),
            }
            counts
        })
    };
    assert_eq!(sorted(compiler.rows()), sorted(engine.compiler.rows()), "seed {seed}");
    for packet in questions(&[world]) {
        let (incremental, fresh) = (lookup(&engine.rows, &packet), lookup(compiler.rows(), &packet));
        assert_eq!(incremental.is_allowed, fresh.is_allowed, "seed {seed}: {packet:?}");
    }
}
