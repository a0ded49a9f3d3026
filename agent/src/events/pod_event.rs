//! An Event before it is sent.

/// An Event about a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodEvent {
    pub namespace: String,
    pub name: String,
    /// Of the API; may be empty.
    pub uid: String,
    pub reason: &'static str,
    pub is_warning: bool,
    pub note: String,
}

/// The API path of a namespace's Events. The caller has validated the namespace, so that it is safe in a
/// path.
pub(super) fn collection(namespace: &str) -> String {
    format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events")
}
