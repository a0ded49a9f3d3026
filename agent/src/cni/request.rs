//! Validation of requests: every field is checked here, before any verb runs.

use std::{net::IpAddr, path::PathBuf};

use ferrule_proto::{
    API, annotations,
    cni::{AddRequest, AddResult, ApiRange, AttachmentKey, Bandwidth, CheckRequest, GcRequest, PortMapping},
    names::{ContainerId, IfName, NetworkName, check_pod},
};

use super::error::CallError;
use crate::{
    attach::AttachRequest,
    cluster::{Annotations, PodRef},
    registry::{HostPort, Key, Rate, Transport, Wishes},
};

/// A validated CHECK.
pub(super) struct Check {
    pub key: Key,
    pub netns: PathBuf,
    pub prev_result: Option<AddResult>,
}

/// A validated GC.
pub(super) struct Gc {
    pub network: NetworkName,
    pub valid: Vec<Key>,
}

/// As many as the plugin passes on.
const MAX_PORTS: usize = 4096;

/// # Errors
/// If a field is missing or malformed, or no API version is common.
pub(super) fn add(request: AddRequest) -> Result<AttachRequest, CallError> {
    api(request.api)?;
    let pod = request.pod.unwrap_or_default();
    check_pod(&pod)?;
    Ok(AttachRequest {
        key: key(request.key)?,
        netns: netns(request.netns)?,
        pod: PodRef { namespace: pod.namespace, name: pod.name, uid: pod.uid },
        annotations: pod.annotations.map(annotations_of),
        mtu: Some(request.mtu).filter(|mtu| *mtu != 0),
        wishes: wishes(request.port_mappings, request.bandwidth)?,
    })
}

/// # Errors
/// As for [`add`].
pub(super) fn check(request: CheckRequest) -> Result<Check, CallError> {
    api(request.api)?;
    Ok(Check { key: key(request.key)?, netns: netns(request.netns)?, prev_result: request.previous })
}

/// # Errors
/// As for [`add`].
pub(super) fn gc(request: GcRequest) -> Result<Gc, CallError> {
    let GcRequest { api: versions, network, valid } = request;
    api(versions)?;
    let of_network = |it: AttachmentKey| key(Some(AttachmentKey { network: network.clone(), ..it }));
    let valid = valid.into_iter().map(of_network).collect::<Result<Vec<_>, _>>()?;
    Ok(Gc { network: NetworkName::new(&network)?, valid })
}

/// # Errors
/// If caller and agent have no API version in common.
pub(super) fn api(caller: Option<ApiRange>) -> Result<(), CallError> {
    let caller = caller.ok_or(CallError::Missing("range of API versions"))?;
    if caller.meets(&API) { Ok(()) } else { Err(CallError::Api(caller)) }
}

/// # Errors
/// If the key is missing, or a name in it is malformed.
pub(super) fn key(key: Option<AttachmentKey>) -> Result<Key, CallError> {
    let key = key.ok_or(CallError::Missing("key"))?;
    Ok(Key {
        network: NetworkName::new(&key.network)?,
        container_id: ContainerId::new(&key.container_id)?,
        ifname: IfName::new(&key.ifname)?,
    })
}

fn netns(path: String) -> Result<PathBuf, CallError> {
    let path = PathBuf::from(path);
    if path.is_absolute() {
        Ok(path)
    } else {
        Err(CallError::Missing("absolute path of a network namespace"))
    }
}

fn wishes(port_mappings: Vec<PortMapping>, limits: Option<Bandwidth>) -> Result<Wishes, CallError> {
    if port_mappings.len() > MAX_PORTS {
        return Err(CallError::Invalid("more than 4096 port mappings"));
    }
    let host_ports = port_mappings.into_iter().map(host_port).collect::<Result<_, _>>()?;
    let Bandwidth { ingress_rate, ingress_burst, egress_rate, egress_burst } = limits.unwrap_or_default();
    let rate = |bits, burst_bits| (bits != 0).then_some(Rate { bits, burst_bits });
    let (ingress, egress) = (rate(ingress_rate, ingress_burst), rate(egress_rate, egress_burst));
    Ok(Wishes { host_ports, ingress, egress, ..Wishes::default() })
}

fn host_port(mapping: PortMapping) -> Result<HostPort, CallError> {
    let PortMapping { host_port, container_port, protocol, host_ip } = mapping;
    let port = |port| {
        u16::try_from(port)
            .ok()
            .filter(|it| *it != 0)
            .ok_or(CallError::Invalid("a port outside of 1 to 65535"))
    };
    let protocol = match protocol.as_str() {
        "tcp" => Transport::Tcp,
        "udp" => Transport::Udp,
        "sctp" => Transport::Sctp,
        _ => return Err(CallError::Invalid("a port mapping of an unknown protocol")),
    };
    let address = Some(host_ip).filter(|it| !it.is_empty()).map(|it| it.parse::<IpAddr>()).transpose();
    let address = address.map_err(|_| CallError::Invalid("a host IP that is no address"))?;
    // IPv4 packets have IPv4 addresses, however they are written.
    let address = address.map(|it| it.to_canonical());
    Ok(HostPort { protocol, address, port: port(host_port)?, pod_port: port(container_port)? })
}

