//! Valid and invalid annotations.

mod limits;
pub(super) mod schema;

use std::{collections::BTreeMap, fmt::Write as _};

use proptest::{collection::vec, option, prelude::*};
use serde_json::{Value, json};

use super::*;
use crate::{Format, InterfaceRequest, Kind, Mac, Route};

const DOCS: &str = include_str!("../../../docs/vif.md");

fn error(text: &str) -> String {
    from_annotation(text).unwrap_err().to_string()
}

/// The error of an annotation with one interface, without the path of the interface.
fn interface_error(fields: &str) -> String {
    let text = format!(r#"{{"interfaces":[{{{fields}}}]}}"#);
    let error = error(&text);
    let start = "annotation vif.ferrule.dev/v1: interfaces[0]";
    error.strip_prefix(start).unwrap_or_else(|| panic!("{error}")).trim_start_matches('.').to_owned()
}

#[test]
fn full_annotation_is_decoded() {
    let decoded = from_annotation(
        r#"{"interfaces": [
            {"name": "eth0", "kind": "veth", "addresses": ["10.1.2.3/24", "fd00::3"],
             "gateways": ["10.1.2.1", "fe80::1"],
             "routes": [{"dst": "192.168.0.0/16", "gw": "10.1.2.254", "mtu": 1300, "advmss": 1200, "priority": 7},
                        {"dst": "fd01::/64", "mtu": null, "advmss": null, "priority": null}],
             "mac": "0a:fe:0a:01:02:03", "mtu": 1400},
            {"name": "eth1", "kind": "macvlan", "addresses": ["10.9.0.3"]}]}"#,
    )
    .unwrap();
    let eth0 = InterfaceRequest {
        name: "eth0".into(),
        kind: Kind::Veth,
        active: true,
        mac: Some(Mac([0x0a, 0xfe, 0x0a, 1, 2, 3])),
        mtu: Some(1400),
        addresses: vec!["10.1.2.3/24".parse().unwrap(), "fd00::3/128".parse().unwrap()],
        gateways: vec!["10.1.2.1".parse().unwrap(), "fe80::1".parse().unwrap()],
        routes: vec![
            Route {
                mtu: Some(1300),
                advmss: Some(1200),
                priority: Some(7),
                ..Route::new("192.168.0.0/16".parse().unwrap(), Some("10.1.2.254".parse().unwrap()))
            },
            Route::new("fd01::/64".parse().unwrap(), None),
        ],
        details: BTreeMap::new(),
    };
    let eth1 = InterfaceRequest {
        name: "eth1".into(),
        kind: Kind::Other("macvlan".into()),
        mac: None,
        mtu: None,
        addresses: vec!["10.9.0.3/32".parse().unwrap()],
        gateways: vec![],
        routes: vec![],
        ..eth0.clone()
    };
    assert_eq!(decoded, VifRequest { format: Format::Annotation, interfaces: vec![eth0, eth1] });
}

#[test]
fn first_interface_needs_no_name_and_null_counts_as_missing() {
    let short = from_annotation(r#"{"interfaces":[{"addresses":["10.1.2.3"]}]}"#).unwrap();
    let [interface] = short.interfaces.as_slice() else { panic!("{short:?}") };
    assert_eq!((interface.name.as_str(), &interface.kind), ("eth0", &Kind::Veth));
    let nulls = r#"{"interfaces":[{"name":null,"kind":null,"addresses":["10.1.2.3"],"gateways":null,
                    "routes":null,"mac":null,"mtu":null}]}"#;
    assert_eq!(from_annotation(nulls).unwrap(), short);
}

