//! VIFs of all releases of Kuryr, and malformed ones.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::Kind;

const ERA1: &str = include_str!("../../testdata/era1_pod.json");
const ERA2: &str = include_str!("../../testdata/era2_pod_real_doc.json");
const ERA3: &str = include_str!("../../testdata/era3_pod.json");
const ERA4: &str = include_str!("../../testdata/era4_kuryrport.json");
const ERA4_EMPTY: &str = include_str!("../../testdata/era4_kuryrport_empty.json");
const ERA4A: &str = include_str!("../../testdata/era4a_kuryrport_spec_vifs.json");
const POD_STATE: &str = include_str!("../../testdata/PodState.json");
const VLAN_NESTED: &str = include_str!("../../testdata/VIFVlanNested.changes.json");

/// The annotation of a pod, which is a string that holds JSON.
fn annotation(pod: &str) -> String {
    let pod: Value = serde_json::from_str(pod).unwrap();
    pod["metadata"]["annotations"][crate::KURYR_ANNOTATION].as_str().unwrap().to_owned()
}

fn from_port(port: &str) -> Result<Option<VifRequest>, VifError> {
    let port: Value = serde_json::from_str(port).unwrap();
    let vifs = |part: &str| port[part].get("vifs").map(Value::to_string);
    from_vifs(vifs("spec").as_deref(), vifs("status").as_deref())
}

/// Name, kind, activity, MTU and addresses of each interface.
fn summary(vif: &VifRequest) -> Vec<String> {
    let line = |it: &InterfaceRequest| {
        let addresses: Vec<String> = it.addresses.iter().map(ToString::to_string).collect();
        let mtu = it.mtu.map_or(String::new(), |mtu| mtu.to_string());
        format!("{} {} {} {mtu} {}", it.name, it.kind, it.active, addresses.join(" "))
    };
    vif.interfaces.iter().map(line).collect()
}

/// A valid VIF with a change.
fn vif(change: impl FnOnce(&mut Value)) -> Value {
    let mut vif: Value = serde_json::from_str(VLAN_NESTED).unwrap();
    change(&mut vif);
    vif
}

fn decode_one(vif: &Value) -> Result<InterfaceRequest, String> {
    let mut decoded = from_annotation(&vif.to_string()).map_err(|e| e.to_string())?;
    Ok(decoded.interfaces.remove(0))
}

fn data<'v>(vif: &'v mut Value, path: &[&str]) -> &'v mut Value {
    path.iter().fold(&mut vif["versioned_object.data"], |at, key| match key.parse::<usize>() {
        Ok(index) => &mut at["objects"][index]["versioned_object.data"],
        Err(_) => &mut at[*key]["versioned_object.data"],
    })
}

fn remove(object: &mut Value, key: &str) {
    assert!(object.as_object_mut().unwrap().remove(key).is_some(), "{key} was not there");
}

#[test]
fn annotation_with_one_vif_is_decoded() {
    let vif = from_annotation(&annotation(ERA1)).unwrap();
    assert_eq!(vif.format, Format::KuryrVif);
    assert_eq!(summary(&vif), ["eth0 VIFOpenVSwitch true 1450 10.11.9.5/24"]);
    let [eth0] = vif.interfaces.as_slice() else { panic!("{vif:?}") };
    assert_eq!(eth0.mac.unwrap().to_string(), "fa:16:3e:bf:84:ff");
    assert_eq!(eth0.gateways, ["10.11.9.1".parse::<std::net::IpAddr>().unwrap()]);
    let [route] = eth0.routes.as_slice() else { panic!("{eth0:?}") };
    assert_eq!(route.dst.to_string(), "10.0.0.0/24");
    assert_eq!(route.gw.unwrap().to_string(), "10.11.9.254");
    assert_eq!(eth0.details["bridge_name"], "br-int");
    assert_eq!(eth0.details["plugin"], "ovs");
}

#[test]
fn annotation_with_a_map_of_vifs_is_decoded() {
    let vif = from_annotation(&annotation(ERA2)).unwrap();
    assert_eq!(vif.format, Format::KuryrVifMap);
    assert_eq!(summary(&vif), ["eth0 VIFVlanNested true 1350 10.11.9.5/24"]);
    assert_eq!(vif.interfaces[0].details["vlan_id"], "1346");
}

