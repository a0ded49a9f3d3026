//! Annotations as they should be, and as they should not.

use std::fmt::Write as _;

use proptest::{collection::vec, option, prelude::*};
use serde_json::{Value, json};

use super::*;
use crate::Mac;

const DOCS: &str = include_str!("../../../docs/vif.md");
const SCHEMA: &str = include_str!("../../../docs/vif-v1.schema.json");

fn why(text: &str) -> String {
    from_annotation(text).unwrap_err().to_string()
}

/// What is wrong with one interface.
fn why_interface(fields: &str) -> String {
    let text = format!(r#"{{"interfaces":[{{{fields}}}]}}"#);
    let why = why(&text);
    let start = "annotation vif.ferrule.dev/v1: interfaces[0]";
    why.strip_prefix(start).unwrap_or_else(|| panic!("{why}")).trim_start_matches('.').to_owned()
}

#[test]
fn a_full_annotation_is_read() {
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
fn the_first_interface_needs_no_name_and_null_is_as_good_as_nothing() {
    let short = from_annotation(r#"{"interfaces":[{"addresses":["10.1.2.3"]}]}"#).unwrap();
    let [interface] = short.interfaces.as_slice() else { panic!("{short:?}") };
    assert_eq!((interface.name.as_str(), &interface.kind), ("eth0", &Kind::Veth));
    let nulls = r#"{"interfaces":[{"name":null,"kind":null,"addresses":["10.1.2.3"],"gateways":null,
                    "routes":null,"mac":null,"mtu":null}]}"#;
    assert_eq!(from_annotation(nulls).unwrap(), short);
}

