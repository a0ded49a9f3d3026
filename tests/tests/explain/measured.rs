//! Packets that `ferrulectl check` and `ferrulectl bench self` send, and the programs that these pass.

use std::{collections::BTreeSet, fs};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    node::{NODE_V6, with_agent},
    sys,
};
use serde_json::Value;

use super::{ctl, data, verdict};

fn number(measured: &Value, pointer: &str) -> anyhow::Result<u64> {
    measured.pointer(pointer).and_then(Value::as_u64).with_context(|| format!("no {pointer} in {measured:#}"))
}

#[test]
fn a_firewall_that_hides_a_pod_from_its_node_fails_the_probe() {
    with_agent(|node| {
        let pod = node.attach("hidden")?;
        let [v4, v6] = [0, 1].map(|at| pod.addresses.get(at).map(ToString::to_string).unwrap_or_default());
        let (code, text) = ctl(&["check", "hidden"])?;
        let probe = |text: &str| text.lines().find(|it| it.contains("probe")).map(str::to_owned);
        let line = probe(&text).context("no probe")?;
        ensure!(code == Some(0) && line.contains("passed") && line.contains(&v6), "{text}");

        for (family, hidden) in [("ip", &v4), ("ip6", &v6)] {
            sys::run("nft add table inet hiding")?;
            sys::run("nft add chain inet hiding in { type filter hook input priority 0 ; }")?;
            // The pod's answer, so that no error tells the node at once.
            sys::run(&format!("nft add rule inet hiding in {family} saddr {hidden} drop"))?;
            let (code, text) = ctl(&["check", "hidden"])?;
            let line = probe(&text).context("no probe")?;
            let expected = format!("failed  no answer to the node: {hidden}: none within 900ms; to do: ");
            ensure!(code == Some(1) && line.contains(&expected), "{text}");
            ensure!(verdict("hidden")?.0 == Some(0), "what other software does is no drift");
            sys::run("nft delete table inet hiding")?;
        }
        // As on a node without IPv6, whose pods have it.
        sys::run(&format!("ip addr del {NODE_V6}/64 dev uplink"))?;
        let (code, text) = ctl(&["check", "hidden"])?;
        let line = probe(&text).context("no probe")?;
        ensure!(code == Some(0) && line.contains(&v4) && !line.contains(&v6), "{text}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_node_measures_itself() {
    with_agent(|node| {
        let idle = data(&["bench", "self", "--seconds", "1"])?;
        ensure!(idle["adds"].is_null() && idle["answers"].is_null() && idle["pods"] == 0, "{idle:#}");
        node.attach("a")?;
        node.attach("b")?;

        let at_once = std::thread::scope(|scope| {
            let both =
                [(); 2].map(|()| scope.spawn(|| ctl(&["bench", "self", "--seconds", "2", "-o", "json"])));
            both.map(|it| it.join().map_err(|_| anyhow::anyhow!("a measurement panicked"))?)
                .into_iter()
                .collect::<anyhow::Result<Vec<_>>>()
        })?;
        let (good, bad): (Vec<_>, Vec<_>) = at_once.into_iter().partition(|it| it.0 == Some(0));
        let ([(_, measured)], [(code, refusal)]) = (good.as_slice(), bad.as_slice()) else {
            anyhow::bail!("expected that one measures: {good:?} {bad:?}")
        };
        ensure!(*code == Some(1) && refusal.contains("another measurement is under way"), "{refusal}");
        let measured: Value = serde_json::from_str(measured)?;
        ensure!(number(&measured, "/adds/count")? == 2 && number(&measured, "/pods")? == 2, "{measured:#}");
        let answers = number(&measured, "/answers/count")?;
        ensure!(answers > 10 && number(&measured, "/unanswered")? == 0, "{measured:#}");
        let phases = measured["add_phases"].as_array().into_iter().flatten();
        ensure!(phases.filter(|it| it["phase"] == "plug").count() == 1, "{measured:#}");
        for name in ["from_pod", "to_pod"] {
            let programs = measured["programs"].as_array().into_iter().flatten();
            let of = programs.filter(|it| it["name"] == name).collect::<Vec<_>>();
            let runs = of.first().and_then(|it| it["runs"].as_u64()).unwrap_or_default();
            ensure!(runs >= answers, "{runs} runs of {name}, {answers} answers");
        }
        let (code, text) = ctl(&["bench", "self", "--seconds", "1"])?;
        ensure!(code == Some(0) && text.contains("pod answers node"), "{text}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn every_program_that_the_agent_has_loaded_is_measured() {
    with_agent(|node| {
        let agent = node.agent_pid().context("no agent")?;
        let mut loaded = BTreeSet::new();
        for file in fs::read_dir(format!("/proc/{agent}/fdinfo"))?.flatten() {
            let facts = fs::read_to_string(file.path()).unwrap_or_default();
            let id = facts.lines().find_map(|it| it.strip_prefix("prog_id:"));
            loaded.extend(id.map(|it| it.trim().parse::<u64>()).transpose()?);
        }
        // No packet passes the program that changes what judges a pod.
        let programs: Value = serde_json::from_str(&sys::run("bpftool -j prog show name set_subject")?)?;
        let programs = programs.as_array().cloned().unwrap_or_else(|| vec![programs]);
        let no_packets = programs.iter().filter_map(|it| it["id"].as_u64());
        let is_of_agent = no_packets.filter(|id| loaded.remove(id)).count();
        ensure!(is_of_agent == 1, "{is_of_agent} programs set_subject");
        let measured = data(&["bench", "self", "--seconds", "1"])?;
        let programs = measured["programs"].as_array().into_iter().flatten();
        let listed: BTreeSet<_> = programs.filter_map(|it| it["id"].as_u64()).collect();
        ensure!(!loaded.is_empty() && listed == loaded, "loaded {loaded:?}, listed {listed:?}");
        Ok(())
    })
    .unwrap();
}
