//! Manifests of one object and of many.

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
fn a_pod_with_both_annotations_shows_both_ours_first() {
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
fn a_pod_without_annotations_has_no_vif() {
    for annotations in [Value::Null, json!({}), json!({"other": "x"})] {
        let decoded = decode_one(&pod(&annotations));
        assert_eq!((decoded.found.len(), decoded.static_pod), (0, false));
    }
}

#[test]
fn a_pod_that_a_kubelet_has_from_elsewhere_is_a_static_one() {
    for (source, expected) in [("api", false), ("file", true), ("http", true)] {
        assert_eq!(decode_one(&pod(&json!({ CONFIG_SOURCE: source }))).static_pod, expected);
    }
}

#[test]
fn a_vif_that_cannot_be_decoded_is_told_with_its_object() {
    let decoded = decode_one(&pod(&json!({ ANNOTATION: r#"{"interfaces":[]}"# })));
    let shown = serde_json::to_value(&decoded).unwrap();
    let expected = json!({
        "kind": "Pod", "namespace": "default", "name": "web-0", "pod_uid": "6fbb", "static_pod": false,
        "found": [{"source": "vif.ferrule.dev/v1", "outcome": "refused",
                   "path": "interfaces", "why": "has 0: expected 1 to 16"}],
    });
    assert_eq!(shown, expected);
}

#[test]
fn a_kuryr_port_tells_its_pod() {
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
fn a_vif_is_shown_in_snake_case() {
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
fn each_item_of_a_list_is_decoded() {
    let pod: Value = serde_json::from_str(ERA1).unwrap();
    let port: Value = serde_json::from_str(ERA4).unwrap();
    let list = json!({"kind": "List", "items": [pod, port]}).to_string();
    let kinds: Vec<_> = from_manifest(&list).unwrap().into_iter().map(|it| it.kind).collect();
    assert_eq!(kinds, [ObjectKind::Pod, ObjectKind::KuryrPort]);
    // As the API server has it.
    let mut untyped = pod.clone();
    untyped.as_object_mut().unwrap().remove("kind");
    let list = json!({"kind": "PodList", "items": [untyped, untyped]}).to_string();
    assert_eq!(from_manifest(&list).unwrap().len(), 2);
    assert_eq!(from_manifest(r#"{"kind":"KuryrPortList","items":[]}"#), Ok(vec![]));
}

#[test]
fn what_is_no_such_manifest_is_refused() {
    for (json, expected) in [
        ("", "is not JSON: "),
        ("[]", "an array is not an object"),
        ("{}", "kind: is missing"),
        (r#"{"kind":"Service"}"#, "is a \"Service\": expected a Pod or a KuryrPort"),
        (r#"{"kind":"Pod"}"#, "metadata: is missing"),
        (r#"{"kind":"Pod","metadata":{"name":7}}"#, "metadata.name: 7 is not a string"),
        (
            r#"{"kind":"Pod","metadata":{"annotations":{"vif.ferrule.dev/v1":{"interfaces":[]}}}}"#,
            "metadata.annotations[\"vif.ferrule.dev/v1\"]: an object is not a string",
        ),
        (r#"{"kind":"KuryrPort","metadata":{},"status":7}"#, "status: 7 is not an object"),
        (r#"{"kind":"List","items":[{}]}"#, "items[0].kind: is missing"),
        (r#"{"kind":"List","items":[{"kind":"Node"}]}"#, "items[0]: is a \"Node\""),
    ] {
        let why = from_manifest(json).unwrap_err().to_string();
        assert!(why.starts_with(expected), "{json}: {why}");
    }
}
