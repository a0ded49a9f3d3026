//! `ferrulectl nodes`.

use std::path::Path;

use anyhow::Context as _;
use ferrule_proto::agent::{ListNodesRequest, ListNodesResponse, Node, NodeRange, Refused, node_range::Way};

use crate::{
    client,
    output::{Output, Report},
    paint,
    table::{columns, plain, table},
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only the node of this name
    node: Option<String>,
    /// Ask each range of other nodes to answer a packet that goes the way of pods' packets
    #[arg(long)]
    ask: bool,
}

/// Nodes that are not known are a failure. A range without a way is none: `status` judges.
pub(crate) async fn run(args: &Args, socket: &Path, output: Output) -> anyhow::Result<Report> {
    let request = ListNodesRequest { ask: args.ask, node: args.node.clone().unwrap_or_default() };
    let response = client::connect(socket).await?.list_nodes(request).await;
    let mut nodes = response.context("cannot get the nodes from the agent")?.into_inner();
    if let Some(name) = &args.node {
        retain(&mut nodes, name);
    }
    let text = output.show(&nodes, |it| render(it, args.ask, output.is_wide()))?;
    let failures = failure(&nodes, args.node.as_deref()).into_iter().chain(silence(&nodes)).collect();
    Ok(Report { text, failures, ..Report::default() })
}

/// Ranges that were asked and have not answered.
fn silence(nodes: &ListNodesResponse) -> Option<String> {
    let all = || nodes.nodes.iter().flat_map(|it| &it.ranges);
    let silent = all().filter(|it| !it.no_answer_because.is_empty()).count();
    let asked = silent + all().filter(|it| it.answered_us.is_some()).count();
    (silent > 0).then(|| format!("{silent} of {asked} ranges of other nodes have not answered"))
}

/// Leaves what concerns one node.
fn retain(nodes: &mut ListNodesResponse, name: &str) {
    nodes.nodes.retain(|it| it.name == name);
    nodes.refused.retain(|it| it.node == name || it.claimant == name);
}

fn failure(nodes: &ListNodesResponse, name: Option<&str>) -> Option<String> {
    if !nodes.synced {
        return Some(
            "the agent does not know the nodes of the cluster yet; `ferrulectl status` says why at the \
             components nodes and cluster"
                .to_owned(),
        );
    }
    let name = name.filter(|_| nodes.nodes.is_empty())?;
    Some(format!("the agent knows no node {name:?}; `ferrulectl nodes` lists all"))
}

/// `asked`: with the answers. `is_wide`: with the nodes' addresses and UIDs.
fn render(nodes: &ListNodesResponse, asked: bool, is_wide: bool) -> String {
    let mut shown = vec!["NODE", "ZONE", "RANGE", "WAY", "MTU", "FAST PATH"];
    shown.extend(is_wide.then_some(["ADDRESSES", "UID"]).into_iter().flatten());
    shown.extend(asked.then_some("ANSWER"));
    let wide = |node: &Node| [or_dash(&node.internal_ips.join(" ")), or_dash(&node.uid)];
    let rows = nodes.nodes.iter().flat_map(|node| {
        rows(node).into_iter().enumerate().map(move |(number, row)| {
            let more = is_wide.then(|| wide(node)).into_iter().flatten();
            let answer = asked.then(|| node.ranges.get(number).map_or_else(|| or_dash(""), answer));
            row.into_iter().chain(more).chain(answer).collect()
        })
    });
    let mut text = columns(&shown, rows);
    if !nodes.refused.is_empty() {
        let refused = nodes
            .refused
            .iter()
            .map(|Refused { node, what, why, .. }| [node.clone(), what.clone(), why.clone()]);
        text.push_str("\n\n");
        text.push_str(&table(["NODE", "REFUSED", "WHY"], refused));
    }
    text
}

/// A row for each range; one for a node without any.
fn rows(node: &Node) -> Vec<[String; 6]> {
    let ends = [or_dash(&node.name), or_dash(&node.zone)];
    let row = |[range, way, mtu, fast_path]: [String; 4]| {
        let [name, zone] = ends.clone();
        [name, zone, range, way, mtu, fast_path]
    };
    if node.ranges.is_empty() {
        return vec![row([(); 4].map(|()| or_dash("")))];
    }
    node.ranges.iter().map(|range| row(cells(range))).collect()
}

fn cells(range: &NodeRange) -> [String; 4] {
    let way = match range.way() {
        Way::Own => "this node".to_owned(),
        Way::Direct => format!("direct via {} dev {}", range.to, or_dash(&range.interface)),
        Way::Vxlan => format!("vxlan to {}", range.to),
        Way::None => paint::bad(&format!("none: {}", range.no_way_because)),
        Way::Unspecified => Way::Unspecified.name().to_owned(),
    };
    let (mtu, fast_path) = match (range.way(), range.fast_path) {
        (Way::Direct | Way::Vxlan, true) => (range.mtu.to_string(), "yes".to_owned()),
        (Way::Direct | Way::Vxlan, false) => (range.mtu.to_string(), format!("no: {}", range.slow_because)),
        (Way::Own | Way::None | Way::Unspecified, _) => (or_dash(""), or_dash("")),
    };
    [range.range.clone(), way, mtu, fast_path]
}

fn answer(range: &NodeRange) -> String {
    match range.answered_us {
        Some(after) => format!("after {:.3} ms", after as f64 / 1e3),
        None if range.no_answer_because.is_empty() => or_dash(""),
        None => paint::bad(&plain(&range.no_answer_because)),
    }
}

