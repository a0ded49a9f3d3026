//! Fields of Hubble's filters that no entry of Ferrule can match.

use ferrule_proto::flow::FlowFilter;

use super::error::FilterError;

/// Refuses a filter with any of these fields: to ignore one would match too much.
pub(super) fn check(filter: &FlowFilter) -> Result<(), FilterError> {
    // Every field is named, so that a new one is either supported or refused.
    let FlowFilter {
        source_ip: _,
        source_pod: _,
        destination_ip: _,
        destination_pod: _,
        verdict: _,
        event_type: _,
        source_fqdn,
        destination_fqdn,
        http_status_code,
        source_label,
        destination_label,
        protocol: _,
        source_port: _,
        destination_port: _,
        reply: _,
        source_service,
        destination_service,
        dns_query,
        source_identity,
        destination_identity,
        http_method,
        http_path,
        tcp_flags: _,
        node_name,
        ip_version: _,
        source_workload,
        destination_workload,
        trace_id,
        uuid,
        traffic_direction: _,
        http_url,
        http_header,
        drop_reason_desc: _,
        source_ip_xlated,
        interface: _,
        node_labels,
        source_cluster_name,
        destination_cluster_name,
        ip_trace_id,
        encrypted,
        ip_trace_option,
        experimental,
    } = filter;
    const NAMES: &str = "the agent knows no DNS names";
    const LABELS: &str = "the agent knows no labels";
    const SERVICES: &str = "the agent knows no services";
    const HTTP: &str = "the agent reads no HTTP";
    const IDENTITIES: &str = "pods have no identities";
    const WORKLOADS: &str = "the agent knows no workloads";
    const NODE: &str = "all records are this node's";
    const TRACES: &str = "packets have no trace IDs";
    let fields = [
        ("source_fqdn", source_fqdn.is_empty(), NAMES),
        ("destination_fqdn", destination_fqdn.is_empty(), NAMES),
        ("dns_query", dns_query.is_empty(), NAMES),
        ("source_label", source_label.is_empty(), LABELS),
        ("destination_label", destination_label.is_empty(), LABELS),
        ("source_service", source_service.is_empty(), SERVICES),
        ("destination_service", destination_service.is_empty(), SERVICES),
        ("http_status_code", http_status_code.is_empty(), HTTP),
        ("http_method", http_method.is_empty(), HTTP),
        ("http_path", http_path.is_empty(), HTTP),
        ("http_url", http_url.is_empty(), HTTP),
        ("http_header", http_header.is_empty(), HTTP),
        ("source_identity", source_identity.is_empty(), IDENTITIES),
        ("destination_identity", destination_identity.is_empty(), IDENTITIES),
        ("source_workload", source_workload.is_empty(), WORKLOADS),
        ("destination_workload", destination_workload.is_empty(), WORKLOADS),
        ("node_name", node_name.is_empty(), NODE),
        ("node_labels", node_labels.is_empty(), NODE),
        ("source_cluster_name", source_cluster_name.is_empty(), NODE),
        ("destination_cluster_name", destination_cluster_name.is_empty(), NODE),
        ("trace_id", trace_id.is_empty(), TRACES),
        ("ip_trace_id", ip_trace_id.is_empty(), TRACES),
        ("ip_trace_option", ip_trace_option.is_empty(), TRACES),
        ("uuid", uuid.is_empty(), "records have no UUIDs"),
        ("source_ip_xlated", source_ip_xlated.is_empty(), "addresses are those before any translation"),
        ("encrypted", encrypted.is_empty(), "the agent encrypts no packets"),
        ("experimental", experimental.is_none(), "the agent evaluates no expressions"),
    ];
    match fields.into_iter().find(|(_, is_absent, _)| !is_absent) {
        Some((field, _, why)) => Err(FilterError::Unsupported { field, why }),
        None => Ok(()),
    }
}