fn annotations_of(passed: ferrule_proto::cni::Annotations) -> Annotations {
    let mut values = passed.values;
    Annotations {
        ferrule: values.remove(annotations::VIF),
        kuryr: values.remove(annotations::KURYR_VIF),
        config_source: values.remove(annotations::CONFIG_SOURCE),
        // Only the API has these.
        config_mirror: None,
        ingress_bandwidth: None,
        egress_bandwidth: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> AddRequest {
        let key = AttachmentKey { network: "net".into(), container_id: "a".into(), ifname: "eth0".into() };
        AddRequest {
            api: Some(API),
            key: Some(key),
            netns: "/run/netns/a".into(),
            pod: None,
            mtu: 0,
            port_mappings: Vec::new(),
            bandwidth: None,
        }
    }

    #[test]
    fn a_valid_add_is_decoded_and_zero_is_no_mtu() {
        let decoded = add(request()).unwrap();
        assert_eq!(
            (decoded.key.to_string(), decoded.mtu, decoded.annotations),
            ("net/a/eth0".into(), None, None)
        );
        assert_eq!(add(AddRequest { mtu: 1400, ..request() }).unwrap().mtu, Some(1400));
        let values = [annotations::VIF, annotations::KURYR_VIF, annotations::CONFIG_SOURCE, "other"];
        let values = values.map(|key| (key.to_owned(), format!("of {key}"))).into();
        let pod = ferrule_proto::cni::Pod {
            namespace: "default".into(),
            name: "web-0".into(),
            uid: "u".into(),
            annotations: Some(ferrule_proto::cni::Annotations { values }),
        };
        let decoded = add(AddRequest { pod: Some(pod), ..request() }).unwrap();
        assert_eq!(
            decoded.pod.to_string(),
            PodRef { namespace: "default".into(), name: "web-0".into(), uid: "u".into() }.to_string()
        );
        let passed = decoded.annotations.unwrap();
        assert_eq!(passed.ferrule.as_deref(), Some("of vif.ferrule.dev/v1"));
        assert_eq!(passed.kuryr.as_deref(), Some("of openstack.org/kuryr-vif"));
        assert_eq!(passed.config_source.as_deref(), Some("of kubernetes.io/config.source"));
    }

    #[test]
    fn port_mappings_are_validated() {
        let mapping = |host_port, container_port, protocol: &str, host_ip: &str| PortMapping {
            host_port,
            container_port,
            protocol: protocol.into(),
            host_ip: host_ip.into(),
        };
        let decoded = |all: &[PortMapping]| add(AddRequest { port_mappings: all.to_vec(), ..request() });
        let all = [mapping(8080, 80, "tcp", ""), mapping(53, 5353, "udp", "::ffff:127.0.0.1")];
        let shown: Vec<_> =
            decoded(&all).unwrap().wishes.host_ports.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["TCP 8080", "UDP 127.0.0.1:53"]);
        for bad in [
            mapping(0, 80, "tcp", ""),
            mapping(80, 0, "tcp", ""),
            mapping(65_536, 80, "tcp", ""),
            mapping(80, 80, "TCP", ""),
            mapping(80, 80, "tcp", "node"),
        ] {
            assert!(matches!(decoded(&[bad]).unwrap_err(), CallError::Invalid(_)));
        }
        assert!(decoded(&vec![mapping(80, 80, "tcp", ""); 4097]).is_err());
    }

    #[test]
    fn a_rate_of_0_is_no_limit() {
        let limits = Bandwidth { ingress_rate: 8, ingress_burst: 9, egress_rate: 0, egress_burst: 9 };
        let decoded = add(AddRequest { bandwidth: Some(limits), ..request() }).unwrap().wishes;
        assert_eq!((decoded.ingress, decoded.egress), (Some(Rate { bits: 8, burst_bits: 9 }), None));
        assert!(add(request()).unwrap().wishes.is_empty());
    }

    #[test]
    fn every_field_is_validated() {
        let with_key = |change: fn(&mut AttachmentKey)| {
            let mut request = request();
            request.key.iter_mut().for_each(change);
            request
        };
        for bad in [
            AddRequest { api: None, ..request() },
            AddRequest { key: None, ..request() },
            AddRequest { netns: String::new(), ..request() },
            AddRequest { netns: "run/netns/a".into(), ..request() },
            with_key(|key| key.network = "a/b".into()),
            with_key(|key| key.container_id = "../a".into()),
            with_key(|key| key.ifname = "lo".into()),
        ] {
            let error = add(bad).unwrap_err();
            assert!(matches!(error, CallError::Name(_) | CallError::Missing(_)), "{error}");
        }
        let meets = |min, max| api(Some(ApiRange { min, max })).is_ok();
        assert!(!meets(API.max + 1, API.max + 2) && !meets(0, API.min - 1));
        assert!(meets(API.max, API.max + 2) && meets(0, API.min));
    }

    #[test]
    fn gc_takes_the_network_of_the_call_for_each_attachment() {
        let of = |network: &str, container: &str| AttachmentKey {
            network: network.into(),
            container_id: container.into(),
            ifname: "eth0".into(),
        };
        let request =
            GcRequest { api: Some(API), network: "net".into(), valid: vec![of("", "a"), of("other", "b")] };
        let Gc { network, valid } = gc(request).unwrap();
        assert_eq!(network.as_str(), "net");
        assert_eq!(valid.iter().map(Key::to_string).collect::<Vec<_>>(), ["net/a/eth0", "net/b/eth0"]);
    }
}
