//! The results, as a table, as Markdown and as JSON.

use std::fmt;

use serde_json::{Value, json};

use super::{
    goal::{GOALS, JOIN, LIST, TimeGoal},
    join::WAYS,
};
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
    /// From a new Node object to the first answer, of each way to the new node.
    pub(super) joined: [Series; WAYS.len()],
    /// From the list of the large cluster to all routes and rows.
    pub(super) listed: Series,
}

const SHARES: &str = "Client and server on one core: rates as shares of the first row's, and in parentheses.";
const LEGEND: &str = "\
Rates and ratios are medians of the rounds. Client, server and both nodes share a core, so that the rate is the inverse
of the path's CPU time. \"underlay\": from node to node. \"kernel routing\" and \"like flannel\": nodes without agent,
eBPF, firewall and connection tracking, with pods as those of `ptp`, or with a bridge and a VXLAN device with permanent
entries. \"tracked\": the same with a rule that makes the kernel track connections, as kube-proxy's do on every node, and
Ferrule's for masquerading. \"by the stack\": `--node-fast-path off`. \"VXLAN\": `--node-routes vxlan`, IPv6 in IPv4, too.
A new node: from the creation of its Node object until a pod of another node has the first answer from one of the node's
running pods. A list: from when a new agent, on a node without routes, has listed the Node objects until all routes and
rows of `NODES` exist, by the agent's log.
";

// === impl Report ===

impl Report {
    /// A line for each time.
    fn times(&self) -> String {
        let mut lines: Vec<_> = WAYS
            .iter()
            .zip(&self.joined)
            .map(|(way, joined)| time_text(&format!("A new node {way}"), joined, JOIN))
            .collect();
        lines.push(time_text(&format!("A list of {} nodes", self.others), &self.listed, LIST));
        lines.join("\n")
    }

    fn size_text(&self) -> String {
        format!("Many other nodes: {} more Node objects.", self.others)
    }
}

impl Results for Report {
    fn to_json(&self) -> Value {
        let new_node =
            |(name, joined): (&&str, &Series)| json!({ "way": name, "time": time_json(joined, JOIN) });
        json!({
            "others": self.others,
            "comparisons": self.comparisons.iter().map(tables::json).collect::<Vec<_>>(),
            "goals": tables::goals_json(&GOALS, &self.comparisons),
            "new_node": WAYS.iter().zip(&self.joined).map(new_node).collect::<Vec<_>>(),
            "list": time_json(&self.listed, LIST),
        })
    }

    fn to_markdown(&self) -> String {
        let ways: String = self.comparisons.iter().map(|it| format!("{}\n", tables::shares(it))).collect();
        let goals = tables::goals_markdown(&GOALS, &self.comparisons);
        let (times, size) = (self.times(), self.size_text());
        format!("{SHARES}\n\n{ways}{goals}\n{size}\n{times}\n\n{LEGEND}")
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Traffic between pods of two nodes.\n")?;
        self.comparisons.iter().try_for_each(|it| tables::text(f, it))?;
        tables::goals_text(f, &GOALS, &self.comparisons)?;
        writeln!(f, "\n{}\n{}\n\n{LEGEND}", self.size_text(), self.times())
    }
}

fn time_text(what: &str, took: &Series, goal: TimeGoal) -> String {
    if took.len() == 0 {
        return format!("{what}: not measured.");
    }
    let TimeGoal { percent, bar, aim } = goal;
    let [p50, high] = [50, percent].map(|percent| took.percentile(percent));
    format!(
        "{what}, {} times: {p50:.1} ms (p50), {high:.1} ms (p{percent}; bar {bar} ms, aim {aim} ms: {}).",
        took.len(),
        goal.verdict(high)
    )
}

fn time_json(took: &Series, goal: TimeGoal) -> Value {
    let [p50, high] = [50, goal.percent].map(|percent| took.percentile(percent));
    json!({
        "samples": took.len(), "p50_ms": p50, "percentile": goal.percent, "high_ms": high,
        "bar": goal.bar, "aim": goal.aim, "verdict": (took.len() > 0).then(|| goal.verdict(high)),
    })
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
        let comparisons = [paths, Comparison::new("Sizes", Vec::new(), [])];
        let (joined, listed) = ([joined.clone(), Series::default()], joined);
        Report { others: 7, comparisons, joined, listed }
    }

    #[test]
    fn a_document_has_ratios_and_times() {
        let text = report().to_markdown();
        let ratio = "| TCP request/response: direct / kernel routing | 1.200 | 1.10 | 1.14 | reached |";
        assert!(text.contains(ratio), "{text}");
        let line = |way: &str, rest: &str| assert!(text.contains(&format!("\n{way}{rest}\n")), "{text}");
        let took = ", 2 times: 10.0 ms (p50), 60.0 ms";
        line(
            "A new node on the same segment, by a route",
            &format!("{took} (p99; bar 50 ms, aim 50 ms: missed)."),
        );
        line("A new node behind a router, by VXLAN", ": not measured.");
        line("A list of 7 nodes", &format!("{took} (p100; bar 100 ms, aim 100 ms: reached)."));
    }

    #[test]
    fn no_verdict_is_given_on_what_was_not_measured() {
        let json = report().to_json();
        assert_eq!(json.pointer("/new_node/0/time/verdict"), Some(&"missed".into()));
        assert_eq!(json.pointer("/new_node/1/time/verdict"), Some(&Value::Null));
        let goals = json.get("goals").and_then(Value::as_array).unwrap();
        let vxlan = goals.iter().find(|it| it.get("of") == Some(&"VXLAN".into())).unwrap();
        assert_eq!(vxlan.get("verdict"), Some(&Value::Null));
    }
}
