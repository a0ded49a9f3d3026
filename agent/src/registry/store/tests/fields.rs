//! What the last release finds in a record of this agent, if the node is rolled back to it.

use std::collections::BTreeSet;

use ferrule_vif::Route;
use serde_json::{Map, Value, json};

use super::{record::Record, *};
use crate::durable::{seal, unseal};
use crate::registry::{HostPort, Rate, Transport};

/// A line of the list: a field, and what an agent does that has no such field.
struct Line<'a> {
    /// The first release that writes the field.
    since: &'a str,
    /// `always`, or `if-set` if a record can lack the field.
    presence: &'a str,
    path: &'a str,
    without: &'a str,
}

const LIST: &str = include_str!("fields_of_layout_3.txt");
/// No agent of an earlier release exists.
const FIRST: &str = "0.1.0";

fn list() -> Vec<Line<'static>> {
    let lines = LIST.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let mut words = line.splitn(4, ' ');
            let mut next = || words.next().unwrap_or_default();
            Line { since: next(), presence: next(), path: next(), without: next() }
        })
        .collect()
}

/// A record in which every field is set. No field is left to a default, so that a new one has to be named
/// here.
fn fullest() -> Kept {
    let Attachment { key, state, pod, netns, netns_id, host, created_at_ms, created_since_boot_ns, .. } =
        attachment(2);
    let addresses = Addresses { v4: Some([10, 0, 0, 2].into()), v6: Some("fd00::2".parse().unwrap()) };
    let route = Route {
        dst: "192.168.0.0/16".parse().unwrap(),
        gw: Some([10, 0, 0, 254].into()),
        mtu: Some(1400),
        advmss: Some(1360),
        priority: Some(7),
    };
    let vif = Vif {
        kind: VifKind::Veth,
        mac: addresses.mac(),
        mtu: 1500,
        addresses,
        is_ipv6_first: true,
        gateways: addresses,
        is_default: true,
        routes: vec![route],
    };
    let address = Some([192, 0, 2, 1].into());
    let port = HostPort { protocol: Transport::Tcp, address, port: 8080, pod_port: 80 };
    let rate = Some(Rate { bits: 1_000_000, burst_bits: 8_000 });
    let wishes = Wishes { host_ports: vec![port], ingress: rate, egress: rate, later: Map::new() };
    let with = Some(attachment(3).key);
    let attachment = Attachment {
        key,
        state,
        pod,
        netns,
        netns_id,
        vif,
        with,
        wishes,
        host,
        created_at_ms,
        created_since_boot_ns,
        later: Map::new(),
    };
    let cooldown = vec![Released { address: [10, 0, 0, 9].into(), since_boot_ms: 9000 }];
    Kept { attachment: Some(attachment), cooldown }
}

/// The paths of all fields in the file of a record.
fn paths(kept: &Kept) -> BTreeSet<String> {
    fn collect(value: &Value, path: &str, into: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => fields.iter().for_each(|(name, value)| {
                let dot = if path.is_empty() { "" } else { "." };
                collect(value, &format!("{path}{dot}{name}"), into);
            }),
            Value::Array(values) => values.iter().for_each(|it| collect(it, &format!("{path}[]"), into)),
            _ => drop(into.insert(path.to_owned())),
        }
    }
    let own = Identity { boot: "boot".to_owned(), netns: "4:1".to_owned() };
    let file = Record::new(&own, &attachment(2).key, kept).encode().unwrap();
    let text = String::from_utf8(file).unwrap();
    let (header, json) = text.split_once('\n').unwrap();
    assert!(header.ends_with(" ferrule-attachment 3"), "a later layout has a list of its own: {header}");
    let mut paths = BTreeSet::new();
    collect(&serde_json::from_str(json).unwrap(), "", &mut paths);
    paths
}

fn listed(is_wanted: impl Fn(&Line<'_>) -> bool) -> BTreeSet<String> {
    list().iter().filter(|line| is_wanted(line)).map(|line| line.path.to_owned()).collect()
}

#[test]
fn every_field_of_a_record_is_listed_and_no_listed_one_is_gone() {
    let (written, listed) = (paths(&fullest()), listed(|_| true));
    let (new, gone): (Vec<_>, Vec<_>) =
        (written.difference(&listed).collect(), listed.difference(&written).collect());
    assert!(
        new.is_empty() && gone.is_empty(),
        "new: {new:?}: list them with what an older agent does without them, or raise the layout; gone: {gone:?}: an \
         older agent may need them: raise the layout"
    );
}

#[test]
fn what_an_older_agent_may_rely_on_is_always_there() {
    let leanest = Kept { attachment: Some(attachment(2)), cooldown: Vec::new() };
    assert_eq!(paths(&leanest), listed(|line| line.presence == "always"));
}

#[test]
fn a_field_that_is_new_since_the_first_release_says_what_an_older_agent_does() {
    for Line { since, presence, path, without } in list() {
        assert!(["always", "if-set"].contains(&presence), "{path}");
        assert!(since == FIRST || without.split(' ').count() > 2, "{path} since {since}: {without:?}");
    }
}

#[test]
fn fields_of_a_later_release_are_kept_and_written_back() {
    let own = Identity { boot: "boot".to_owned(), netns: "4:1".to_owned() };
    let key = attachment(2).key;
    let body = |bytes: &[u8]| -> Value {
        let unsealed = unseal("ferrule-attachment", bytes).unwrap();
        serde_json::from_slice(unsealed.body).unwrap()
    };
    let mut later = body(&Record::new(&own, &key, &fullest()).encode().unwrap());
    later["attachment"]["priority"] = json!({ "class": "gold", "weights": [1, 2] });
    later["attachment"]["wishes"]["mirror"] = json!("uplink");
    let file = seal("ferrule-attachment", 3, format!("{later}\n").as_bytes());
    let (record, _) = Record::decode(&file, &key, &[]).unwrap();
    let mut kept = record.kept();
    assert_eq!(body(&Record::new(&own, &key, &kept).encode().unwrap()), later);
    // What this agent changes, it changes beside them.
    kept.attachment.as_mut().unwrap().state = State::Unplugging;
    let changed = body(&Record::new(&own, &key, &kept).encode().unwrap());
    assert_eq!(changed["attachment"]["priority"], later["attachment"]["priority"]);
    assert_ne!(changed, later);
    // An attachment that asks for nothing but what a later release knows has a wish.
    later["attachment"]["wishes"] = json!({ "mirror": "uplink" });
    let file = seal("ferrule-attachment", 3, format!("{later}\n").as_bytes());
    let kept = Record::decode(&file, &key, &[]).unwrap().0.kept();
    assert_eq!(body(&Record::new(&own, &key, &kept).encode().unwrap()), later);
}
