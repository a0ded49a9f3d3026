//! `ferrulectl gc`.

use std::path::Path;

use anyhow::bail;
use ferrule_proto::agent::{ExplainGcRequest, GcCandidate, Proof};
use serde::Serialize;

use crate::{
    Output,
    attachments::{SHORT_ID, align, pod},
    client,
};

#[derive(Debug, clap::Args)]
pub(crate) struct Question {
    /// Changes nothing, and tells. There is no other way: what dangles, the agent removes by itself.
    #[arg(long)]
    dry_run: bool,
}

/// A candidate as it is printed in JSON: the protocol's own names.
#[derive(Serialize)]
struct Shown<'a> {
    network: &'a str,
    container_id: &'a str,
    ifname: &'a str,
    pod_namespace: &'a str,
    pod_name: &'a str,
    pod_uid: &'a str,
    proofs: Vec<ShownProof<'a>>,
    verdict: &'a str,
    removable: bool,
}

#[derive(Serialize)]
struct ShownProof<'a> {
    name: &'a str,
    holds: bool,
    seen: &'a str,
}

/// Asks what may be dangling.
pub(crate) async fn ask(question: &Question, socket: &Path, output: Output) -> anyhow::Result<String> {
    if !question.dry_run {
        bail!(
            "the agent removes dangling attachments by itself; `ferrulectl gc --dry-run` tells which, when and why"
        );
    }
    let answer = client::connect(socket).await?.explain_gc(ExplainGcRequest {}).await?;
    let candidates = answer.into_inner().candidates;
    match output {
        Output::Table => Ok(table(&candidates)),
        Output::Json => {
            Ok(serde_json::to_string_pretty(&candidates.iter().map(Shown::of).collect::<Vec<_>>())?)
        }
    }
}

// === impl Shown ===

impl<'a> Shown<'a> {
    fn of(candidate: &'a GcCandidate) -> Self {
        let proof = |it: &'a Proof| ShownProof { name: &it.name, holds: it.holds, seen: &it.seen };
        Self {
            network: &candidate.network,
            container_id: &candidate.container_id,
            ifname: &candidate.ifname,
            pod_namespace: &candidate.pod_namespace,
            pod_name: &candidate.pod_name,
            pod_uid: &candidate.pod_uid,
            proofs: candidate.proofs.iter().map(proof).collect(),
            verdict: &candidate.verdict,
            removable: candidate.removable,
        }
    }
}

/// A line for each proof, and the verdict last.
fn table(candidates: &[GcCandidate]) -> String {
    let header = ["POD", "CONTAINER", "IF", "PROOF", "HOLDS", "SEEN"].map(str::to_owned);
    let rows = candidates.iter().flat_map(|candidate| {
        let whose = [
            pod(&candidate.pod_namespace, &candidate.pod_name),
            candidate.container_id.chars().take(SHORT_ID).collect(),
            candidate.ifname.clone(),
        ];
        let proofs = candidate.proofs.iter().map(|proof| {
            let holds = if proof.holds { "yes" } else { "no" };
            [proof.name.clone(), holds.to_owned(), proof.seen.clone()]
        });
        let verdict = ["verdict".to_owned(), String::new(), candidate.verdict.clone()];
        let whose = std::iter::once(whose).chain(std::iter::repeat(Default::default()));
        whose
            .zip(proofs.chain([verdict]))
            .map(|([pod, id, ifname], [proof, holds, seen])| [pod, id, ifname, proof, holds, seen])
    });
    align(std::iter::once(header).chain(rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_each_proof_and_then_what_follows() {
        let proof =
            |name: &str, holds, seen: &str| Proof { name: name.to_owned(), holds, seen: seen.to_owned() };
        let candidate = GcCandidate {
            container_id: "0123456789abcdef".to_owned(),
            ifname: "eth0".to_owned(),
            pod_namespace: "default".to_owned(),
            pod_name: "web-0".to_owned(),
            proofs: vec![proof("netns-gone", true, "there is none"), proof("pod-gone", false, "it is there")],
            verdict: "kept: it is there".to_owned(),
            ..Default::default()
        };
        let expected = "\
POD            CONTAINER     IF    PROOF       HOLDS  SEEN
default/web-0  0123456789ab  eth0  netns-gone  yes    there is none
                                   pod-gone    no     it is there
                                   verdict            kept: it is there";
        assert_eq!(table(&[candidate]), expected);
    }

    #[test]
    fn a_table_of_nothing_is_its_header() {
        assert_eq!(table(&[]), "POD  CONTAINER  IF  PROOF  HOLDS  SEEN");
    }
}
