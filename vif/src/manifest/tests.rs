//! Manifests with one object and with many.

use serde_json::{Value, json};

use super::*;
use crate::Format;

const ERA1: &str = include_str!("../../testdata/era1_pod.json");
const ERA4: &str = include_str!("../../testdata/era4_kuryrport.json");
const ERA4_EMPTY: &str = include_str!("../../testdata/era4_kuryrport_empty.json");

fn decode_one(json: &str) -> Decoded {
    let mut decoded = from_manifest(json).unwrap();
    assert_eq!(decoded.len(), 1);
    decoded.remove(0)
}

fn pod(annotations: &Value) -> String {
    let metadata =
        json!({"name": "web-0", "namespace": "default", "uid": "6fbb", "annotations": annotations});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata}).to_string()
}

#[test]
fn own_annotation_precedes_kuryrs() {
    let kuryr: Value = serde_json::from_str(ERA1).unwrap();
    let kuryr = &kuryr["metadata"]["annotations"][KURYR_ANNOTATION];
    let ours = r#"{"interfaces":[{"addresses":["10.1.2.3"]}]}"#;
    let decoded = decode_one(&pod(&json!({ KURYR_ANNOTATION: kuryr, ANNOTATION: ours, "other": "x" })));
    assert_eq!(
        (decoded.kind, decoded.name.as_str(), decoded.pod_uid.as_str()),
        (ObjectKind::Pod, "web-0", "6fbb")
    );
    let formats: Vec<_> = decoded
        .found
        .iter()
        .map(|found| match &found.outcome {
            Outcome::Decoded(vif) => (found.source, vif.format),
            other => panic!("{other:?}"),
        })
        .collect();
    let expected = [(Source::Annotation, Format::Annotation), (Source::KuryrAnnotation, Format::KuryrVif)];
    assert_eq!(formats, expected);
}

#[test]
fn annotations_that_look_like_a_vif_are_named() {
    let misspelt = ["ferrule.dev/vif", "openstack.org/kuryr_vif", "vif.ferrule.dev/v2", "vif.ferule.dev/v1"];
    let mut annotations = json!({ ANNOTATION: "x", KURYR_ANNOTATION: "x", "other.dev/v1": "x" });
    for key in misspelt {
        annotations[key] = json!("x");
    }
    let mut found = decode_one(&pod(&annotations)).misspelt;
    found.sort();
    assert_eq!(found, misspelt);
}

#[test]
fn pod_without_annotations_has_no_vif() {
    for annotations in [Value::Null, json!({}), json!({"other": "x"})] {
        let decoded = decode_one(&pod(&annotations));
        assert_eq!((decoded.found.len(), decoded.static_pod), (0, false));
    }
}

#[test]
fn pod_with_another_config_source_than_api_is_static() {
    for (source, expected) in [("api", false), ("file", true), ("http", true)] {
        assert_eq!(decode_one(&pod(&json!({ CONFIG_SOURCE: source }))).static_pod, expected);
    }
}