#[test]
fn error_has_path_found_and_expected_value() {
    let second = |fields: &str| {
        error(&format!(r#"{{"interfaces":[{{"addresses":["10.1.2.3","fd00::3"]}},{{{fields}}}]}}"#))
    };
    let start = "annotation vif.ferrule.dev/v1: interfaces[1]";
    for (fields, expected) in [
        (
            r#""name":"eth1","addresses":["10.9.0.3"],"routes":[{"dst":"10.0.0.0/8","gw":"fd00::1"}]"#,
            ".routes[0].gw: fd00::1 cannot lead to 10.0.0.0/8, expected an IPv4 address",
        ),
        (
            r#""name":"eth1","addresses":["10.9.0.3"],"gateways":["10.1.2.3"]"#,
            ".gateways[0]: 10.1.2.3 is the pod's own address, expected a router's address",
        ),
        (r#""addresses":["10.9.0.3"]"#, ".name: missing; only the first interface has a default name"),
        (r#""name":"eth0","addresses":["10.9.0.3"]"#, ".name: duplicate interface name \"eth0\" in the pod"),
        (
            r#""name":"eth1","addresses":["10.1.2.3/8"]"#,
            ".addresses[0]: duplicate address 10.1.2.3 in the pod",
        ),
    ] {
        assert_eq!(second(fields), format!("{start}{expected}"));
    }
}

#[test]
fn route_numbers_have_bounds() {
    let route = |dst: &str, field: &str| {
        let text = format!(
            r#"{{"interfaces":[{{"addresses":["10.1.2.3","fd00::3"],"mtu":1400,
                "routes":[{{"dst":"{dst}",{field}}}]}}]}}"#
        );
        from_annotation(&text).map_err(|error| error.to_string())
    };
    let start = "annotation vif.ferrule.dev/v1: interfaces[0].routes[0].";
    for (dst, field, expected) in [
        (
            "10.9.0.0/16",
            r#""mtu":67"#,
            "mtu: 67 is out of range, expected a number of bytes from 68 to 65535",
        ),
        ("10.9.0.0/16", r#""mtu":"big""#, "mtu: invalid type: string \"big\", expected u64 at line"),
        (
            "10.9.0.0/16",
            r#""mtu":1401"#,
            "mtu: 1401 is too large, expected at most 1400, the interface's MTU",
        ),
        ("fd09::/64", r#""mtu":1279"#, "mtu: 1279 is too small, expected at least 1280 with IPv6"),
        (
            "10.9.0.0/16",
            r#""advmss":87"#,
            "advmss: 87 is out of range, expected a number of bytes from 88 to 65495",
        ),
        (
            "10.9.0.0/16",
            r#""advmss":65496"#,
            "advmss: 65496 is out of range, expected a number of bytes from 88 to 65495",
        ),
        (
            "10.9.0.0/16",
            r#""priority":0"#,
            "priority: 0 is out of range, expected a number from 1 to 4294967295",
        ),
        ("10.9.0.0/16", r#""priority":-1"#, "priority: invalid value: integer `-1`, expected u64 at line"),
        (
            "10.9.0.0/16",
            r#""priority":4294967296"#,
            "priority: 4294967296 is out of range, expected a number from 1 to 4294967295",
        ),
        (
            "10.9.0.0/16",
            r#""table":7"#,
            "table: unknown field `table`, expected one of `dst`, `gw`, `mtu`, `advmss`, `priority` at line",
        ),
    ] {
        let error = route(dst, field).unwrap_err();
        assert!(error.starts_with(&format!("{start}{expected}")), "{field}: {error}");
    }
    for field in
        [r#""mtu":68"#, r#""mtu":1400"#, r#""advmss":88"#, r#""advmss":65495"#, r#""priority":4294967295"#]
    {
        assert!(route("10.9.0.0/16", field).is_ok(), "{field}");
    }
    let open = r#"{"interfaces":[{"addresses":["10.1.2.3"],"routes":[{"dst":"10.9.0.0/16","mtu":9000}]}]}"#;
    assert!(from_annotation(open).is_ok(), "the agent compares with the uplink's MTU");
}

#[test]
fn malformed_annotations_are_refused() {
    let many = vec![r#"{"addresses":[]}"#; 17].join(",");
    for (text, expected) in [
        ("", "invalid JSON"),
        ("{", "invalid JSON"),
        (r#"{"interfaces":[{"addresses":["10.1.2.3"]}]} x"#, "invalid JSON: trailing characters"),
        ("[]", "invalid type: sequence, expected an object"),
        ("{}", "missing field `interfaces`"),
        (r#"{"interfaces":null}"#, "interfaces: invalid type: null, expected a sequence"),
        (r#"{"interfaces":{}}"#, "interfaces: invalid type: map, expected a sequence"),
        (r#"{"interfaces":[]}"#, "interfaces: found 0, expected 1 to 16 interfaces"),
        (&format!(r#"{{"interfaces":[{many}]}}"#), "interfaces: found 17, expected 1 to 16 interfaces"),
        (r#"{"interfaces":["eth0"]}"#, "interfaces[0]: invalid type: string \"eth0\", expected an object"),
        (
            r#"{"interfaces":[["eth0","veth",["10.1.2.3"]]]}"#,
            "interfaces[0]: invalid type: sequence, expected an object",
        ),
        (r#"{"interface":[]}"#, "interface: unknown field `interface`, expected `interfaces`"),
        (&" ".repeat(65_537), "found 65537 bytes, expected at most 65536"),
    ] {
        let error = error(text);
        let start = format!("annotation vif.ferrule.dev/v1: {expected}");
        assert!(error.starts_with(&start), "{text:.100}: {error}");
    }
}

#[test]
fn unknown_and_duplicate_fields_are_refused() {
    let error = interface_error(r#""adresses":["10.1.2.3"],"addresses":["fd00::3"]"#);
    let expected = "adresses: unknown field `adresses`, expected one of `name`, `kind`, `addresses`";
    assert!(error.starts_with(expected), "{error}");
    let error =
        interface_error(r#""addresses":["10.1.2.3"],"routes":[{"dst":"10.0.0.0/8","via":"10.1.2.1"}]"#);
    let expected =
        "routes[0].via: unknown field `via`, expected one of `dst`, `gw`, `mtu`, `advmss`, `priority`";
    assert!(error.starts_with(expected), "{error}");
    let error = interface_error(r#""addresses":["10.1.2.3"],"addresses":["fd00::3"]"#);
    assert!(error.starts_with(": duplicate field `addresses` at line 1"), "{error}");
}

#[test]
fn only_routable_unicast_addresses_are_accepted() {
    for address in [
        "0.0.0.0",
        "0.1.2.3",
        "127.0.0.1",
        "169.254.1.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "fe80::1",
        "ff02::1",
        "::ffff:10.1.2.3",
        "10.1.2",
        "10.1.2.3/33",
        "10.01.2.3",
        "fd00::3%eth0",
        "fd00::3/129",
        "",
        "10.1.2.3 ",
    ] {
        let error = interface_error(&format!(r#""addresses":["{address}"]"#));
        assert!(error.starts_with("addresses[0]: "), "{address}: {error}");
    }
    for (addresses, expected) in [
        ("[]", "addresses: empty, expected"),
        ("null", "addresses: invalid type: null, expected a sequence"),
        ("\"10.1.2.3\"", "addresses: invalid type: string \"10.1.2.3\", expected a sequence"),
        ("[7]", "addresses[0]: invalid type: integer `7`, expected a string"),
        (r#"["10.1.2.3","10.1.2.4"]"#, "addresses[1]: 10.1.2.4 is the second IPv4 address"),
        (r#"["fd00::3","fd00::3"]"#, "addresses[1]: duplicate address fd00::3 in the pod"),
    ] {
        let error = interface_error(&format!(r#""addresses":{addresses}"#));
        assert!(error.starts_with(expected), "{addresses}: {error}");
    }
}

#[test]
fn all_other_fields_are_validated() {
    let routes: String = (0..65).fold(String::new(), |mut all, i| {
        write!(all, r#"{}{{"dst":"10.{i}.0.0/16"}}"#, if i == 0 { "" } else { "," }).unwrap();
        all
    });
    let routes = format!(r#""routes":[{routes}]"#);
    for (field, expected) in [
        (r#""name":"""#, "name: interface name \"\" is empty"),
        (r#""name":"sixteen-bytes-xx""#, "name: interface name"),
        (r#""name":"a/b""#, "name: interface name"),
        (r#""name":"a:b""#, "name: interface name"),
        (r#""name":"a b""#, "name: interface name"),
        (r#""name":".""#, "name: interface name"),
        (r#""name":"..""#, "name: interface name"),
        (r#""name":"lo""#, "name: interface name"),
        (r#""name":7"#, "name: invalid type: integer `7`, expected a string"),
        (r#""kind":"""#, "kind: found \"\", expected a kind"),
        (r#""kind":"a\nb""#, "kind: found \"a\\nb\", expected a kind"),
        (r#""kind":{}"#, "kind: invalid type: map, expected a string"),
        (r#""mac":"01:00:5e:00:00:01""#, "mac: found \"01:00:5e:00:00:01\", expected a unicast"),
        (r#""mac":"ff:ff:ff:ff:ff:ff""#, "mac: "),
        (r#""mac":"00:00:00:00:00:00""#, "mac: "),
        (r#""mac":"0a-fe-0a-01-02-03""#, "mac: found \"0a-fe-0a-01-02-03\", expected a MAC address"),
        (r#""mtu":67"#, "mtu: 67 is out of range, expected a number of bytes from 68 to 65535"),
        (r#""mtu":65536"#, "mtu: 65536 is out of range"),
        (r#""mtu":4294968696"#, "mtu: 4294968696 is out of range"),
        (r#""mtu":1400.5"#, "mtu: invalid type: floating point `1400.5`, expected u64"),
        (r#""mtu":"1400""#, "mtu: invalid type: string \"1400\", expected u64"),
        (
            r#""gateways":["10.1.2.1/24"]"#,
            "gateways[0]: found \"10.1.2.1/24\", expected an IP address without",
        ),
        (r#""gateways":["fd00::1"]"#, "gateways[0]: fd00::1 is IPv6, but the interface has no IPv6 address"),
        (r#""gateways":["10.1.2.3"]"#, "gateways[0]: 10.1.2.3 is the pod's own address"),
        (r#""gateways":["10.1.2.1","10.1.2.2"]"#, "gateways[1]: 10.1.2.2 is the second IPv4 address"),
        (r#""gateways":["224.0.0.1"]"#, "gateways[0]: 224.0.0.1 is a multicast address"),
        (r#""gateways":"10.1.2.1""#, "gateways: invalid type: string \"10.1.2.1\", expected a sequence"),
        (r#""routes":[{}]"#, "routes[0]: missing field `dst`"),
        (r#""routes":[{"dst":"10.0.0.0"}]"#, "routes[0].dst: found \"10.0.0.0\", expected a network"),
        (
            r#""routes":[{"dst":"10.0.0.1/8"}]"#,
            "routes[0].dst: 10.0.0.1/8 has host bits, expected 10.0.0.0/8",
        ),
        (
            r#""routes":[{"dst":"0.0.0.0/0"}]"#,
            "routes[0].dst: 0.0.0.0/0 is the default route, expected in \"gateways\"",
        ),
        (r#""routes":[{"dst":"::/0"}]"#, "routes[0].dst: ::/0 is the default route"),
        (r#""routes":[{"dst":"fd01::/64"}]"#, "routes[0].dst: fd01:: is IPv6, but the interface has no"),
        (
            r#""routes":[{"dst":"10.0.0.0/8"},{"dst":"10.0.0.0/8"}]"#,
            "routes[1].dst: duplicate destination 10.0.0.0/8",
        ),
        (
            r#""routes":[{"dst":"10.0.0.0/8","gw":"10.1.2.3"}]"#,
            "routes[0].gw: 10.1.2.3 is the pod's own address",
        ),
        (r#""routes":[{"dst":"10.0.0.0/8","gw":"::"}]"#, "routes[0].gw: :: is the unspecified address"),
        (routes.as_str(), "routes: found 65 routes, expected at most 64"),
    ] {
        let error = interface_error(&format!(r#""addresses":["10.1.2.3"],{field}"#));
        assert!(error.starts_with(expected), "{field}: {error}");
        assert!(error.len() < 300 && !error.contains(char::is_control), "{error}");
    }
    assert_eq!(
        interface_error(r#""addresses":["fd00::3"],"mtu":1279"#),
        "mtu: 1279 is too small, expected at least 1280 with IPv6"
    );
}

#[test]
fn hostile_text_is_escaped_and_cut() {
    let long = "x\\n".repeat(20_000);
    for text in [
        format!(r#"{{"{long}":1}}"#),
        format!(r#"{{"interfaces":[{{"addresses":["{long}"]}}]}}"#),
        format!(r#"{{"interfaces":[{{"addresses":["10.1.2.3"],"name":"{long}"}}]}}"#),
        format!(r#"{{"{long}":1,"{long}":2}}"#),
        format!(r#"{{"interfaces":"{long}"}}"#),
        format!(r#"{{"interfaces":[{{"addresses":["10.1.2.3"],"mtu":"{long}"}}]}}"#),
    ] {
        let error = error(&text);
        assert!(error.len() < 400 && !error.contains(char::is_control), "{error}");
    }
}

#[test]
fn documented_examples_are_valid() {
    let examples: Vec<&str> =
        DOCS.split("```json\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(!examples.is_empty());
    for example in examples {
        assert!(from_annotation(example).is_ok(), "{:?}", from_annotation(example));
    }
}

/// Valid interfaces.
fn interfaces() -> impl Strategy<Value = Vec<Value>> {
    let interface = (
        1..4u8,
        option::of(0..=128u8),
        any::<(bool, bool)>(),
        vec((any::<bool>(), any::<bool>()), 0..4),
        option::of(any::<[u8; 5]>()),
        option::of(1280..=65535u32),
        option::of("[a-zA-Z][a-zA-Z0-9_.-]{0,20}"),
    );
    vec(interface, 1..=16).prop_map(|all| {
        let all = all.into_iter().enumerate();
        all.map(|(i, (families, length, gateways, routes, mac, mtu, kind))| {
            // No zeros, which have several notations in IPv6.
            let i = i + 1;
            let (v4, v6) = (families & 1 != 0, families & 2 != 0);
            let mut interface = json!({"name": format!("eth{i}"), "addresses": []});
            let mut put = |field: &str, value: Value| interface[field] = value;
            let length4 = length.filter(|l| *l <= 32).map_or(String::new(), |l| format!("/{l}"));
            let length6 = length.map_or(String::new(), |l| format!("/{l}"));
            let both = |a: Option<String>, b: Option<String>| a.into_iter().chain(b).collect::<Vec<_>>();
            put(
                "addresses",
                json!(both(
                    v4.then(|| format!("10.0.{i}.2{length4}")),
                    v6.then(|| format!("fd00::{i:x}:2{length6}"))
                )),
            );
            put(
                "gateways",
                json!(both(
                    (v4 && gateways.0).then(|| format!("10.0.{i}.1")),
                    (v6 && gateways.1).then(|| "fe80::1".into())
                )),
            );
            let routes = routes.into_iter().enumerate().map(|(j, (as_v4, gw))| {
                let as_v4 = if v4 && v6 { as_v4 } else { v4 };
                let dst =
                    if as_v4 { format!("192.{i}.{j}.0/24") } else { format!("fd01:{i:x}:{:x}::/48", j + 1) };
                let via = if as_v4 { "169.254.1.1" } else { "fd00::ffff" };
                if gw { json!({"dst": dst, "gw": via}) } else { json!({"dst": dst}) }
            });
            put("routes", routes.collect());
            if let Some([a, b, c, d, e]) = mac {
                put("mac", json!(Mac([2, a, b, c, d, e]).to_string()));
            }
            if let Some(mtu) = mtu {
                put("mtu", json!(mtu));
            }
            if let Some(kind) = kind {
                put("kind", json!(kind));
            }
            interface
        })
        .collect()
    })
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in vec(any::<u8>(), 0..200)) {
        let _ = from_annotation(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn arbitrary_json_does_not_panic(
        value in "[\\[\\]{}\",:0-9a-f./]{0,60}",
        field in prop::sample::select(vec!["name", "kind", "addresses", "gateways", "routes", "mac", "mtu"]),
    ) {
        let _ = from_annotation(&format!(r#"{{"interfaces":[{{"addresses":["10.1.2.3"],"{field}":{value}}}]}}"#));
    }

    #[test]
    fn valid_annotations_are_decoded_unchanged(interfaces in interfaces()) {
        let text = json!({ "interfaces": interfaces }).to_string();
        let decoded = from_annotation(&text).map_err(|e| TestCaseError::fail(format!("{e}: {text}")))?;
        prop_assert_eq!(decoded.interfaces.len(), interfaces.len());
        let veth = json!("veth");
        for (decoded, written) in decoded.interfaces.iter().zip(&interfaces) {
            let shown = serde_json::to_value(decoded).unwrap();
            for field in ["name", "gateways", "routes"] {
                prop_assert_eq!(&shown[field], &written[field], "{}", field);
            }
            for field in ["mac", "mtu"] {
                prop_assert_eq!(&shown[field], written.get(field).unwrap_or(&Value::Null));
            }
            prop_assert_eq!(&shown["kind"], written.get("kind").unwrap_or(&veth));
            let addresses = decoded.addresses.iter().zip(written["addresses"].as_array().unwrap());
            for (address, written) in addresses {
                let written = written.as_str().unwrap();
                let full = if written.contains('/') { address.to_string() } else { address.addr().to_string() };
                prop_assert_eq!(full, written);
            }
        }
    }
}