#[test]
fn an_error_names_the_field_and_what_is_expected() {
    let second = |fields: &str| {
        why(&format!(r#"{{"interfaces":[{{"addresses":["10.1.2.3","fd00::3"]}},{{{fields}}}]}}"#))
    };
    let start = "annotation vif.ferrule.dev/v1: interfaces[1]";
    for (fields, expected) in [
        (
            r#""name":"eth1","addresses":["10.9.0.3"],"routes":[{"dst":"10.0.0.0/8","gw":"fd00::1"}]"#,
            ".routes[0].gw: fd00::1 cannot lead to 10.0.0.0/8: expected IPv4",
        ),
        (
            r#""name":"eth1","addresses":["10.9.0.3"],"gateways":["10.1.2.3"]"#,
            ".gateways[0]: 10.1.2.3 is an address of the pod itself: expected a router's",
        ),
        (r#""addresses":["10.9.0.3"]"#, ".name: is missing"),
        (
            r#""name":"eth0","addresses":["10.9.0.3"]"#,
            ".name: \"eth0\" is the name of an interface before it",
        ),
        (r#""name":"eth1","addresses":["10.1.2.3/8"]"#, ".addresses[0]: 10.1.2.3 is there twice"),
    ] {
        assert_eq!(second(fields), format!("{start}{expected}"));
    }
}

#[test]
fn the_numbers_of_a_route_have_bounds() {
    let route = |dst: &str, field: &str| {
        let text = format!(
            r#"{{"interfaces":[{{"addresses":["10.1.2.3","fd00::3"],"mtu":1400,
                "routes":[{{"dst":"{dst}",{field}}}]}}]}}"#
        );
        from_annotation(&text).map_err(|error| error.to_string())
    };
    let start = "annotation vif.ferrule.dev/v1: interfaces[0].routes[0].";
    for (dst, field, expected) in [
        ("10.9.0.0/16", r#""mtu":67"#, "mtu: 67 is not a whole number of bytes from 68 to 65535"),
        ("10.9.0.0/16", r#""mtu":"big""#, "mtu: \"big\" is not a whole number of bytes from 68 to 65535"),
        ("10.9.0.0/16", r#""mtu":1401"#, "mtu: 1401 is more than the interface's 1400"),
        ("fd09::/64", r#""mtu":1279"#, "mtu: 1279 is less than 1280, which IPv6 needs"),
        ("10.9.0.0/16", r#""advmss":87"#, "advmss: 87 is not a whole number of bytes from 88 to 65495"),
        ("10.9.0.0/16", r#""advmss":65496"#, "advmss: 65496 is not a whole number of bytes from 88 to 65495"),
        ("10.9.0.0/16", r#""priority":0"#, "priority: 0 is not a whole number from 1 to 4294967295"),
        ("10.9.0.0/16", r#""priority":-1"#, "priority: -1 is not a whole number from 1 to 4294967295"),
        (
            "10.9.0.0/16",
            r#""priority":4294967296"#,
            "priority: 4294967296 is not a whole number from 1 to 4294967295",
        ),
        ("10.9.0.0/16", r#""table":7"#, "table: is not a field; there are dst, gw, mtu, advmss, priority"),
    ] {
        assert_eq!(route(dst, field).unwrap_err(), format!("{start}{expected}"), "{field}");
    }
    for field in
        [r#""mtu":68"#, r#""mtu":1400"#, r#""advmss":88"#, r#""advmss":65495"#, r#""priority":4294967295"#]
    {
        assert!(route("10.9.0.0/16", field).is_ok(), "{field}");
    }
    let open = r#"{"interfaces":[{"addresses":["10.1.2.3"],"routes":[{"dst":"10.9.0.0/16","mtu":9000}]}]}"#;
    assert!(from_annotation(open).is_ok(), "whether it fits the uplink's is for the agent to say");
}

#[test]
fn what_is_no_annotation_at_all_is_refused() {
    let many = vec![r#"{"addresses":[]}"#; 17].join(",");
    for (text, expected) in [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[]", "an array is not an object"),
        ("{}", "interfaces: is missing"),
        (r#"{"interfaces":null}"#, "interfaces: is missing"),
        (r#"{"interfaces":{}}"#, "interfaces: an object is not an array"),
        (r#"{"interfaces":[]}"#, "interfaces: has 0: expected 1 to 16"),
        (&format!(r#"{{"interfaces":[{many}]}}"#), "interfaces: has 17: expected 1 to 16"),
        (r#"{"interfaces":["eth0"]}"#, "interfaces[0]: \"eth0\" is not an object"),
        (r#"{"interfaces":[["eth0","veth",["10.1.2.3"]]]}"#, "interfaces[0]: an array is not an object"),
        (r#"{"interface":[]}"#, "interface: is not a field; there are interfaces"),
        (&" ".repeat(65_537), "is 65537 bytes long, and 65536 are the most"),
    ] {
        let why = why(text);
        let start = format!("annotation vif.ferrule.dev/v1: {expected}");
        assert!(why.starts_with(&start), "{text:.100}: {why}");
    }
}

#[test]
fn a_typing_error_does_not_silently_lose_an_address() {
    let why = why_interface(r#""adresses":["10.1.2.3"],"addresses":["fd00::3"]"#);
    assert!(why.starts_with("adresses: is not a field; there are name, kind, addresses"), "{why}");
    let why = why_interface(r#""addresses":["10.1.2.3"],"routes":[{"dst":"10.0.0.0/8","via":"10.1.2.1"}]"#);
    assert_eq!(why, "routes[0].via: is not a field; there are dst, gw, mtu, advmss, priority");
    let twice = r#"{"interfaces":[{"addresses":["10.1.2.3"],"addresses":["fd00::3"]}]}"#;
    assert!(self::why(twice).contains(r#""addresses" is there twice"#));
}

#[test]
fn only_addresses_that_a_pod_can_have_are_taken() {
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
        let why = why_interface(&format!(r#""addresses":["{address}"]"#));
        assert!(why.starts_with("addresses[0]: "), "{address}: {why}");
    }
    for (addresses, expected) in [
        ("[]", "addresses: is empty"),
        ("null", "addresses: is missing"),
        ("\"10.1.2.3\"", "addresses: \"10.1.2.3\" is not an array"),
        ("[7]", "addresses[0]: 7 is not a string"),
        (r#"["10.1.2.3","10.1.2.4"]"#, "addresses[1]: 10.1.2.4 is the second of its family"),
        (r#"["fd00::3","fd00::3"]"#, "addresses[1]: fd00::3 is there twice"),
    ] {
        let why = why_interface(&format!(r#""addresses":{addresses}"#));
        assert!(why.starts_with(expected), "{addresses}: {why}");
    }
}

#[test]
fn every_other_field_is_checked() {
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
        (r#""name":7"#, "name: 7 is not a string"),
        (r#""kind":"""#, "kind: \"\" is not a kind"),
        (r#""kind":"a\nb""#, "kind: \"a\\nb\" is not a kind"),
        (r#""kind":{}"#, "kind: an object is not a string"),
        (r#""mac":"01:00:5e:00:00:01""#, "mac: \"01:00:5e:00:00:01\" is not the MAC address of one"),
        (r#""mac":"ff:ff:ff:ff:ff:ff""#, "mac: "),
        (r#""mac":"00:00:00:00:00:00""#, "mac: "),
        (r#""mac":"0a-fe-0a-01-02-03""#, "mac: \"0a-fe-0a-01-02-03\" is not a MAC address"),
        (r#""mtu":67"#, "mtu: 67 is not a whole number of bytes from 68 to 65535"),
        (r#""mtu":65536"#, "mtu: 65536 is not"),
        (r#""mtu":4294968696"#, "mtu: 4294968696 is not"),
        (r#""mtu":1400.5"#, "mtu: 1400.5 is not"),
        (r#""mtu":"1400""#, "mtu: \"1400\" is not"),
        (r#""gateways":["10.1.2.1/24"]"#, "gateways[0]: \"10.1.2.1/24\" is not an IP address without"),
        (r#""gateways":["fd00::1"]"#, "gateways[0]: fd00::1 is IPv6, and the interface has no IPv6 address"),
        (r#""gateways":["10.1.2.3"]"#, "gateways[0]: 10.1.2.3 is an address of the pod itself"),
        (r#""gateways":["10.1.2.1","10.1.2.2"]"#, "gateways[1]: 10.1.2.2 is the second of its family"),
        (r#""gateways":["224.0.0.1"]"#, "gateways[0]: 224.0.0.1 is a multicast address"),
        (r#""gateways":"10.1.2.1""#, "gateways: \"10.1.2.1\" is not an array"),
        (r#""routes":[{}]"#, "routes[0].dst: is missing"),
        (r#""routes":[{"dst":"10.0.0.0"}]"#, "routes[0].dst: \"10.0.0.0\" is not a network"),
        (
            r#""routes":[{"dst":"10.0.0.1/8"}]"#,
            "routes[0].dst: 10.0.0.1/8 has host bits: expected 10.0.0.0/8",
        ),
        (
            r#""routes":[{"dst":"0.0.0.0/0"}]"#,
            "routes[0].dst: 0.0.0.0/0 is the default route: expected it in \"gateways\"",
        ),
        (r#""routes":[{"dst":"::/0"}]"#, "routes[0].dst: ::/0 is the default route"),
        (r#""routes":[{"dst":"fd01::/64"}]"#, "routes[0].dst: fd01:: is IPv6, and the interface has no"),
        (
            r#""routes":[{"dst":"10.0.0.0/8"},{"dst":"10.0.0.0/8"}]"#,
            "routes[1].dst: 10.0.0.0/8 is there twice",
        ),
        (
            r#""routes":[{"dst":"10.0.0.0/8","gw":"10.1.2.3"}]"#,
            "routes[0].gw: 10.1.2.3 is an address of the pod",
        ),
        (r#""routes":[{"dst":"10.0.0.0/8","gw":"::"}]"#, "routes[0].gw: :: is the unspecified address"),
        (routes.as_str(), "routes: has 65: 64 are the most"),
    ] {
        let why = why_interface(&format!(r#""addresses":["10.1.2.3"],{field}"#));
        assert!(why.starts_with(expected), "{field}: {why}");
        assert!(why.len() < 300 && !why.contains(char::is_control), "{why}");
    }
    assert_eq!(
        why_interface(r#""addresses":["fd00::3"],"mtu":1279"#),
        "mtu: 1279 is less than 1280, which IPv6 needs"
    );
}

#[test]
fn a_hostile_text_cannot_flood_a_log() {
    let long = "x\\n".repeat(20_000);
    for text in [
        format!(r#"{{"{long}":1}}"#),
        format!(r#"{{"interfaces":[{{"addresses":["{long}"]}}]}}"#),
        format!(r#"{{"interfaces":[{{"addresses":["10.1.2.3"],"name":"{long}"}}]}}"#),
        format!(r#"{{"{long}":1,"{long}":2}}"#),
    ] {
        let why = why(&text);
        assert!(why.len() < 400 && !why.contains(char::is_control), "{why}");
    }
}

#[test]
fn the_examples_of_the_documentation_are_right() {
    let examples: Vec<&str> =
        DOCS.split("```json\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(!examples.is_empty());
    for example in examples {
        assert!(from_annotation(example).is_ok(), "{:?}", from_annotation(example));
    }
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    for example in schema["examples"].as_array().unwrap() {
        assert!(from_annotation(&example.to_string()).is_ok(), "{:?}", from_annotation(&example.to_string()));
    }
}

#[test]
fn the_schema_has_the_fields_and_the_bounds_of_the_decoder() {
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    let interfaces = &schema["properties"]["interfaces"];
    assert_eq!(interfaces["maxItems"], MAX_INTERFACES);
    let interface = &schema["$defs"]["interface"];
    let routes = &interface["properties"]["routes"];
    assert_eq!(routes["maxItems"], MAX_ROUTES);
    for (object, fields) in [
        (&schema, ["interfaces"].as_slice()),
        (interface, INTERFACE_FIELDS.as_slice()),
        (&schema["$defs"]["route"], ROUTE_FIELDS.as_slice()),
    ] {
        assert_eq!(object["additionalProperties"], false);
        let mut fields = fields.to_vec();
        fields.sort_unstable();
        let mut described: Vec<&String> = object["properties"].as_object().unwrap().keys().collect();
        described.sort_unstable();
        assert_eq!(described, fields);
    }
    let route = &schema["$defs"]["route"]["properties"];
    for (field, bounds) in [("advmss", ADVMSS), ("priority", PRIORITY), ("mtu", 68..=65520)] {
        let described = (route[field]["minimum"].as_u64(), route[field]["maximum"].as_u64());
        assert_eq!(described, (Some(*bounds.start()), Some(*bounds.end())), "{field}");
    }
}

/// Interfaces that keep every rule.
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
            // No zeros: they have several spellings in IPv6.
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
    fn no_bytes_make_it_panic(bytes in vec(any::<u8>(), 0..200)) {
        let _ = from_annotation(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn no_json_makes_it_panic(
        value in "[\\[\\]{}\",:0-9a-f./]{0,60}",
        field in prop::sample::select(INTERFACE_FIELDS.to_vec()),
    ) {
        let _ = from_annotation(&format!(r#"{{"interfaces":[{{"addresses":["10.1.2.3"],"{field}":{value}}}]}}"#));
    }

    #[test]
    fn what_keeps_the_rules_is_read_as_it_was_written(interfaces in interfaces()) {
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
