//! What `ferrulectl verify` and `docs/healing.md` say of each kind.

use super::*;

#[test]
fn advice_names_interface_stamp_namespace_and_map() {
    let it = one("a", 2, INDEX);
    let command = |of: Subject, kind: Kind| {
        let of_it = of.attachment().map(|_| &it);
        Deviation { of, kind, what: String::new() }.advice(of_it).command
    };
    let of = || Subject::Attachment(it.key.clone());
    let stray = Subject::Interface(9, it.key.clone());
    for (of, kind, expected) in [
        (of(), Kind::LinkStamp, "ip link set dev fra alias ferrule:net:a:eth0"),
        (of(), Kind::PodLink, "nsenter --net=/run/netns/x ip link show dev eth0"),
        (of(), Kind::Route(V4), "ip route get 10.0.0.2"),
        (of(), Kind::Entry(Entry::Endpoint(V4)), "bpftool map dump name ENDPOINTS"),
        (Subject::Entry(Entry::Vif(9)), Kind::StrayEntry, "bpftool map dump name VIFS"),
        (stray, Kind::StrayLink, "ip -d link show"),
        (Subject::Setting(host::IPV4), Kind::NodeForwarding, "sysctl -w net.ipv4.ip_forward=1"),
    ] {
        assert_eq!(command(of, kind), expected);
    }
}

#[test]
fn the_page_about_healing_has_the_advice_of_every_kind() {
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/healing.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let items: Vec<String> =
        guide.split("\n* ").map(|it| it.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for kind in every_kind() {
        let (is_repaired, means, command) = kind.row();
        let item = items.iter().find(|it| it.starts_with(&format!("`{}`:", kind.name())));
        let item = item.unwrap_or_else(|| panic!("{} is missing", kind.name()));
        let repaired = if is_repaired { "Repaired" } else { "Not repaired" };
        let expected = format!("{means}. {repaired}; `{command}`.");
        assert!(item.contains(&expected), "{expected}\n{item}");
    }
}
