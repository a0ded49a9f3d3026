//! JSON of a record: one line, as the specification of Protocol Buffers defines it, with the names of the
//! fields as declared; `hubble observe -o json` prints the same.

use anyhow::Context as _;
use ferrule_proto::{DESCRIPTORS, observer::GetFlowsResponse};
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, SerializeOptions};

use crate::output::yaml;

/// Serializes records.
pub(super) struct Json {
    message: MessageDescriptor,
}

// === impl Json ===

impl Json {
    pub(super) fn new() -> anyhow::Result<Self> {
        let pool = DescriptorPool::decode(DESCRIPTORS).context("cannot decode the protocol's descriptors")?;
        let message = pool.get_message_by_name("observer.GetFlowsResponse");
        Ok(Self { message: message.context("the protocol's descriptors lack GetFlowsResponse")? })
    }

    pub(super) fn line(&self, response: &GetFlowsResponse) -> anyhow::Result<String> {
        let mut line = Vec::new();
        let message = self.message(response)?;
        let options = SerializeOptions::new().use_proto_field_name(true);
        message.serialize_with_options(&mut serde_json::Serializer::new(&mut line), &options)?;
        Ok(String::from_utf8(line)?)
    }

    /// The same fields in YAML.
    pub(super) fn document(&self, response: &GetFlowsResponse) -> anyhow::Result<String> {
        let options = SerializeOptions::new().use_proto_field_name(true);
        yaml(&self.message(response)?.serialize_with_options(serde_json::value::Serializer, &options)?)
    }

    fn message(&self, response: &GetFlowsResponse) -> anyhow::Result<DynamicMessage> {
        let mut message = DynamicMessage::new(self.message.clone());
        message.transcode_from(response).context("cannot decode the record")?;
        Ok(message)
    }
}
