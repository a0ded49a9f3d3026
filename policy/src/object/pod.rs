//! Pods.

use serde::{Deserialize, Serialize, Serializer};

use super::metadata::{Metadata, null};

/// A Pod, reduced to what the compiler asks for: an agent holds all pods of the cluster for a moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(from = "Written")]
pub struct Pod {
    /// The metadata. Of the time of deletion, only whether there is one.
    pub metadata: Metadata,
    /// Whether all containers have ended and will not restart: the addresses may be another pod's.
    pub is_terminal: bool,
    /// Whether the pod uses the node's network: its addresses are the node's, and policy ignores it.
    pub host_network: bool,
    /// The ports with names, of all containers that run as long as the pod does.
    pub ports: Box<[ContainerPort]>,
    /// The texts of all addresses.
    pub addresses: Box<[Box<str>]>,
}

/// A declared port.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerPort {
    /// Empty for a port without a name.
    #[serde(default, deserialize_with = "null")]
    pub name: Box<str>,
    /// The number.
    pub container_port: u16,
    /// Empty is TCP.
    #[serde(default, deserialize_with = "null", skip_serializing_if = "str::is_empty")]
    pub protocol: Box<str>,
}

/// A Pod as in JSON.
#[derive(Deserialize)]
struct Written {
    metadata: Metadata,
    #[serde(default, deserialize_with = "null")]
    spec: Spec,
    #[serde(default, deserialize_with = "null")]
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    #[serde(default, deserialize_with = "null")]
    host_network: bool,
    #[serde(default, deserialize_with = "null")]
    containers: Vec<Container>,
    #[serde(default, deserialize_with = "null")]
    init_containers: Vec<Container>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Container {
    #[serde(default, deserialize_with = "null")]
    ports: Vec<ContainerPort>,
    /// Of init containers only; those with `Always` run as long as the pod.
    #[serde(default, deserialize_with = "null")]
    restart_policy: String,
}

#[derive(Default, Deserialize)]
struct Status {
    #[serde(default, deserialize_with = "null")]
    phase: String,
    /// The first address; older servers set only this one.
    #[serde(default, rename = "podIP", deserialize_with = "null")]
    pod_ip: Box<str>,
    #[serde(default, rename = "podIPs", deserialize_with = "null")]
    pod_ips: Vec<Ip>,
}

#[derive(Deserialize)]
struct Ip {
    #[serde(default, deserialize_with = "null")]
    ip: Box<str>,
}

// === impl Pod ===

impl From<Written> for Pod {
    fn from(Written { mut metadata, spec, status }: Written) -> Self {
        if let Some(time) = &mut metadata.deletion_timestamp {
            *time = String::new();
        }
        let sidecars = spec.init_containers.into_iter().filter(|it| it.restart_policy == "Always");
        let ports = spec.containers.into_iter().chain(sidecars).flat_map(|it| it.ports);
        let mut addresses: Vec<_> = status.pod_ips.into_iter().map(|it| it.ip).collect();
        if !addresses.contains(&status.pod_ip) {
            addresses.push(status.pod_ip);
        }
        Self {
            metadata,
            is_terminal: matches!(status.phase.as_str(), "Succeeded" | "Failed"),
            host_network: spec.host_network,
            ports: ports.filter(|port| !port.name.is_empty()).collect(),
            addresses: addresses.into_iter().filter(|it| !it.is_empty()).collect(),
        }
    }
}

/// As the API server writes a pod, so that what is written can be read.
impl Serialize for Pod {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Written<'a> {
            metadata: &'a Metadata,
            spec: Spec<'a>,
            status: Status<'a>,
        }
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Spec<'a> {
            #[serde(skip_serializing_if = "std::ops::Not::not")]
            host_network: bool,
            #[serde(skip_serializing_if = "Option::is_none")]
            containers: Option<[Container<'a>; 1]>,
        }
        #[derive(Serialize)]
        struct Container<'a> {
            ports: &'a [ContainerPort],
        }
        #[derive(Serialize)]
        struct Status<'a> {
            #[serde(skip_serializing_if = "Option::is_none")]
            phase: Option<&'a str>,
            #[serde(rename = "podIPs", skip_serializing_if = "Vec::is_empty")]
            pod_ips: Vec<Ip<'a>>,
        }
        #[derive(Serialize)]
        struct Ip<'a> {
            ip: &'a str,
        }
        let Self { metadata, is_terminal, host_network, ports, addresses } = self;
        let containers = (!ports.is_empty()).then_some([Container { ports }]);
        let pod_ips = addresses.iter().map(|ip| Ip { ip }).collect();
        let phase = is_terminal.then_some("Failed");
        let (spec, status) = (Spec { host_network: *host_network, containers }, Status { phase, pod_ips });
        Written { metadata, spec, status }.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_reduced_to_what_policies_ask_for_and_written_as_it_is_read() {
        let json = r#"{"metadata":{"namespace":"n","name":"a","uid":"u","labels":{"app":"x"},
            "deletionTimestamp":"2026-01-02T03:04:06Z"},
            "spec":{"nodeName":"node-1","hostNetwork":true,"containers":[{"ports":[
                {"name":"web","containerPort":80},{"containerPort":81}]},{"ports":null}],
                "initContainers":[{"ports":[{"name":"init","containerPort":82}]},
                {"restartPolicy":"Always","ports":[{"name":"side","containerPort":83,"protocol":"UDP"}]}]},
            "status":{"phase":"Succeeded","podIP":"10.0.0.1","podIPs":[{"ip":"10.0.0.1"},{"ip":"fd00::1"}]}}"#;
        let pod: Pod = serde_json::from_str(json).unwrap();
        let ports: Vec<_> =
            pod.ports.iter().map(|it| (&*it.name, it.container_port, &*it.protocol)).collect();
        assert_eq!(ports, [("web", 80, ""), ("side", 83, "UDP")]);
        assert_eq!(pod.addresses.iter().map(|it| &**it).collect::<Vec<_>>(), ["10.0.0.1", "fd00::1"]);
        assert!(pod.is_terminal && pod.host_network && pod.metadata.deletion_timestamp.is_some());
        let written = serde_json::to_string(&pod).unwrap();
        assert_eq!(serde_json::from_str::<Pod>(&written).unwrap(), pod, "{written}");
        for (status, addresses) in [
            (r#"{"podIP":"10.0.0.1"}"#, 1),
            (r#"{"podIP":"10.0.0.1","podIPs":[]}"#, 1),
            (r#"{"podIP":"","podIPs":[{"ip":""}]}"#, 0),
            ("null", 0),
        ] {
            let json = format!(r#"{{"metadata":{{"name":"a"}},"spec":null,"status":{status}}}"#);
            let pod: Pod = serde_json::from_str(&json).unwrap();
            assert_eq!((pod.addresses.len(), pod.is_terminal), (addresses, false), "{status}");
            let written = serde_json::to_string(&pod).unwrap();
            assert_eq!(serde_json::from_str::<Pod>(&written).unwrap(), pod, "{written}");
        }
    }
}
