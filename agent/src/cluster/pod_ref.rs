//! Identifies the pod of a sandbox.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A pod, as the runtime names it in a CNI call. Fields that the runtime did not pass are empty; without
/// them, the API server cannot prove that the pod is gone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodRef {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

// === impl PodRef ===

impl PodRef {
    /// Whether the pod has a namespace and a name. A container of podman has neither.
    pub fn is_of_kubernetes(&self) -> bool {
        !self.namespace.is_empty() && !self.name.is_empty()
    }
}

impl fmt::Display for PodRef {
    /// `namespace/name`, or the name alone if the namespace is unknown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { namespace, name, .. } = self;
        if namespace.is_empty() { f.write_str(name) } else { write!(f, "{namespace}/{name}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_outside_kubernetes_has_no_namespace() {
        let pod = |namespace: &str, name: &str| PodRef {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: String::new(),
        };
        for (pod, is_of_kubernetes, shown) in [
            (pod("shop", "web"), true, "shop/web"),
            (pod("", "web"), false, "web"),
            (pod("shop", ""), false, "shop/"),
            (pod("", ""), false, ""),
        ] {
            assert_eq!((pod.is_of_kubernetes(), pod.to_string()), (is_of_kubernetes, shown.to_owned()));
        }
    }
}
