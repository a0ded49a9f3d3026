//! Ports of the node and limits of traffic, in words.

use ferrule_proto::agent::{Attachment, HostPort, RateLimit};

/// `TCP 192.0.2.1:8080 > 80`, each; `-` without any.
pub(crate) fn ports(it: &Attachment) -> String {
    let ports: Vec<_> = it.host_ports.iter().map(port).collect();
    if ports.is_empty() { "-".to_owned() } else { ports.join(", ") }
}

/// `in 10 Mbit/s, out 1 Gbit/s`; `-` without any.
pub(crate) fn limits(it: &Attachment) -> String {
    let limits = [("in", &it.ingress_limit), ("out", &it.egress_limit)];
    let limits = limits
        .into_iter()
        .filter_map(|(name, limit)| Some(format!("{name} {}", rate(limit.as_ref()?.bits_per_second))));
    let limits: Vec<_> = limits.collect();
    if limits.is_empty() { "-".to_owned() } else { limits.join(", ") }
}

/// One limit with its burst.
pub(crate) fn limit(RateLimit { bits_per_second, burst_bytes }: &RateLimit) -> String {
    format!("{}, at once {} KiB", rate(*bits_per_second), burst_bytes.div_ceil(1024))
}

fn port(HostPort { protocol, host_ip, port, pod_port }: &HostPort) -> String {
    let at = match host_ip.as_str() {
        "" => port.to_string(),
        v6 if v6.contains(':') => format!("[{v6}]:{port}"),
        v4 => format!("{v4}:{port}"),
    };
    format!("{protocol} {at} > {pod_port}")
}

/// In the largest unit without a fraction.
fn rate(bits: u64) -> String {
    const UNITS: [(u64, &str); 4] =
        [(1_000_000_000_000, "Tbit/s"), (1_000_000_000, "Gbit/s"), (1_000_000, "Mbit/s"), (1000, "kbit/s")];
    let whole = UNITS.iter().find(|(unit, _)| bits >= *unit && bits.is_multiple_of(*unit));
    whole.map_or_else(|| format!("{bits} bit/s"), |(unit, name)| format!("{} {name}", bits / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_name_the_address_of_the_node_unless_all_lead_to_the_pod() {
        let port = |host_ip: &str| HostPort {
            protocol: "TCP".to_owned(),
            host_ip: host_ip.to_owned(),
            port: 8080,
            pod_port: 80,
        };
        let host_ports = vec![port(""), port("192.0.2.1"), port("2001:db8::1")];
        let it = Attachment { host_ports, ..Attachment::default() };
        assert_eq!(ports(&it), "TCP 8080 > 80, TCP 192.0.2.1:8080 > 80, TCP [2001:db8::1]:8080 > 80");
        assert_eq!(ports(&Attachment::default()), "-");
    }

    #[test]
    fn limits_have_the_largest_unit_that_loses_nothing() {
        let limit = |bits| Some(RateLimit { bits_per_second: bits, burst_bytes: 65_537 });
        let it = |into, out| Attachment { ingress_limit: into, egress_limit: out, ..Attachment::default() };
        assert_eq!(limits(&it(limit(10_000_000), limit(1_000_000_000))), "in 10 Mbit/s, out 1 Gbit/s");
        assert_eq!(limits(&it(limit(1_500_000), None)), "in 1500 kbit/s");
        assert_eq!(limits(&it(None, limit(1234))), "out 1234 bit/s");
        assert_eq!(limits(&it(None, limit(0))), "out 0 bit/s");
        assert_eq!(limits(&it(None, None)), "-");
        assert_eq!(super::limit(&limit(2000).unwrap()), "2 kbit/s, at once 65 KiB");
    }
}