#[test]
fn annotation_with_a_pod_state_is_decoded() {
    for text in [annotation(ERA3), POD_STATE.to_owned()] {
        let vif = from_annotation(&text).unwrap();
        assert_eq!(vif.format, Format::KuryrPodState);
        let expected = [
            "eth0 VIFVlanNested true 1450 10.11.9.5/24 fd35:7db5:e3fc:0:f816:3eff:fe80:d421/64",
            "eth1 VIFMacvlanNested true 1450 10.11.9.5/24",
        ];
        assert_eq!(summary(&vif), expected);
        assert_eq!(vif.interfaces[0].gateways.len(), 2);
    }
}

#[test]
fn pod_state_may_have_a_single_vif() {
    let mut state: Value = serde_json::from_str(POD_STATE).unwrap();
    for additional in [json!({}), Value::Null] {
        data(&mut state, &[])["additional_vifs"] = additional;
        assert_eq!(from_annotation(&state.to_string()).unwrap().interfaces.len(), 1);
    }
    remove(data(&mut state, &[]), "additional_vifs");
    assert_eq!(from_annotation(&state.to_string()).unwrap().interfaces.len(), 1);
    remove(data(&mut state, &[]), "default_vif");
    let error = from_annotation(&state.to_string()).unwrap_err().to_string();
    assert_eq!(error, "annotation openstack.org/kuryr-vif: default_vif: missing");
}

#[test]
fn kuryr_port_is_decoded() {
    for (port, format) in [(ERA4, Format::KuryrPort), (ERA4A, Format::KuryrPortSpec)] {
        let vif = from_port(port).unwrap().unwrap();
        assert_eq!(vif.format, format);
        let expected = [
            "eth0 VIFVlanNested true 1450 10.11.9.5/24 fd35:7db5:e3fc:0:f816:3eff:fe80:d421/64",
            "eth1 VIFOpenVSwitch true 1450 10.11.9.5/24",
        ];
        assert_eq!(summary(&vif), expected);
    }
}

#[test]
fn kuryr_port_without_vifs_is_not_ready() {
    assert_eq!(from_port(ERA4_EMPTY), Ok(None));
    for (spec, status) in [
        (None, None),
        (None, Some("{}")),
        (None, Some("null")),
        (Some("null"), Some("{}")),
        (Some("{}"), None),
    ] {
        assert_eq!(from_vifs(spec, status), Ok(None), "{spec:?} {status:?}");
    }
}

#[test]
fn default_vif_comes_first() {
    let named = |names: &[(&str, Option<bool>)]| {
        let entry = |(name, default): &(&str, Option<bool>)| {
            let mut entry = json!({"vif": vif(|_| ())});
            if let Some(default) = default {
                entry["default"] = json!(default);
            }
            ((*name).to_owned(), entry)
        };
        let vifs: Value = names.iter().map(entry).collect::<serde_json::Map<_, _>>().into();
        let decoded = from_vifs(None, Some(&vifs.to_string())).map_err(|e| e.to_string())?;
        let names = decoded.unwrap().interfaces.into_iter().map(|it| it.name);
        Ok::<_, String>(names.collect::<Vec<_>>().join(" "))
    };
    assert_eq!(named(&[("a", Some(false)), ("eth0", Some(false)), ("z", Some(true))]).unwrap(), "z a eth0");
    assert_eq!(named(&[("a", None), ("eth0", None)]).unwrap(), "eth0 a");
    assert_eq!(named(&[("net1", None)]).unwrap(), "net1");
    let error = named(&[("a", None), ("b", None)]).unwrap_err();
    assert_eq!(error, "KuryrPort: status.vifs: found no default VIF, expected one marked or named eth0");
    let error = named(&[("a", Some(true)), ("b", Some(true))]).unwrap_err();
    assert_eq!(error, "KuryrPort: status.vifs: found a second default VIF, expected one");
}