#[test]
fn invalid_vif_is_reported_with_its_object() {
    let decoded = decode_one(&pod(&json!({ ANNOTATION: r#"{"interfaces":[]}"# })));
    let shown = serde_json::to_value(&decoded).unwrap();
    let expected = json!({
        "kind": "Pod", "namespace": "default", "name": "web-0", "pod_uid": "6fbb", "static_pod": false,
        "found": [{"source": "vif.ferrule.dev/v1", "outcome": "refused",
                   "path": "interfaces", "why": "found 0, expected 1 to 16 interfaces"}],
    });
    assert_eq!(shown, expected);
}

#[test]
fn kuryr_port_has_the_uid_of_its_pod() {
    let decoded = decode_one(ERA4);
    assert_eq!(decoded.kind, ObjectKind::KuryrPort);
    assert_eq!(decoded.pod_uid, "6fbb3a3c-8f7a-4a9e-9d51-1d7d3e7f3a10");
    assert!(matches!(decoded.found.as_slice(), [Found { outcome: Outcome::Decoded(_), .. }]));
    let decoded = decode_one(ERA4_EMPTY);
    assert_eq!(decoded.found, [Found { source: Source::KuryrPort, outcome: Outcome::NotYet }]);
    assert_eq!(
        serde_json::to_value(&decoded.found).unwrap(),
        json!([{"source": "KuryrPort", "outcome": "not_yet"}])
    );
}

#[test]
fn json_keys_are_snake_case() {
    let decoded = decode_one(&pod(&json!({ ANNOTATION: r#"{"interfaces":[{"addresses":["10.1.2.3"],
        "gateways":["10.1.2.1"],"routes":[{"dst":"10.0.0.0/8"}],"mac":"0a:fe:0a:01:02:03"}]}"# })));
    let interface = json!({
        "name": "eth0", "kind": "veth", "active": true, "mac": "0a:fe:0a:01:02:03", "mtu": null,
        "addresses": ["10.1.2.3/32"], "gateways": ["10.1.2.1"], "routes": [{"dst": "10.0.0.0/8"}],
    });
    let expected = json!([{"source": "vif.ferrule.dev/v1", "outcome": "decoded",
                           "format": "annotation", "interfaces": [interface]}]);
    assert_eq!(serde_json::to_value(&decoded.found).unwrap(), expected);
}

#[test]
fn all_items_of_a_list_are_decoded() {
    let pod: Value = serde_json::from_str(ERA1).unwrap();
    let port: Value = serde_json::from_str(ERA4).unwrap();
    let list = json!({"kind": "List", "items": [pod, port]}).to_string();
    let kinds: Vec<_> = from_manifest(&list).unwrap().into_iter().map(|it| it.kind).collect();
    assert_eq!(kinds, [ObjectKind::Pod, ObjectKind::KuryrPort]);
    // As the API server writes it.
    let mut untyped = pod.clone();
    untyped.as_object_mut().unwrap().remove("kind");
    let list = json!({"kind": "PodList", "items": [untyped, untyped]}).to_string();
    assert_eq!(from_manifest(&list).unwrap().len(), 2);
    assert_eq!(from_manifest(r#"{"kind":"KuryrPortList","items":[]}"#), Ok(vec![]));
}

#[test]
fn other_manifests_are_refused() {
    for (json, expected) in [
        ("", "invalid JSON: "),
        ("[]", "found an array, expected an object"),
        ("{}", "kind: missing"),
        (r#"{"kind":"Service"}"#, "found kind \"Service\", expected a Pod or a KuryrPort"),
        (r#"{"kind":"Pod"}"#, "metadata: missing"),
        (r#"{"kind":"Pod","metadata":{"name":7}}"#, "metadata.name: found 7, expected a string"),
        (
            r#"{"kind":"Pod","metadata":{"annotations":{"vif.ferrule.dev/v1":{"interfaces":[]}}}}"#,
            "metadata.annotations[\"vif.ferrule.dev/v1\"]: found an object, expected a string",
        ),
        (r#"{"kind":"KuryrPort","metadata":{},"status":7}"#, "status: found 7, expected an object"),
        (r#"{"kind":"List","items":[{}]}"#, "items[0].kind: missing"),
        (r#"{"kind":"List","items":[{"kind":"Node"}]}"#, "items[0]: found kind \"Node\""),
    ] {
        let error = from_manifest(json).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{json}: {error}");
    }
}

#[test]
fn kuryr_port_tells_whether_its_pod_is_static() {
    for (value, expected) in [(json!(true), true), (json!(false), false), (Value::Null, false)] {
        let mut port: Value = serde_json::from_str(ERA4).unwrap();
        port["spec"]["podStatic"] = value;
        assert_eq!(decode_one(&port.to_string()).static_pod, expected);
    }
}

#[test]
fn a_manifest_has_at_most_16_mib() {
    let list = r#"{"kind":"List"}"#;
    let padded = |bytes: usize| from_manifest(&(" ".repeat(bytes - list.len()) + list));
    assert_eq!(padded(16_777_216), Ok(vec![]));
    let error = padded(16_777_217).unwrap_err().to_string();
    assert_eq!(error, "found 16777217 bytes, expected at most 16777216");
}

#[test]
fn items_of_a_plain_list_need_a_kind_and_every_source_has_its_name() {
    let error = from_manifest(r#"{"kind":"List","items":[{"metadata":{"name":"a"}}]}"#).unwrap_err();
    assert_eq!(error.to_string(), "items[0].kind: missing");
    let decoded = decode_one(&pod(&json!({ KURYR_ANNOTATION: "{}" })));
    let [Found { source, outcome: Outcome::Refused(error) }] = decoded.found.as_slice() else {
        panic!("{decoded:?}")
    };
    assert_eq!(source.as_str(), "openstack.org/kuryr-vif");
    assert_eq!(error.to_string(), "annotation openstack.org/kuryr-vif: found no VIF, expected at least one");
    assert_eq!(Source::KuryrPort.to_string(), "KuryrPort");
    let formats = [Format::KuryrVif, Format::KuryrVifMap, Format::KuryrPodState, Format::KuryrPortSpec];
    assert_eq!(
        formats.map(|format| format.to_string()).join(" "),
        "kuryr-vif kuryr-vif-map kuryr-pod-state kuryr-port-spec"
    );
}
