//! The results, as tables, as Markdown, as JSON and as a picture.

use std::fmt;

use serde_json::{Value, json};

use super::{
    goal::GOALS,
    traffic::{self, FEW, HUNDRED, LOADS, MANY, NONE, THOUSAND},
};
use crate::{
    rates::{
        chart::{Bar, Chart, Group},
        comparison::Comparison,
        tables,
    },
    results::Results,
    table::Table,
};

pub(crate) struct Report {
    pub(super) comparison: Comparison,
    pub(super) table: Table,
    /// Of the way with many rules, in each direction.
    rules: usize,
}

const TITLE: &str = "Traffic between two pods of a node, judged by network policies.";
const SHARES: &str = "Client and server on one core: rates as shares of the first row's, and in parentheses.";
const LEGEND: &str = "\
Few rules: both pods are isolated in both directions, and one rule at each end allows their port. 100, 1,000 and many
rules: so many more rules in each direction, for addresses, pods and ports other than theirs. \"ptp\": Debian's plugin, whose packets
pass the host's firewall: one rule for established connections, as many other rules, and the pods' own rule last. The
others are a list in nftables, the elements of a set in nftables, or a list in iptables (its earlier implementation,
not the one on nftables). The agent's policies change between the measurements of a round, for the same pods.
";
const TIMES: &str = "\
Times: a pod sends a datagram every 0.1 ms, and the kernel's timers add as much again. The time runs from before the
write to the API server in this process (so that the server's part is included, also its encoding of the object) until
after the first datagram that passes, or the first that does not: \"label\" and \"policy\" between two pods of the node,
\"new pod of another node\" from a pod whose egress is isolated to an address that the API names for the first time.
\"ptp\": the host's own tool, from its start to its end, with a file that has the rules.
Maps: rows in use, and what the kernel charges (`bytes_memlock`); the maps of flows have their full size from the start.
Memory: VmRSS of the agent a few seconds after the last change, with pods of 4.5 kB of JSON; all but the attached ones
run on other nodes, which have no Node objects.
The goals are absolute, so a verdict depends on this machine and its other load.
";

// === impl Report ===

impl Report {
    /// Without figures.
    pub(super) fn new(rules: usize) -> Self {
        let table = Table::new("policies", "Time until in force, and memory", TIMES);
        Self { comparison: traffic::comparison(), table, rules }
    }

    fn size_text(&self) -> String {
        format!("Many rules: {} in each direction.", self.rules)
    }

    fn chart(&self) -> Chart {
        let groups = self.comparison.rows.iter().filter(|row| LOADS.contains(&row.load)).map(|row| {
            let bar = |(way, name): (usize, &&str)| Bar {
                name: (*name).to_owned(),
                share: row.share(way),
                is_ours: [NONE, FEW, HUNDRED, THOUSAND, MANY].contains(name),
            };
            let bars = self.comparison.names.iter().enumerate().map(bar).collect();
            Group { name: row.load.name().to_owned(), bars }
        });
        Chart {
            title: "Transactions per second between two pods on one core, as a share of no policy".to_owned(),
            groups: groups.collect(),
        }
    }

    fn comparisons(&self) -> &[Comparison] {
        std::slice::from_ref(&self.comparison)
    }
}

impl Results for Report {
    fn to_json(&self) -> Value {
        json!({
            "rules": self.rules,
            "comparisons": [tables::json(&self.comparison)],
            "goals": tables::goals_json(&GOALS, self.comparisons()),
            "figures": self.table.to_json(),
        })
    }

    fn to_markdown(&self) -> String {
        let (shares, goals) =
            (tables::shares(&self.comparison), tables::goals_markdown(&GOALS, self.comparisons()));
        let (size, table) = (self.size_text(), self.table.to_markdown());
        format!("{SHARES}\n\n{shares}\n{goals}\n{size} {LEGEND}\n{table}")
    }

    fn to_svg(&self) -> Option<String> {
        Some(self.chart().to_svg())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{TITLE}\n")?;
        tables::text(f, &self.comparison)?;
        tables::goals_text(f, &GOALS, self.comparisons())?;
        writeln!(f, "\n{} {LEGEND}", self.size_text())?;
        self.table.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut report = Report::new(10_000);
        for row in &mut report.comparison.rows {
            for (way, rate) in [100.0, 96.0, 96.0, 95.0, 95.0, 80.0, 8.0, 79.0, 16.0].into_iter().enumerate()
            {
                row.push(way, rate);
            }
        }
        report
    }

    #[test]
    fn a_document_has_verdicts_for_each_load() {
        let text = report().to_markdown();
        let lines: Vec<_> = text.lines().collect();
        for line in [
            "| TCP request/response: few rules / no policy | 0.960 | 0.98 | 0.99 | missed |",
            "| TCP connect/request/response: few rules / no policy | 0.960 | 0.94 | 0.97 | within bar |",
            "| TCP connect/request/response: many rules / few rules | 0.990 | 0.97 | 0.99 | within bar |",
            "| TCP request/response: ptp, many rules in a list / ptp, few rules | 0.100 |  |  |  |",
            "| TCP request/response: ptp, many rules of iptables / ptp, few rules | 0.200 |  |  |  |",
        ] {
            assert!(lines.contains(&line), "{line}: {text}");
        }
    }

    #[test]
    fn the_picture_tells_our_bars_from_those_of_others() {
        let ours: Vec<_> = report().chart().groups[0].bars.iter().map(|it| it.is_ours).collect();
        assert_eq!(ours, [true, true, true, true, true, false, false, false, false]);
    }
}