#[test]
fn only_vif_generic_is_a_veth() {
    for (text, class) in [
        (include_str!("../../testdata/VIFBridge.changes.json"), "VIFBridge"),
        (include_str!("../../testdata/VIFDPDKNested.changes.json"), "VIFDPDKNested"),
        (include_str!("../../testdata/VIFMacvlanNested.changes.json"), "VIFMacvlanNested"),
        (include_str!("../../testdata/VIFOpenVSwitch.json"), "VIFOpenVSwitch"),
        (include_str!("../../testdata/VIFVHostUser.changes.json"), "VIFVHostUser"),
        (VLAN_NESTED, "VIFVlanNested"),
    ] {
        let vif = from_annotation(text).unwrap();
        assert_eq!(vif.interfaces[0].kind, Kind::Other(class.into()));
    }
    for (class, kind) in
        [("VIFGeneric", Kind::Veth), ("VIFSomethingNew", Kind::Other("VIFSomethingNew".into()))]
    {
        let vif = vif(|vif| vif["versioned_object.name"] = json!(class));
        assert_eq!(decode_one(&vif).unwrap().kind, kind);
    }
}

#[test]
fn vif_is_active_by_default() {
    let text = include_str!("../../testdata/VIFVlanNested.inactive.json");
    assert!(!from_annotation(text).unwrap().interfaces[0].active);
    assert!(decode_one(&vif(|vif| remove(data(vif, &[]), "active"))).unwrap().active);
}

#[test]
fn subnet_may_have_no_gateway() {
    let vif = vif(|vif| {
        remove(data(vif, &["network", "subnets", "0"]), "gateway");
        data(vif, &["network", "subnets", "1"])["gateway"] = Value::Null;
    });
    let decoded = decode_one(&vif).unwrap();
    assert_eq!((decoded.addresses.len(), decoded.gateways.len()), (2, 0));
}

#[test]
fn all_fixed_ips_of_a_subnet_are_decoded() {
    let vif = vif(|vif| {
        let ips = &mut data(vif, &["network", "subnets", "0", "ips"])["objects"];
        let mut second = ips[0].clone();
        second["versioned_object.data"]["address"] = json!("10.11.9.6");
        ips.as_array_mut().unwrap().push(second);
    });
    let addresses = decode_one(&vif).unwrap().addresses;
    let v4: Vec<_> = addresses.iter().filter(|it| it.addr().is_ipv4()).map(ToString::to_string).collect();
    assert_eq!(v4, ["10.11.9.5/24", "10.11.9.6/24"]);
}

#[test]
fn null_unset_and_unknown_fields_are_accepted() {
    let nulls = vif(|vif| {
        let data = data(vif, &[]);
        for field in ["address", "network", "port_profile"] {
            data[field] = Value::Null;
        }
    });
    let decoded = decode_one(&nulls).unwrap();
    assert_eq!((decoded.mac, decoded.mtu, decoded.addresses.len()), (None, None, 0));
    let bare = vif(|vif| *data(vif, &[]) = json!({}));
    assert_eq!(decode_one(&bare).unwrap().addresses, []);
    let newer = vif(|vif| {
        vif["versioned_object.version"] = json!("1.27");
        vif["new"] = json!([1]);
        data(vif, &["network"])["new"] = json!({"a": "b"});
        remove(data(vif, &["network"]), "mtu");
        remove(data(vif, &["network", "subnets", "0"]), "routes");
    });
    let decoded = decode_one(&newer).unwrap();
    assert_eq!((decoded.mtu, decoded.addresses.len(), decoded.routes.len()), (None, 2, 0));
}

#[test]
fn default_route_takes_precedence_over_the_gateway() {
    for (gateway, expected) in [(json!("10.11.9.254"), "10.11.9.254"), (Value::Null, "10.11.9.1")] {
        let vif = vif(|vif| {
            let route = data(vif, &["network", "subnets", "0", "routes", "0"]);
            route["cidr"] = json!("0.0.0.0/0");
            route["gateway"] = gateway;
        });
        let decoded = decode_one(&vif).unwrap();
        assert_eq!(decoded.gateways[0].to_string(), expected);
        assert_eq!((decoded.gateways.len(), decoded.routes.len()), (2, 0));
    }
}

