//! What the table has for sources, destinations and ports.

use super::*;

fn table_of(sources: &[&str], kept: &[&str]) -> Table {
    let nets = |all: &[&str]| all.iter().map(|it| it.parse().unwrap()).collect();
    Table { sources: nets(sources), kept: nets(kept), ports: (32768, 65535), tunnel: None }
}

fn shown(table: &Table, set: usize) -> Vec<(String, bool)> {
    let set = &SETS[set];
    let text = |key: &[u8]| match <[u8; 4]>::try_from(key) {
        Ok(v4) => IpAddr::from(v4).to_string(),
        Err(_) => IpAddr::from(<[u8; 16]>::try_from(key).unwrap()).to_string(),
    };
    edges(&table.intervals(set), set.is_ipv4).iter().map(|(key, is_end)| (text(key), *is_end)).collect()
}

#[test]
fn overlapping_and_adjacent_networks_are_one_interval() {
    let table = table_of(
        &["10.0.1.0/24", "fd00::/64"],
        &["10.0.2.0/24", "10.0.0.0/8", "10.1.0.0/16", "11.0.0.0/8", "224.0.0.0/3", "0.0.0.0/8", "::/0"],
    );
    let edge = |key: &str, is_end| (key.to_owned(), is_end);
    assert_eq!(shown(&table, 0), [edge("0.0.0.0", true), edge("10.0.1.0", false), edge("10.0.2.0", true)]);
    let kept = [
        edge("0.0.0.0", false),
        edge("1.0.0.0", true),
        edge("10.0.0.0", false),
        edge("12.0.0.0", true),
        edge("224.0.0.0", false),
    ];
    assert_eq!(shown(&table, 1), kept, "the last interval has no end");
    assert_eq!(shown(&table, 2), [edge("::", true), edge("fd00::", false), edge("fd00:0:0:1::", true)]);
    assert_eq!(shown(&table, 3), [edge("::", false)]);
    assert_eq!(shown(&table_of(&[], &[]), 0), []);
}

#[test]
fn edges_are_read_as_they_are_sent() {
    let edges = edges(&[(5, 9), (20, u128::from(u32::MAX))], true);
    let mut sent = Vec::new();
    let change = Attribute::Nest(ELEMENTS_LIST, list(&edges, true));
    change.encode(&mut sent);
    assert_eq!(elements(&sent), edges);
    assert_eq!(elements(&[]), []);
}

#[test]
fn a_long_list_is_divided_and_only_its_end_is_open() {
    let hosts: Vec<_> = (0..1500_u32).map(|n| format!("10.{}.{}.0/31", n / 250, n % 250)).collect();
    let mut kept: Vec<_> = hosts.iter().map(String::as_str).collect();
    kept.push("224.0.0.0/3");
    let changes = table_of(&[], &kept).changes();
    let parts: Vec<_> = changes.iter().filter(|it| it.kind == NEW_ELEMENTS).collect();
    let opens = |change: &Change| format!("{:?}", change.attributes).matches("[1, 4, 1, 0, 0, 0]").count();
    assert_eq!(parts.iter().map(|it| opens(it)).collect::<Vec<_>>(), [0, 0, 0, 1]);
    for part in parts {
        let mut bytes = Vec::new();
        part.attributes.iter().for_each(|it| it.encode(&mut bytes));
        assert!(bytes.len() < usize::from(u16::MAX));
    }
}
