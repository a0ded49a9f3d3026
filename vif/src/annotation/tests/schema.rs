//! `docs/vif-v1.schema.json` is generated from the types of the format.

use schemars::{Schema, generate::SchemaSettings};
use serde_json::{Value, json};

use super::super::{format::Annotation, from_annotation};

const SCHEMA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/vif-v1.schema.json");

/// Requires `name` of all items but the first.
pub(crate) fn require_names_but_first(interfaces: &mut Schema) {
    if let Some(interface) = interfaces.remove("items") {
        interfaces.insert("prefixItems".to_owned(), json!([interface]));
        let named =
            json!({"allOf": [interface], "required": ["name"], "properties": {"name": {"type": "string"}}});
        interfaces.insert("items".to_owned(), named);
    }
}

fn generate() -> Value {
    let mut schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<Annotation>();
    for (key, value) in [
        ("$id", json!("https://ferrule.dev/schemas/vif-v1.schema.json")),
        ("title", json!("The pod annotation vif.ferrule.dev/v1")),
        (
            "examples",
            json!([
                {"interfaces": [{"addresses": ["10.1.2.3"]}]},
                {"interfaces": [
                    {
                        "name": "eth0",
                        "kind": "veth",
                        "addresses": ["10.1.2.3/24", "fd00::3/64"],
                        "gateways": ["10.1.2.1", "fd00::1"],
                        "routes": [
                            {"dst": "192.168.0.0/16", "gw": "10.1.2.254"},
                            {"dst": "fd01::/48", "mtu": 1300},
                        ],
                        "mac": "0a:fe:0a:01:02:03",
                        "mtu": 1400,
                    },
                    {"name": "eth1", "addresses": ["10.9.0.3"]},
                ]},
            ]),
        ),
    ] {
        schema.insert(key.to_owned(), value);
    }
    schema.to_value()
}

#[test]
fn documented_schema_is_generated_from_the_types() {
    let generated = generate();
    if std::env::var_os("UPDATE_SCHEMA").is_some() {
        std::fs::write(SCHEMA, format!("{generated:#}\n")).unwrap();
    }
    let documented: Value = serde_json::from_str(&std::fs::read_to_string(SCHEMA).unwrap()).unwrap();
    assert_eq!(documented, generated, "run `UPDATE_SCHEMA=1 cargo test -p ferrule-vif schema`");
}

#[test]
fn examples_of_the_schema_are_valid() {
    for example in generate()["examples"].as_array().unwrap() {
        assert!(from_annotation(&example.to_string()).is_ok(), "{:?}", from_annotation(&example.to_string()));
    }
}

#[test]
fn schema_has_the_bounds_of_the_decoder_and_refuses_unknown_fields() {
    let schema = generate();
    let interfaces = &schema["properties"]["interfaces"];
    assert_eq!((&interfaces["minItems"], &interfaces["maxItems"]), (&json!(1), &json!(16)));
    assert_eq!(interfaces["items"]["required"], json!(["name"]));
    let (interface, route) = (&schema["$defs"]["Interface"], &schema["$defs"]["Route"]);
    assert_eq!((&interface["required"], &route["required"]), (&json!(["addresses"]), &json!(["dst"])));
    assert_eq!(interface["properties"]["routes"]["maxItems"], 64);
    for object in [&schema, interface, route] {
        assert_eq!(object["additionalProperties"], false);
    }
    for (object, field, min, max) in [
        (interface, "mtu", 68, 65535),
        (route, "mtu", 68, 65520),
        (route, "advmss", 88, 65495),
        (route, "priority", 1, 4_294_967_295_u64),
    ] {
        let field = &object["properties"][field];
        assert_eq!((&field["minimum"], &field["maximum"]), (&json!(min), &json!(max)), "{field}");
        assert_eq!(field["type"], json!(["integer", "null"]));
    }
    for (field, at) in [("gateways", "items"), ("addresses", "items")] {
        assert!(interface["properties"][field][at]["pattern"].is_string(), "{field}");
    }
    for field in ["name", "kind", "mac"] {
        assert!(interface["properties"][field]["pattern"].is_string(), "{field}");
    }
}
