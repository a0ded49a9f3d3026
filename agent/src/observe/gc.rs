//! `ferrulectl gc --dry-run`: the attachments that garbage collection would remove, with the proofs.

use std::sync::Arc;

use ferrule_proto::agent::{ExplainGcResponse, GcCandidate, Proof as ShownProof};
use tonic::{Response, Status};

use crate::{
    chain::chain,
    reconcile::{Candidate, Collector, Proof},
};

/// # Errors
/// `DEADLINE_EXCEEDED` if the inspection takes too long.
pub(super) async fn explain(collector: &Arc<Collector>) -> Result<Response<ExplainGcResponse>, Status> {
    let candidates = collector.explain().await.map_err(|error| Status::deadline_exceeded(chain(&error)))?;
    Ok(Response::new(ExplainGcResponse { candidates: candidates.into_iter().map(show).collect() }))
}

fn show(candidate: Candidate) -> GcCandidate {
    let Candidate { key, pod, evidence, verdict, removable } = candidate;
    let proof = |(name, Proof { holds, observed }): (&str, &Proof)| ShownProof {
        name: name.to_owned(),
        holds: *holds,
        seen: observed.clone(),
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
