//! Values at the limits: the last that is accepted, and the first that is not.

use super::*;

/// The annotation of one interface with more `fields`.
fn with(addresses: &str, fields: &str) -> Result<InterfaceRequest, String> {
    let text = format!(r#"{{"interfaces":[{{"addresses":[{addresses}]{fields}}}]}}"#);
    from_annotation(&text).map(|mut vif| vif.interfaces.remove(0)).map_err(|error| error.reason().to_owned())
}

fn refused(addresses: &str, fields: &str) -> String {
    with(addresses, fields).unwrap_err()
}

const V4: &str = "\"10.1.2.3\"";
const BOTH: &str = "\"10.1.2.3\",\"fd00::3\"";

#[test]
fn an_error_has_path_and_reason_apart() {
    let error = from_annotation(r#"{"interfaces":[]}"#).unwrap_err();
    assert_eq!((error.path(), error.reason()), ("interfaces", "found 0, expected 1 to 16 interfaces"));
}

#[test]
fn the_longest_text_and_the_most_interfaces_and_routes_are_accepted() {
    let interfaces: Vec<_> =
        (1..=16).map(|i| json!({"name": format!("eth{i}"), "addresses": [format!("10.0.{i}.2")]})).collect();
    let text = json!({ "interfaces": interfaces }).to_string();
    assert_eq!(from_annotation(&(" ".repeat(65_536 - text.len()) + &text)).unwrap().interfaces.len(), 16);

    let routes = |count| {
        let routes: Vec<_> = (0..count).map(|i| json!({"dst": format!("10.{i}.0.0/16")})).collect();
        format!(r#","routes":{}"#, json!(routes))
    };
    assert_eq!(with(V4, &routes(64)).unwrap().routes.len(), 64);
    assert_eq!(refused(V4, &routes(65)), "found 65 routes, expected at most 64");
}

#[test]
fn mtus_at_the_limits_are_accepted() {
    for (addresses, mtu) in [(V4, 68), (V4, 65_535), (BOTH, 1280)] {
        assert_eq!(with(addresses, &format!(r#","mtu":{mtu}"#)).unwrap().mtu, Some(mtu));
    }
    assert_eq!(refused(BOTH, r#","mtu":1279"#), "1279 is too small, expected at least 1280 with IPv6");

    let route = |interface: &str, dst: &str, mtu: u32| {
        with(BOTH, &format!(r#",{interface}"routes":[{{"dst":"{dst}","mtu":{mtu}}}]"#))
    };
    for (interface, dst, mtu) in [
        ("", "10.9.0.0/16", 65_520),
        ("", "fd09::/64", 1280),
        (r#""mtu":65535,"#, "10.9.0.0/16", 65_520),
        (r#""mtu":65520,"#, "10.9.0.0/16", 65_520),
        (r#""mtu":1400,"#, "10.9.0.0/16", 1400),
    ] {
        assert_eq!(route(interface, dst, mtu).unwrap().routes[0].mtu, Some(mtu), "{interface}");
    }
    for (interface, limit) in [("", "a route"), (r#""mtu":65535,"#, "a route")] {
        let expected = format!("65521 is too large, expected at most 65520, the limit of {limit}");
        assert_eq!(route(interface, "10.9.0.0/16", 65_521).unwrap_err(), expected, "{interface}");
    }
    let expected = "65521 is too large, expected at most 65520, the interface's MTU";
    assert_eq!(route(r#""mtu":65520,"#, "10.9.0.0/16", 65_521).unwrap_err(), expected);
}

#[test]
fn unicast_ends_below_class_d_and_starts_above_zero() {
    for address in ["1.0.0.0", "126.255.255.255", "223.255.255.255", "169.253.0.1"] {
        assert!(with(&format!("\"{address}\""), "").is_ok(), "{address}");
    }
    for (address, reason) in [
        ("0.255.255.255", "0.255.255.255 is in 0.0.0.0/8, expected a unicast address"),
        ("239.255.255.255", "239.255.255.255 is a multicast address, expected a unicast address"),
        ("240.0.0.0", "240.0.0.0 is in 240.0.0.0/4, expected a unicast address"),
        ("::", ":: is the unspecified address, expected a unicast address"),
        ("::ffff:1.2.3.4", "::ffff:1.2.3.4 is an IPv4-mapped address, expected a unicast address"),
        ("::1", "::1 is a loopback address, expected a unicast address"),
        ("169.254.1.1", "169.254.1.1 is link-local, expected a routable address"),
        ("fe80::1", "fe80::1 is link-local, expected a routable address"),
    ] {
        assert_eq!(refused(&format!("\"{address}\""), ""), reason);
    }
}

#[test]
fn a_kind_has_at_most_64_plain_bytes() {
    let kind = |kind: &str| with(V4, &format!(r#","kind":"{kind}""#));
    let longest = "k".repeat(64);
    assert_eq!(kind(&longest).unwrap().kind, Kind::Other(longest.clone()));
    for plain in ["a_b", "a-b", "a.b", "9"] {
        assert!(kind(plain).is_ok(), "{plain}");
    }
    for hostile in [&format!("{longest}k"), "", "a b", "a/b", "ä"] {
        let error = kind(hostile).unwrap_err();
        assert!(error.ends_with(", expected a kind: 1 to 64 of [a-zA-Z0-9_.-]"), "{error}");
    }
}

#[test]
fn a_mac_is_refused_for_its_group_bit_and_for_zero_only() {
    let mac = |mac: &str| with(V4, &format!(r#","mac":"{mac}""#));
    for (text, expected) in [
        ("01:00:00:00:00:00", "found \"01:00:00:00:00:00\", expected a unicast MAC address"),
        ("00:00:00:00:00:00", "found \"00:00:00:00:00:00\", expected a MAC address other than zero"),
        ("0a", "found \"0a\", expected a MAC address such as 0a:fe:0a:01:02:03"),
    ] {
        assert_eq!(mac(text).unwrap_err(), expected);
    }
    assert_eq!(mac("02:00:00:00:00:00").unwrap().mac, Some(Mac([2, 0, 0, 0, 0, 0])));
}

#[test]
fn a_long_message_keeps_both_ends_and_200_characters() {
    let reason = |length: usize| {
        from_annotation(&format!(r#"{{"{}":1}}"#, "k".repeat(length))).unwrap_err().reason().to_owned()
    };
    let reasons: Vec<String> = (1..300).map(reason).collect();
    let (whole, cut): (Vec<_>, Vec<_>) = reasons.iter().partition(|reason| !reason.contains("..."));
    assert_eq!(whole.iter().map(|it| it.len()).max(), Some(200));
    assert!(!cut.is_empty());
    for reason in cut {
        assert_eq!(reason.len(), 203, "{reason}");
        assert!(reason.starts_with("unknown field `kkk"), "{reason}");
        assert_eq!(reason.find("..."), Some(100));
        assert!(reason.contains("expected `interfaces` at line 1 column "), "{reason}");
    }
}