fn or_dash(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn range(range: &str, way: Way, to: &str, mtu: u32) -> NodeRange {
        let (range, to) = (range.to_owned(), to.to_owned());
        let interface = if to.is_empty() { String::new() } else { "eth0".to_owned() };
        NodeRange { range, way: way.into(), to, interface, mtu, ..NodeRange::default() }
    }

    fn node(name: &str, ranges: Vec<NodeRange>) -> Node {
        let (name, uid) = (name.to_owned(), format!("uid-{name}"));
        Node { name, uid, internal_ips: vec!["192.0.2.2".to_owned()], ranges, ..Node::default() }
    }

    fn nodes() -> ListNodesResponse {
        let own = Node {
            own: true,
            zone: "west".to_owned(),
            ..node("node-1", vec![range("10.244.1.0/24", Way::Own, "", 0)])
        };
        let near = range("10.244.2.0/24", Way::Direct, "192.0.2.2", 1500);
        let far = range("10.244.3.0/24", Way::Vxlan, "198.51.100.3", 1450);
        let none = range("10.244.4.0/24", Way::None, "", 0);
        let refused = Refused {
            node: "node-5".to_owned(),
            uid: "uid-node-5".to_owned(),
            what: "the range 10.244.2.0/25".to_owned(),
            why: "it overlaps a range of the node node-2".to_owned(),
            claimant: "node-2".to_owned(),
        };
        ListNodesResponse {
            synced: true,
            nodes: vec![
                own,
                node("node-2", vec![NodeRange { fast_path: true, ..near }]),
                node("node-3", vec![NodeRange { slow_because: "--node-fast-path is off".to_owned(), ..far }]),
                node("node-4", vec![NodeRange { no_way_because: "why".to_owned(), ..none }]),
                node("node-5", Vec::new()),
            ],
            refused: vec![refused],
        }
    }

    #[test]
    fn table_has_a_line_for_each_range_and_below_what_is_refused() {
        let expected = "\
NODE    ZONE  RANGE          WAY                            MTU   FAST PATH
node-1  west  10.244.1.0/24  this node                      -     -
node-2  -     10.244.2.0/24  direct via 192.0.2.2 dev eth0  1500  yes
node-3  -     10.244.3.0/24  vxlan to 198.51.100.3          1450  no: --node-fast-path is off
node-4  -     10.244.4.0/24  none: why                      -     -
node-5  -     -              -                              -     -

NODE    REFUSED                  WHY
node-5  the range 10.244.2.0/25  it overlaps a range of the node node-2";
        assert_eq!(render(&nodes(), false, false), expected);
        let wide = render(&nodes(), false, true);
        assert!(wide.starts_with("NODE    ZONE  RANGE          WAY                            MTU   FAST PATH                    ADDRESSES  UID\n"), "{wide}");
        assert!(wide.contains("  yes                          192.0.2.2  uid-node-2\n"), "{wide}");
    }

    #[test]
    fn what_was_asked_has_an_answer_or_says_why_not_and_silence_is_a_failure() {
        let mut nodes = nodes();
        assert_eq!(silence(&nodes), None);
        nodes.nodes.truncate(3);
        nodes.refused.clear();
        nodes.nodes[1].ranges[0].answered_us = Some(117);
        nodes.nodes[2].ranges[0].no_answer_because = "none within 900ms: why".to_owned();
        let table = render(&nodes, true, false);
        let ends = ["ANSWER", "-", "after 0.117 ms", "none within 900ms: why"];
        assert_eq!(table.lines().count(), 4);
        assert!(table.lines().zip(ends).all(|(line, end)| line.ends_with(&format!("  {end}"))), "{table}");
        assert_eq!(silence(&nodes).unwrap(), "1 of 2 ranges of other nodes have not answered");
    }

    #[test]
    fn a_name_leaves_the_node_and_the_conflicts_it_has_a_part_in() {
        for (name, conflicts) in [("node-2", 1), ("node-5", 1), ("node-3", 0)] {
            let mut nodes = nodes();
            retain(&mut nodes, name);
            assert_eq!((nodes.nodes.len(), nodes.refused.len()), (1, conflicts), "{name}");
            assert_eq!(failure(&nodes, Some(name)), None);
        }
        let mut nodes = nodes();
        retain(&mut nodes, "node-9");
        let expected = "the agent knows no node \"node-9\"; `ferrulectl nodes` lists all";
        assert_eq!(failure(&nodes, Some("node-9")).unwrap(), expected);
    }

    #[test]
    fn nodes_that_are_not_listed_yet_are_a_failure() {
        let failure = failure(&ListNodesResponse::default(), Some("node-1")).unwrap();
        assert!(failure.starts_with("the agent does not know the nodes"), "{failure}");
        assert_eq!(super::failure(&nodes(), None), None);
    }

    #[test]
    fn json_has_the_field_names_of_the_protocol() {
        let mut nodes = nodes();
        retain(&mut nodes, "node-2");
        let expected = json!({
            "synced": true,
            "nodes": [{
                "name": "node-2", "uid": "uid-node-2", "zone": "", "own": false, "internal_ips": ["192.0.2.2"],
                "ranges": [{
                    "range": "10.244.2.0/24", "way": "direct", "to": "192.0.2.2", "interface": "eth0",
                    "mtu": 1500, "fast_path": true, "slow_because": "", "no_way_because": "",
                    "answered_us": null, "no_answer_because": "",
                }],
            }],
            "refused": [{
                "node": "node-5", "uid": "uid-node-5", "what": "the range 10.244.2.0/25",
                "why": "it overlaps a range of the node node-2", "claimant": "node-2",
            }],
        });
        assert_eq!(serde_json::to_value(&nodes).unwrap(), expected);
    }
}
