//! Generates the messages, clients and servers from `proto/`.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;

const FILES: [&str; 3] =
    ["ferrule/cni/v1/cni.proto", "ferrule/agent/v1/agent.proto", "observer/observer.proto"];

/// Fields whose JSON is not that of their type, with their serializers.
const JSON_FIELDS: [(&str, &str); 10] = [
    ("Attachment.state", "attachment_state"),
    ("Component.state", "component_state"),
    ("Counters.egress_drops", "drops"),
    ("Counters.ingress_drops", "drops"),
    ("Link.drops", "drops"),
    ("NodeRange.way", "node_range_way"),
    ("PodAddress.state", "address_state"),
    ("PodCheck.outcome", "check_outcome"),
    ("PodVerdict.kind", "verdict_kind"),
    ("PolicyState.kind", "policy_state"),
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(FILES, ["proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    let mut builder = tonic_prost_build::configure()
        .build_transport(false)
        .build_server(env::var_os("CARGO_FEATURE_SERVER").is_some())
        .boxed(".observer.GetFlowsResponse.response_types.flow")
        .message_attribute(".ferrule.agent.v1", "#[derive(serde::Serialize)]");
    for (field, serializer) in JSON_FIELDS {
        let attribute = format!("#[serde(serialize_with = \"crate::json::{serializer}\")]");
        builder = builder.field_attribute(format!(".ferrule.agent.v1.{field}"), attribute);
    }
    builder.compile_fds(descriptors)?;
    Ok(())
}
