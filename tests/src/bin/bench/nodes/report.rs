//! The results, as a table, as Markdown and as JSON.

use std::fmt;

use serde_json::{Value, json};

use super::goal::{GOALS, JOIN_MS};
use crate::{
    rates::{comparison::Comparison, tables},
    results::Results,
    stats::Series,
};

pub(crate) struct Report {
    /// Node objects of the large cluster.
    pub(super) others: u16,
    /// Paths, and sizes of the cluster.
    pub(super) comparisons: [Comparison; 2],
    /// From a new Node object to the first answer.
    pub(super) joined: Series,
}

const SHARES: &str = "Client and server on one core: rates as shares of the first row's, and in parentheses.";
const LEGEND: &str = "\
Rates and ratios are medians of the rounds. Client, server and both nodes share a core, so that the rate is the inverse
of the path's CPU time. \"underlay\": from node to node. \"kernel routing\" and \"like flannel\": nodes without agent,
eBPF, firewall and connection tracking, with pods as those of `ptp`, or with a bridge and a VXLAN device with permanent
entries. \"tracked\": the same with a rule that makes the kernel track connections, as kube-proxy's do on every node, and
Ferrule's for masquerading. \"by the stack\": `--node-fast-path off`. \"VXLAN\": `--node-routes vxlan`, IPv6 in IPv4, too.
A new node: from the creation of its Node object until a pod of another node, behind a router, has the first answer from
one of the node's running pods.
";

// === impl Report ===

impl Report {
    fn join_text(&self) -> String {
        if self.joined.len() == 0 {
            return "No node joined.".to_owned();
        }
        let [p50, p99] = [50, 99].map(|percent| self.joined.percentile(percent));
        let (count, verdict) = (self.joined.len(), verdict(p99));
        format!(
            "A new node, {count} times: first answer after {p50:.1} ms (p50), {p99:.1} ms (p99, goal {JOIN_MS} \
             ms: {verdict})."
        )
    }

    fn size_text(&self) -> String {
        format!("Many other nodes: {} more Node objects.", self.others)
    }
}

impl Results for Report {
    fn to_json(&self) -> Value {
        let [p50, p99] = [50, 99].map(|percent| self.joined.percentile(percent));
        json!({
            "others": self.others,
            "comparisons": self.comparisons.iter().map(tables::json).collect::<Vec<_>>(),
            "goals": tables::goals_json(&GOALS, &self.comparisons),
            "new_node": {
                "samples": self.joined.len(), "p50_ms": p50, "p99_ms": p99, "bar": JOIN_MS,
                "verdict": (self.joined.len() > 0).then(|| verdict(p99)),
            },
        })
    }

    fn to_markdown(&self) -> String {
        let ways: String = self.comparisons.iter().map(|it| format!("{}\n", tables::shares(it))).collect();
        let goals = tables::goals_markdown(&GOALS, &self.comparisons);
        let (joined, size) = (self.join_text(), self.size_text());
        format!("{SHARES}\n\n{ways}{goals}\n{joined} {size}\n\n{LEGEND}")
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Traffic between pods of two nodes.\n")?;
        self.comparisons.iter().try_for_each(|it| tables::text(f, it))?;
        tables::goals_text(f, &GOALS, &self.comparisons)?;
        writeln!(f, "\n{}\n{}\n\n{LEGEND}", self.join_text(), self.size_text())
    }
}

fn verdict(p99: f64) -> &'static str {
    if p99 <= JOIN_MS { "reached" } else { "missed" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        nodes::{LOADS, ferrule, reference},
        rates::load::Cores,
    };

    fn report() -> Report {
        let loads = LOADS.map(|load| (load, Cores::Same));
        let names = vec![reference::UNDERLAY, reference::KERNEL, ferrule::DIRECT.names[0]];
        let mut paths = Comparison::new("Paths", names, loads);
        for row in &mut paths.rows {
            for (way, rate) in [100.0, 50.0, 60.0].into_iter().enumerate() {
                row.push(way, rate);
            }
        }
        let mut joined = Series::default();
        joined.extend([10, 60].map(std::time::Duration::from_millis));
        Report { others: 7, comparisons: [paths, Comparison::new("Sizes", Vec::new(), [])], joined }
    }

    #[test]
    fn a_document_has_ratios_and_the_time_of_a_new_node() {
        let text = report().to_markdown();
        let ratio = "| TCP request/response: direct / kernel routing | 1.200 | 1.10 | 1.14 | reached |";
        assert!(text.contains(ratio), "{text}");
        assert!(text.contains("10.0 ms (p50), 60.0 ms (p99, goal 50 ms: missed)"), "{text}");
    }

    #[test]
    fn no_verdict_is_given_on_what_was_not_measured() {
        let json = Report { joined: Series::default(), ..report() }.to_json();
        assert_eq!(json.pointer("/new_node/verdict"), Some(&Value::Null));
        let goals = json.get("goals").and_then(Value::as_array).unwrap();
        let vxlan = goals.iter().find(|it| it.get("of") == Some(&"VXLAN".into())).unwrap();
        assert_eq!(vxlan.get("verdict"), Some(&Value::Null));
    }
}
