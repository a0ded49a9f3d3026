//! Traffic between two pods without policies, with few rules and with more and more.
//!
//! The ways differ by what is in the cluster, so that a round creates and deletes policies between its
//! measurements; every other round goes through the ways in the other order.

use std::{thread, time::Duration};

use ferrule_tests::pod::Pod;

use super::{
    bed::{Bed, v4},
    host_rules::{Form, HostRules},
    rules::{self, PAIR, WITNESS},
};
use crate::rates::{
    comparison::Comparison,
    load::{Cores, Load},
    path::Path,
};

pub(super) const NONE: &str = "no policy";
pub(super) const FEW: &str = "few rules";
pub(super) const HUNDRED: &str = "100 rules";
pub(super) const THOUSAND: &str = "1,000 rules";
pub(super) const MANY: &str = "many rules";
pub(super) const FEW_OF_HOST: &str = "ptp, few rules";
/// The ways whose rules are the host's, with their names.
pub(super) const MANY_OF_HOST: [(&str, Form); 3] =
    [(LIST, Form::List), (SET, Form::Set), (IPTABLES, Form::Iptables)];
pub(super) const LIST: &str = "ptp, many rules in a list";
pub(super) const SET: &str = "ptp, many rules in a set";
pub(super) const IPTABLES: &str = "ptp, many rules of iptables";

pub(super) const LOADS: [Load; 2] = [Load::RequestResponse, Load::ConnectRequestResponse];
const WAYS: [&str; 9] = [NONE, FEW, HUNDRED, THOUSAND, MANY, FEW_OF_HOST, LIST, SET, IPTABLES];
/// The ways of our own that have further rules, beside [`MANY`].
const MORE: [(&str, usize); 2] = [(HUNDRED, 100), (THOUSAND, 1_000)];
/// The agent works for a moment after a change.
const SETTLE: Duration = Duration::from_millis(500);

/// The pods, and what is in force.
struct Scene<'a> {
    bed: &'a Bed<'a>,
    server: Pod,
    /// Reaches the server as long as there is no policy.
    stranger: Pod,
    /// Reaches the server with no policy, and with further rules.
    witness: Pod,
    few: Vec<(String, serde_json::Value)>,
    has_few: bool,
    /// So many further rules are in force.
    further: usize,
}

pub(super) fn comparison() -> Comparison {
    Comparison::new("Policies", WAYS.into(), LOADS.map(|load| (load, Cores::Same)))
}

pub(super) fn measure(
    bed: &Bed<'_>,
    rounds: usize,
    duration: Duration,
    count: usize,
) -> anyhow::Result<Comparison> {
    let [client, server] = [bed.attach("client", PAIR)?, bed.attach("server", PAIR)?];
    let path = Path::new("ferrule", &client, &server, v4(&server)?);
    let host_rules = HostRules::new(bed.node)?;
    let mut scene = Scene {
        bed,
        server,
        stranger: bed.attach("stranger", "stranger")?,
        witness: bed.attach("witness", WITNESS)?,
        few: rules::few(path.listen.port()),
        has_few: false,
        further: 0,
    };
    let mut comparison = comparison();
    for round in 0..=rounds {
        eprintln!("policy: round {round} of {rounds}");
        let mut ways: Vec<usize> = (0..WAYS.len()).collect();
        if round % 2 == 1 {
            ways.reverse();
        }
        for way in ways {
            let way_name = WAYS.get(way).copied().unwrap_or_default();
            let of_host = MANY_OF_HOST.iter().find(|(name, _)| *name == way_name);
            let path = match (way_name, of_host) {
                (FEW_OF_HOST, _) => host_rules.set(Form::List, 0).map(|_| &host_rules.path)?,
                (_, Some((_, form))) => host_rules.set(*form, count).map(|_| &host_rules.path)?,
                (MANY, None) => scene.set(true, count).map(|()| &path)?,
                (policies, None) => {
                    let more = MORE.iter().find(|(name, _)| *name == policies);
                    scene.set(policies != NONE, more.map_or(0, |(_, rules)| *rules)).map(|()| &path)?
                }
            };
            thread::sleep(SETTLE);
            for row in &mut comparison.rows {
                row.push(way, row.load.measure(path, row.cores, duration)?);
            }
            host_rules.clear()?;
        }
        // The first round warms caches and neighbour entries up.
        if round == 0 {
            comparison.clear();
        }
    }
    Ok(comparison)
}

// === impl Scene ===

impl Scene<'_> {
    /// Creates and deletes policies, and waits until exactly they are in force.
    fn set(&mut self, few: bool, further: usize) -> anyhow::Result<()> {
        if self.further != further && self.further > 0 {
            let old = rules::many(self.further);
            old.iter().try_for_each(|(name, _)| self.bed.delete_policy(name))?;
            // The last one lets the witness in.
            self.bed.wait_until_reached(&self.witness, &self.server, false)?;
            self.further = 0;
        }
        if self.has_few != few {
            self.few.iter().try_for_each(|(name, spec)| {
                if few { self.bed.create_policy(name, spec.clone()) } else { self.bed.delete_policy(name) }
            })?;
            self.has_few = few;
        }
        if self.further != further {
            let new = rules::many(further);
            new.into_iter().try_for_each(|(name, spec)| self.bed.create_policy(&name, spec))?;
            self.further = further;
        }
        self.bed.wait_until_reached(&self.stranger, &self.server, !few)?;
        self.bed.wait_until_reached(&self.witness, &self.server, further > 0 || !few)
    }
}
