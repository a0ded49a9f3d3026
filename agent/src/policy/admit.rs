//! Why a pod gets no network.

use std::time::Duration;

use crate::cluster::PodRef;

/// A pod cannot get a network, because the policies that judge it are not in the maps.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdmitError {
    /// No complete state is known.
    #[error(
        "the pod would be open to everything: policies, namespaces and pods of the cluster were not listed within \
         {} s",
        .0.as_secs()
    )]
    NotListed(Duration),
    /// Policies are known, and what they ask about is not.
    #[error("the policies of the cluster are not in force {} s later: {why}", waited.as_secs())]
    Incomplete { why: String, waited: Duration },
    /// The labels decide which policies apply.
    #[error(
        "the policies that apply to the pod {pod} are not known: the API server did not deliver the pod or its \
         namespace within {} s",
        waited.as_secs()
    )]
    UnknownPod { pod: PodRef, waited: Duration },
    /// The thread is slow, or the kernel refuses.
    #[error("the rows that judge the pod were not written within {} s", .0.as_secs())]
    NotWritten(Duration),
    #[error("the pod would not be judged by all of its policies: {0}")]
    Refused(String),
}

// === impl AdmitError ===

impl AdmitError {
    /// What is missing, for an ADD that still waits.
    pub(super) fn missing(&self) -> String {
        match self {
            Self::NotListed(_) => "no complete list of policies, namespaces and pods yet".to_owned(),
            Self::Incomplete { why, .. } | Self::Refused(why) => why.clone(),
            Self::UnknownPod { pod, .. } => {
                format!("the API server has not delivered the pod {pod} or its namespace yet")
            }
            Self::NotWritten(_) => "the rows that judge the pod are not written yet".to_owned(),
        }
    }
}
