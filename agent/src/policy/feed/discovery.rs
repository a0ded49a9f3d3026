//! Which version of ClusterNetworkPolicies the cluster serves.

use serde::{Deserialize, de::DeserializeOwned};

use super::state::Served;
use crate::api::{Api, ApiError};

/// The discovery document of an API group.
#[derive(Deserialize)]
struct Group {
    versions: Vec<Version>,
}

#[derive(Deserialize)]
struct Version {
    version: String,
}

/// The discovery document of a version of a group.
#[derive(Deserialize)]
struct Resources {
    resources: Vec<Resource>,
}

#[derive(Deserialize)]
struct Resource {
    name: String,
}

#[derive(Deserialize)]
struct List {
    items: Vec<serde::de::IgnoredAny>,
}

/// The name of the type in paths.
pub(super) const TYPE: &str = "clusternetworkpolicies";
const GROUP: &str = "/apis/policy.networking.k8s.io";
/// The version that this agent reads.
pub(super) const VERSION: &str = "v1alpha2";
/// Other versions that are asked for; a group has few.
const MAX_OTHERS: usize = 8;
const WHAT: &str = "discover ClusterNetworkPolicies";

/// Asks the API server. A few requests in a cluster without the type, one where the agent can read it.
pub(super) async fn ask(api: &Api) -> Result<Served, ApiError> {
    if has_type(api, VERSION).await? {
        return Ok(Served::Known);
    }
    // Other types of the group say nothing about this one.
    let group: Option<Group> = document(api.get(WHAT, GROUP).await)?;
    let versions = group.into_iter().flat_map(|it| it.versions).map(|it| it.version);
    let mut others = Vec::new();
    for version in versions.filter(|it| it != VERSION).take(MAX_OTHERS) {
        if has_type(api, &version).await? && has_object(api, &version).await? {
            others.push(version);
        }
    }
    Ok(if others.is_empty() { Served::Nothing } else { Served::Others(others) })
}

async fn has_type(api: &Api, version: &str) -> Result<bool, ApiError> {
    let found: Option<Resources> = document(api.get(WHAT, &format!("{GROUP}/{version}")).await)?;
    Ok(found.is_some_and(|it| it.resources.iter().any(|it| it.name == TYPE)))
}

/// Whether there is an object: a type without any needs no newer agent.
async fn has_object(api: &Api, version: &str) -> Result<bool, ApiError> {
    let list = format!("{GROUP}/{version}/{TYPE}?limit=1");
    let found: Option<List> = document(api.get(WHAT, &list).await)?;
    Ok(found.is_some_and(|it| !it.items.is_empty()))
}

/// Reads the answer to a discovery; `None` if there is no such document.
fn document<T: DeserializeOwned>(answer: Result<Vec<u8>, ApiError>) -> Result<Option<T>, ApiError> {
    let document = match answer {
        Ok(document) => document,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(error),
    };
    let invalid =
        |error: serde_json::Error| ApiError::Invalid { what: WHAT.to_owned(), why: error.to_string() };
    serde_json::from_slice(&document).map(Some).map_err(invalid)
}

#[cfg(test)]
mod tests {
    use std::io;

    use http::{Request, Response};
    use kube::client::Body;

    use super::*;

    /// What the agent finds where these paths have these documents, and others none.
    async fn found(documents: &'static [(&str, &str)]) -> Result<Served, ApiError> {
        let server = tower::service_fn(move |request: Request<Body>| async move {
            let asked = request.uri().path_and_query().map_or("", |it| it.as_str());
            let found = documents.iter().find(|(path, _)| *path == asked);
            let (code, body) = found.map_or((404, "404 page not found"), |(_, body)| (200, *body));
            let body = Body::from(body.as_bytes().to_vec());
            Ok::<_, io::Error>(Response::builder().status(code).body(body).expect("a response"))
        });
        ask(&Api::with_client(kube::Client::new(server, "default"))).await
    }

    const HAS_TYPE: &str = r#"{"resources": [{"name": "other"}, {"name": "clusternetworkpolicies"}]}"#;
    const NO_TYPE: &str = r#"{"resources": [{"name": "adminnetworkpolicies"}]}"#;
    const KNOWN: &str = "/apis/policy.networking.k8s.io/v1alpha2";
    const OLD: &str = "/apis/policy.networking.k8s.io/v1alpha1";
    const NEW: &str = "/apis/policy.networking.k8s.io/v1beta1";
    const NEW_LIST: &str = "/apis/policy.networking.k8s.io/v1beta1/clusternetworkpolicies?limit=1";
    const SOME: (&str, &str) = (NEW_LIST, r#"{"items": [{"metadata": {"name": "a"}}]}"#);
    const NONE: (&str, &str) = (NEW_LIST, r#"{"items": []}"#);
    const ALL: &str =
        r#"{"versions": [{"version": "v1beta1"}, {"version": "v1alpha2"}, {"version": "v1alpha1"}]}"#;

    #[tokio::test]
    async fn the_version_that_the_agent_reads_is_enough_and_another_one_counts_if_it_has_the_type() {
        assert_eq!(found(&[]).await.unwrap(), Served::Nothing);
        assert_eq!(found(&[(KNOWN, HAS_TYPE)]).await.unwrap(), Served::Known);
        assert_eq!(found(&[(GROUP, ALL), (KNOWN, HAS_TYPE), (NEW, HAS_TYPE)]).await.unwrap(), Served::Known);
        let others = Served::Others(vec!["v1beta1".to_owned()]);
        assert_eq!(found(&[(GROUP, ALL), (OLD, NO_TYPE), (NEW, HAS_TYPE), SOME]).await.unwrap(), others);
        assert_eq!(found(&[(GROUP, ALL), (KNOWN, NO_TYPE), (NEW, HAS_TYPE), SOME]).await.unwrap(), others);
        assert_eq!(
            found(&[(GROUP, ALL), (NEW, HAS_TYPE), NONE]).await.unwrap(),
            Served::Nothing,
            "a type alone"
        );
        assert_eq!(found(&[(GROUP, ALL), (OLD, NO_TYPE)]).await.unwrap(), Served::Nothing);
    }

    #[tokio::test]
    async fn a_document_that_cannot_be_read_is_no_answer() {
        assert!(matches!(found(&[(GROUP, "[]")]).await, Err(ApiError::Invalid { .. })));
        assert!(matches!(found(&[(KNOWN, "{}")]).await, Err(ApiError::Invalid { .. })));
    }
}
