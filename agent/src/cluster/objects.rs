//! API objects, reduced to the fields that the agent uses: decoding a whole Pod takes four times the time and
//! 25 times the memory. Checkpoints contain the same JSON; a new field requires a new schema version there.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use crate::watch::{Object, ObjectKey};

/// Treats `null` like a missing field.
pub(super) fn null<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    #[serde(default, deserialize_with = "null", skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    pub name: String,
    #[serde(default, deserialize_with = "null")]
    pub uid: String,
    /// Taken out by the watch, see [`Object::take_version`].
    #[serde(default, deserialize_with = "null", skip_serializing)]
    pub resource_version: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<String>,
    #[serde(default, deserialize_with = "null", skip_serializing_if = "Annotations::is_empty")]
    pub annotations: Annotations,
}

/// The annotations about a VIF (`ferrule_proto::annotations`), and those about static pods.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Annotations {
    #[serde(default, rename = "vif.ferrule.dev/v1", skip_serializing_if = "Option::is_none")]
    pub ferrule: Option<String>,
    #[serde(default, rename = "openstack.org/kuryr-vif", skip_serializing_if = "Option::is_none")]
    pub kuryr: Option<String>,
    /// The kubelet's source of the pod, as it tells the runtime. For a static pod, a file or a URL.
    #[serde(default, rename = "kubernetes.io/config.source", skip_serializing_if = "Option::is_none")]
    pub config_source: Option<String>,
    /// Marks a mirror pod: the object in the API for a static pod. The kubelet writes the static pod's own
    /// UID, a hash of its manifest, here; the API server gives the mirror pod another one.
    #[serde(default, rename = "kubernetes.io/config.mirror", skip_serializing_if = "Option::is_none")]
    pub config_mirror: Option<String>,
    /// Limits of what the pod receives and sends, which runtimes decode.
    #[serde(default, rename = "kubernetes.io/ingress-bandwidth", skip_serializing_if = "Option::is_none")]
    pub ingress_bandwidth: Option<String>,
    #[serde(default, rename = "kubernetes.io/egress-bandwidth", skip_serializing_if = "Option::is_none")]
    pub egress_bandwidth: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub struct Pod {
    pub metadata: Metadata,
    #[serde(default, deserialize_with = "null")]
    pub spec: PodSpec,
    #[serde(default, deserialize_with = "null")]
    pub status: PodStatus,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSpec {
    #[serde(default, deserialize_with = "null", skip_serializing_if = "std::ops::Not::not")]
    pub host_network: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct PodStatus {
    #[serde(default, deserialize_with = "null", skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// Why the pod has failed: `NodePorts`, `Evicted`. Empty for pods that run.
    #[serde(default, deserialize_with = "null", skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The same for people.
    #[serde(default, deserialize_with = "null", skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Kuryr's VIFs for the pod of the same name.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub struct KuryrPort {
    pub metadata: Metadata,
    #[serde(default, deserialize_with = "null")]
    pub spec: KuryrPortSpec,
    #[serde(default)]
    pub status: Option<KuryrPortStatus>,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KuryrPortSpec {
    #[serde(default, deserialize_with = "null")]
    pub pod_uid: String,
    #[serde(default)]
    pub pod_static: Option<bool>,
    /// Decoded on use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vifs: Option<Box<RawValue>>,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
pub struct KuryrPortStatus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vifs: Option<Box<RawValue>>,
}

/// Ranges of Services' addresses. The API server lets none in that cannot be read.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub struct ServiceCidr {
    pub metadata: Metadata,
    pub spec: ServiceCidrSpec,
}

#[derive(Debug, Clone, Deserialize, Serialize)]
pub struct ServiceCidrSpec {
    #[serde(default, deserialize_with = "null")]
    pub cidrs: Vec<String>,
}

// === impl Metadata ===

impl Metadata {
    pub fn key(&self) -> ObjectKey {
        ObjectKey::new(&self.namespace, &self.name)
    }
}

// === impl Annotations ===

impl Annotations {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

// === impl Pod ===

impl Pod {
    /// Whether all containers have ended and will not restart.
    pub fn is_terminal(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    /// Whether this is the mirror pod of a static pod.
    pub fn is_mirror(&self) -> bool {
        self.metadata.annotations.config_mirror.is_some()
    }

    /// The UID of the pod at the kubelet, which runtimes pass on. The manifest of a static pod that is edited
    /// becomes another pod of the same name.
    pub fn kubelet_uid(&self) -> &str {
        self.metadata.annotations.config_mirror.as_deref().unwrap_or(&self.metadata.uid)
    }
}

impl Annotations {
    /// Whether the runtime's annotations are those of a static pod.
    pub fn is_static(&self) -> bool {
        self.config_source.as_deref().is_some_and(|source| source != "api")
    }
}

macro_rules! watched {
    ($($type:ty, is_optional: $is_optional:literal;)*) => {$(
        impl Object for $type {
            const IS_OPTIONAL: bool = $is_optional;

            fn key(&self) -> ObjectKey {
                self.metadata.key()
            }

            fn uid(&self) -> &str {
                &self.metadata.uid
            }

            fn take_version(&mut self) -> String {
                std::mem::take(&mut self.metadata.resource_version)
            }
        }
    )*};
}
watched! {
    Pod, is_optional: false;
    KuryrPort, is_optional: false;
    ServiceCidr, is_optional: true;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_keeps_its_used_fields_only_and_survives_a_checkpoint() {
        let json = r#"{"metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"7",
            "managedFields":[{"x":1}],"annotations":{"other":"x","vif.ferrule.dev/v1":"{}"}},
            "spec":{"nodeName":"node","containers":[]},"status":{"phase":"Running"}}"#;
        let mut pod: Pod = serde_json::from_str(json).unwrap();
        assert_eq!((pod.key().to_string(), pod.take_version()), ("n/a".to_owned(), "7".to_owned()));
        assert_eq!(pod.metadata.annotations.ferrule.as_deref(), Some("{}"));
        assert_eq!(pod.status.phase, "Running");
        let stored = serde_json::to_string(&pod).unwrap();
        assert!(
            !stored.contains("other") && !stored.contains("esourceVersion") && stored.len() < 200,
            "{stored}"
        );
        assert_eq!(serde_json::from_str::<Pod>(&stored).unwrap(), pod);
    }

    #[test]
    fn every_object_has_its_key_uid_and_version_and_null_is_missing() {
        fn seen<T: Object + serde::de::DeserializeOwned>() -> (String, String, String) {
            let json = r#"{"metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"7",
                "annotations":null},"spec":null,"status":null}"#;
            let mut object: T = serde_json::from_str(json).unwrap();
            (object.key().to_string(), object.uid().to_owned(), object.take_version())
        }
        let expected = ("n/a".to_owned(), "u".to_owned(), "7".to_owned());
        assert_eq!([seen::<Pod>(), seen::<KuryrPort>()], [(); 2].map(|()| expected.clone()));
    }

    #[test]
    fn a_pod_without_annotations_of_ours_is_stored_without_any() {
        let json = |annotations: &str| {
            let text = format!(r#"{{"metadata":{{"name":"a","annotations":{{{annotations}}}}}}}"#);
            serde_json::to_string(&serde_json::from_str::<Pod>(&text).unwrap()).unwrap()
        };
        assert!(!json(r#""other":"x""#).contains("annotations"));
        for ours in ["vif.ferrule.dev/v1", "openstack.org/kuryr-vif", "kubernetes.io/config.source"] {
            let ours = format!(r#""{ours}":"x""#);
            assert!(json(&ours).contains(&ours), "{ours}");
        }
    }

    #[test]
    fn ended_and_static_pods_are_recognized() {
        let pod = |more: &str| -> Pod {
            serde_json::from_str(&format!(r#"{{"metadata":{{"name":"a"}}{more}}}"#)).unwrap()
        };
        for (phase, is_terminal) in [
            ("Pending", false),
            ("Running", false),
            ("Succeeded", true),
            ("Failed", true),
            ("Unknown", false),
        ] {
            assert_eq!(
                pod(&format!(r#","status":{{"phase":"{phase}"}}"#)).is_terminal(),
                is_terminal,
                "{phase}"
            );
        }
        let source = |source: Option<&str>| {
            Annotations { config_source: source.map(str::to_owned), ..Annotations::default() }.is_static()
        };
        assert_eq!([None, Some("api"), Some("file"), Some("http")].map(source), [false, false, true, true]);
    }
}
