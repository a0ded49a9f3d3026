//! What the agent will do about attachments that may be dangling, as `ferrulectl gc --dry-run` asks.

use std::sync::Arc;

use ferrule_proto::agent::{ExplainGcResponse, GcCandidate, Proof as ShownProof};
use tonic::{Response, Status};

use crate::{
    chain::chain,
    reconcile::{Candidate, Collector, Proof},
};

/// Explains what would be removed now, and why.
///
/// # Errors
/// If it takes too long to look.
pub(super) async fn explain(collector: &Arc<Collector>) -> Result<Response<ExplainGcResponse>, Status> {
    let candidates = collector.explain().await.map_err(|error| Status::deadline_exceeded(chain(&error)))?;
    Ok(Response::new(ExplainGcResponse { candidates: candidates.into_iter().map(show).collect() }))
}

fn show(candidate: Candidate) -> GcCandidate {
    let Candidate { key, pod, evidence, verdict, removable } = candidate;
    let proof = |(name, Proof { holds, what }): (&str, &Proof)| ShownProof {
        name: name.to_owned(),
        holds: *holds,
        seen: what.clone(),
    };
    GcCandidate {
        network: key.network.to_string(),
        container_id: key.container_id.to_string(),
        ifname: key.ifname.to_string(),
        pod_namespace: pod.namespace,
        pod_name: pod.name,
        pod_uid: pod.uid,
        proofs: evidence.proofs().map(proof).collect(),
        verdict,
        removable,
    }
}