#[test]
fn error_path_omits_envelopes() {
    let subnet = ["network", "subnets", "0"];
    for (vif, expected) in [
        (
            vif(|vif| data(vif, &subnet)["gateway"] = json!("x")),
            "network.subnets[0].gateway: found \"x\", expected an IP",
        ),
        (
            vif(|vif| data(vif, &subnet)["gateway"] = json!(7)),
            "network.subnets[0].gateway: found 7, expected a string",
        ),
        (
            vif(|vif| data(vif, &subnet)["gateway"] = json!("fd00::1")),
            "network.subnets[0].gateway: fd00::1 does not match 10.11.9.0/24, expected an IPv4 address",
        ),
        (
            vif(|vif| data(vif, &["network", "subnets", "1", "ips", "0"])["address"] = json!("ff02::1")),
            "network.subnets[1].ips[0].address: ff02::1 is a multicast address",
        ),
        (
            vif(|vif| remove(data(vif, &["network", "subnets", "0", "routes", "0"]), "cidr")),
            "network.subnets[0].routes[0].cidr: missing",
        ),
        (
            vif(|vif| data(vif, &subnet)["cidr"] = json!("10.11.9.0")),
            "network.subnets[0].cidr: found \"10.11.9.0\", expected a network",
        ),
        (
            vif(|vif| data(vif, &subnet)["ips"] = json!([])),
            "network.subnets[0].ips: found an array, expected an object",
        ),
        (
            vif(|vif| data(vif, &["network"])["mtu"] = json!("1450")),
            "network.mtu: found \"1450\", expected a number of bytes",
        ),
        (
            vif(|vif| data(vif, &[])["active"] = json!("true")),
            "active: found \"true\", expected true or false",
        ),
        (
            vif(|vif| data(vif, &[])["address"] = json!("fa:16")),
            "address: found \"fa:16\", expected a MAC address",
        ),
        (
            vif(|vif| vif["versioned_object.namespace"] = json!("nova")),
            "versioned_object.namespace: found \"nova\", expected \"os_vif\"",
        ),
        (
            vif(|vif| vif["versioned_object.version"] = json!("2.0")),
            "versioned_object.version: found \"2.0\", expected a version 1.x",
        ),
        (
            vif(|vif| vif["versioned_object.name"] = json!("Network")),
            "versioned_object.name: found \"Network\", expected a class of VIFs",
        ),
        (vif(|vif| remove(vif, "versioned_object.data")), "versioned_object.data: missing"),
        (
            vif(|vif| vif["versioned_object.data"]["network"]["versioned_object.name"] = json!("Subnet")),
            "network.versioned_object.name: found \"Subnet\", expected \"Network\"",
        ),
    ] {
        let error = decode_one(&vif).unwrap_err();
        let start = format!("annotation openstack.org/kuryr-vif: {expected}");
        assert!(error.starts_with(&start), "{error}");
        let vifs = json!({"eth0": {"default": true, "vif": vif}}).to_string();
        let error = from_vifs(None, Some(&vifs)).unwrap_err().to_string();
        assert!(error.starts_with(&format!("KuryrPort: status.vifs.eth0.vif.{expected}")), "{error}");
    }
}

