//! `ferrulectl gc`.

use std::{iter, path::Path};

use anyhow::bail;
use ferrule_proto::agent::{ExplainGcRequest, GcCandidate};

use crate::{
    client,
    output::Output,
    table::{pod, short_id, table},
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Required: only explain. The agent itself removes orphaned attachments
    #[arg(long)]
    dry_run: bool,
}

pub(crate) async fn run(args: &Args, socket: &Path, output: Output) -> anyhow::Result<String> {
    if !args.dry_run {
        bail!(
            "gc needs --dry-run: the agent removes orphaned attachments automatically, and \
             `ferrulectl gc --dry-run` explains which ones, when and why"
        );
    }
    let response = client::connect(socket).await?.explain_gc(ExplainGcRequest {}).await?;
    let candidates = response.into_inner().candidates;
    output.show(&candidates, |it| render(it))
}

/// One line for each proof of a candidate, then one for the verdict.
fn render(candidates: &[GcCandidate]) -> String {
    let rows = candidates.iter().flat_map(|candidate| {
        let attachment = [
            pod(&candidate.pod_namespace, &candidate.pod_name),
            short_id(&candidate.container_id),
            candidate.ifname.clone(),
        ];
        let proofs = candidate.proofs.iter().map(|proof| {
            let holds = if proof.holds { "yes" } else { "no" };
            [proof.name.clone(), holds.to_owned(), proof.seen.clone()]
        });
        let verdict = ["verdict".to_owned(), String::new(), candidate.verdict.clone()];
        // Only the first line of a candidate names the attachment.
        let attachments = iter::once(attachment).chain(iter::repeat(Default::default()));
        attachments
            .zip(proofs.chain([verdict]))
            .map(|([pod, id, ifname], [proof, holds, evidence])| [pod, id, ifname, proof, holds, evidence])
    });
    table(["POD", "CONTAINER", "IF", "PROOF", "HOLDS", "EVIDENCE"], rows)
}

#[cfg(test)]
mod tests {
    use ferrule_proto::agent::Proof;

    use super::*;

    fn candidate() -> GcCandidate {
        let proof =
            |name: &str, holds, seen: &str| Proof { name: name.to_owned(), holds, seen: seen.to_owned() };
        GcCandidate {
            container_id: "0123456789abcdef".to_owned(),
            ifname: "eth0".to_owned(),
            pod_namespace: "default".to_owned(),
            pod_name: "web-0".to_owned(),
            proofs: vec![proof("netns-gone", true, "no such file"), proof("pod-gone", false, "pod exists")],
            verdict: "kept: pod exists".to_owned(),
            ..Default::default()
        }
    }

    #[test]
    fn table_has_each_proof_then_the_verdict() {
        let expected = "\
POD            CONTAINER     IF    PROOF       HOLDS  EVIDENCE
default/web-0  0123456789ab  eth0  netns-gone  yes    no such file
                                   pod-gone    no     pod exists
                                   verdict            kept: pod exists";
        assert_eq!(render(&[candidate()]), expected);
    }

    #[test]
    fn table_without_candidates_is_the_header() {
        assert_eq!(render(&[]), "POD  CONTAINER  IF  PROOF  HOLDS  EVIDENCE");
    }

    #[test]
    fn json_has_the_field_names_of_the_protocol() {
        let json = serde_json::to_value(candidate()).unwrap();
        let expected = serde_json::json!({
            "network": "", "container_id": "0123456789abcdef", "ifname": "eth0", "pod_namespace": "default",
            "pod_name": "web-0", "pod_uid": "",
            "proofs": [{"name": "netns-gone", "holds": true, "seen": "no such file"},
                       {"name": "pod-gone", "holds": false, "seen": "pod exists"}],
            "verdict": "kept: pod exists", "removable": false,
        });
        assert_eq!(json, expected);
    }
}