#[test]
fn malformed_vifs_are_refused() {
    let map = |name: &str| json!({ name: vif(|_| ()) }).to_string();
    let many: Value =
        (0..17).map(|i| (format!("eth{i}"), vif(|_| ()))).collect::<serde_json::Map<_, _>>().into();
    for (text, expected) in [
        ("", "invalid JSON"),
        ("7", "found 7, expected an object"),
        ("[]", "found an array, expected an object"),
        ("{}", "found no VIF"),
        (r#"{"eth0":{"vif":{}}}"#, "eth0.versioned_object.name: missing"),
        (r#"{"versioned_object.name":7}"#, "versioned_object.name: found 7, expected a string"),
        (&map("../x"), "[\"../x\"]: interface name"),
        (&map("sixteen-bytes-xx"), "sixteen-bytes-xx: interface name"),
        (&many.to_string(), "found 17 VIFs, expected at most 16"),
        (&" ".repeat(256 * 1024 + 1), "found 262145 bytes"),
    ] {
        let error = from_annotation(text).unwrap_err().to_string();
        assert!(error.starts_with(&format!("annotation openstack.org/kuryr-vif: {expected}")), "{error}");
    }
    let error = from_vifs(None, Some(r#"{"eth0":{"default":1,"vif":7}}"#)).unwrap_err().to_string();
    assert_eq!(error, "KuryrPort: status.vifs.eth0.vif: found 7, expected an object");
    // The default VIF of a PodState is named eth0 implicitly.
    let mut state: Value = serde_json::from_str(POD_STATE).unwrap();
    data(&mut state, &[])["additional_vifs"] = json!({"eth0": vif(|_| ())});
    let error = from_annotation(&state.to_string()).unwrap_err().to_string();
    assert!(error.contains("additional_vifs.eth0: eth0 is the name of the default VIF"), "{error}");
}

#[test]
fn addresses_and_routes_of_a_pod_are_limited() {
    for (list, key, value, expected) in [
        ("ips", "address", "10.11.9.", "found 66 addresses, expected at most 64"),
        ("routes", "cidr", "10.11.9.", "found 258 routes, expected at most 256"),
    ] {
        let many = vif(|vif| {
            let items = &mut data(vif, &["network", "subnets", "0", list])["objects"];
            let first = items[0].clone();
            let count: u32 = if list == "ips" { 65 } else { 258 };
            let item = |i: u32| {
                let mut item = first.clone();
                let text = if list == "ips" {
                    format!("{value}{i}")
                } else {
                    format!("10.{}.{}.0/24", i / 200, i % 200)
                };
                item["versioned_object.data"][key] = json!(text);
                item
            };
            *items = (0..count).map(item).collect();
        });
        let error = decode_one(&many).unwrap_err();
        assert!(error.ends_with(expected), "{error}");
    }
}

#[test]
fn values_at_the_limits_are_accepted() {
    let text = json!({"eth0": vif(|_| ())}).to_string();
    assert!(from_annotation(&(" ".repeat(262_144 - text.len()) + &text)).is_ok());

    let map = |count: usize| {
        let all = (0..count)
            .map(|i| (format!("eth{i}"), vif(|vif| data(vif, &["network"])["subnets"] = Value::Null)));
        Value::from(all.collect::<serde_json::Map<_, _>>())
    };
    assert_eq!(from_annotation(&map(16).to_string()).unwrap().interfaces.len(), 16);
    let mut state: Value = serde_json::from_str(POD_STATE).unwrap();
    let mut additional = map(16);
    remove(&mut additional, "eth0");
    data(&mut state, &[])["additional_vifs"] = additional.clone();
    assert_eq!(from_annotation(&state.to_string()).unwrap().interfaces.len(), 16);
    additional["eth16"] = additional["eth1"].clone();
    data(&mut state, &[])["additional_vifs"] = additional;
    let error = from_annotation(&state.to_string()).unwrap_err().to_string();
    assert!(error.ends_with(": found 17 interfaces, expected at most 16"), "{error}");

    // The second subnet has one address and no route.
    for (list, key, most) in [("ips", "address", 63_u32), ("routes", "cidr", 256)] {
        let many = vif(|vif| {
            remove(data(vif, &["network", "subnets", "1"]), "routes");
            let items = &mut data(vif, &["network", "subnets", "0", list])["objects"];
            let item = |i: u32| {
                let mut item = items[0].clone();
                let text = if list == "ips" { format!("10.11.9.{i}") } else { format!("10.7.{i}.0/24") };
                item["versioned_object.data"][key] = json!(text);
                item
            };
            *items = (0..most).map(item).collect();
        });
        let decoded = decode_one(&many).unwrap();
        let count = if list == "ips" { decoded.addresses.len() } else { decoded.routes.len() };
        assert_eq!(count, if list == "ips" { 64 } else { 256 });
    }
}

#[test]
fn details_are_cut_and_those_without_a_text_or_number_omitted() {
    let vif = vif(|vif| {
        let data = data(vif, &[]);
        data["vif_name"] = json!("x".repeat(200));
        data["bridge_name"] = json!("");
        data["physnet"] = json!(["x"]);
        data["vlan_id"] = json!(7);
    });
    let details = decode_one(&vif).unwrap().details;
    assert_eq!(details["vif_name"], "x".repeat(128));
    assert_eq!(details["vlan_id"], "7");
    assert!(!details.contains_key("bridge_name") && !details.contains_key("physnet"), "{details:?}");
}

#[test]
fn the_default_interface_is_the_marked_one_else_eth0_else_the_only_one() {
    let names = |entries: Value| {
        let decoded = from_vifs(None, Some(&entries.to_string())).map_err(|error| error.to_string())?;
        let names = decoded.unwrap().interfaces.into_iter().map(|it| it.name).collect::<Vec<_>>();
        Ok::<_, String>(names.join(" "))
    };
    let entry = |default: bool| json!({"default": default, "vif": vif(|_| ())});
    assert_eq!(names(json!({"eth0": entry(false), "net1": entry(true)})).unwrap(), "net1 eth0");
    assert_eq!(names(json!({"a": entry(false), "eth0": entry(false)})).unwrap(), "eth0 a");
    assert_eq!(names(json!({"net1": {"vif": vif(|_| ())}})).unwrap(), "net1");
    let error = names(json!({"a": entry(false), "b": entry(false)})).unwrap_err();
    assert_eq!(error, "KuryrPort: status.vifs: found no default VIF, expected one marked or named eth0");
    let error = names(json!({"a": entry(true), "b": entry(true)})).unwrap_err();
    assert_eq!(error, "KuryrPort: status.vifs: found a second default VIF, expected one");
}

#[test]
fn only_os_vif_1_and_its_classes_are_decoded() {
    for (version, is_known) in [("1.0", true), ("1.17", true), ("1.x", false), ("1.", false), ("2.0", false)]
    {
        let vif = vif(|vif| vif["versioned_object.version"] = json!(version));
        assert_eq!(decode_one(&vif).is_ok(), is_known, "{version}");
    }
    let class =
        |class: &str| decode_one(&vif(|vif| vif["versioned_object.name"] = json!(class))).map(|it| it.kind);
    assert_eq!(class("VIFGeneric"), Ok(Kind::Veth));
    assert_eq!(class("VIFNew"), Ok(Kind::Other("VIFNew".to_owned())));
    assert!(class("Vif").unwrap_err().contains("expected a class of VIFs"));
}

/// Replaces `cut` characters at a position.
fn mutate(text: &str, at: usize, with: &str, cut: usize) -> String {
    let start = text.char_indices().map(|(i, _)| i).nth(at % text.chars().count().max(1)).unwrap_or(0);
    let (before, after) = text.split_at(start);
    let rest: String = after.chars().skip(cut).collect();
    format!("{before}{with}{rest}")
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let text = String::from_utf8_lossy(&bytes);
        let _ = (from_annotation(&text), from_vifs(Some(&text), Some(&text)));
    }

    #[test]
    fn mutated_vifs_do_not_panic(
        golden in 0..6usize,
        at in any::<usize>(),
        with in "[\\[\\]{}\",:0-9a-z./-]{0,6}",
        cut in 0..20usize,
    ) {
        let texts = [&annotation(ERA1), &annotation(ERA2), &annotation(ERA3), POD_STATE, VLAN_NESTED];
        let vifs = || {
            let port: Value = serde_json::from_str(ERA4).unwrap();
            port["status"]["vifs"].to_string()
        };
        let text = texts.get(golden).map_or_else(vifs, |text| (*text).to_owned());
        let text = mutate(&text, at, &with, cut);
        let _ = (from_annotation(&text), from_vifs(Some(&text), None), from_vifs(None, Some(&text)));
    }

    /// A mutation that remains valid JSON reaches more of the decoder.
    #[test]
    fn values_of_wrong_types_do_not_panic(at in any::<prop::sample::Index>(), value in 0..7usize) {
        let values = [Value::Null, json!(7), json!(-1.5), json!("x"), json!([]), json!({}), json!([{"a": null}])];
        let mut state: Value = serde_json::from_str(POD_STATE).unwrap();
        let mut pointers = Vec::new();
        pointers_of(&state, "", &mut pointers);
        let pointer = at.get(&pointers);
        *state.pointer_mut(pointer).unwrap() = values[value].clone();
        let _ = from_annotation(&state.to_string());
    }
}

fn pointers_of(value: &Value, at: &str, all: &mut Vec<String>) {
    all.push(at.to_owned());
    match value {
        Value::Object(fields) => fields.iter().for_each(|(k, v)| pointers_of(v, &format!("{at}/{k}"), all)),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(i, v)| pointers_of(v, &format!("{at}/{i}"), all));
        }
        _ => {}
    }
}
