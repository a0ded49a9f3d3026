//! The parts of a bundle: every answer of the agent, as data.

use std::{fs, path::Path};

use ferrule_proto::agent::{
    ExplainGcRequest, GetFactsRequest, GetStatusRequest, ListAddressesRequest, ListAttachmentsRequest,
    ListNodesRequest, ListPoliciesRequest, VerifyRequest, agent_client::AgentClient,
};
use serde::Serialize;
use tonic::{Response, Status, transport::Channel};

use super::archive::Archive;
use crate::{client, flows, time};

/// Recorded packets and flows.
const RECORDS: u64 = 4096;

/// Adds all parts. Returns why some are missing.
///
/// # Errors
/// If the archive cannot be written.
pub(super) async fn all(
    archive: &mut Archive,
    socket: &Path,
    progress: impl Fn(&str),
) -> anyhow::Result<Vec<String>> {
    let mut missing = Vec::new();
    archive.add("about.txt", &about(socket))?;
    match client::connect(socket).await {
        Ok(agent) => from_agent(archive, agent, &progress, &mut missing).await?,
        Err(error) => missing.push(format!("{error:#}")),
    }
    progress("records");
    match flows::recorded(socket, RECORDS).await {
        Ok(lines) => archive.add("flows.jsonl", &lines)?,
        Err(error) => missing.push(format!("flows.jsonl: {error:#}")),
    }
    if !missing.is_empty() {
        archive.add("missing.txt", &(missing.join("\n") + "\n"))?;
    }
    Ok(missing)
}

async fn from_agent(
    archive: &mut Archive,
    agent: AgentClient<Channel>,
    progress: &impl Fn(&str),
    missing: &mut Vec<String>,
) -> anyhow::Result<()> {
    macro_rules! part {
        ($name:literal, $call:ident, $request:expr) => {
            progress($name);
            let answer = agent.clone().$call($request).await;
            part(archive, $name, answer, missing)?;
        };
    }
    part!("status.json", get_status, GetStatusRequest {});
    part!("attachments.json", list_attachments, ListAttachmentsRequest {});
    part!("ipam.json", list_addresses, ListAddressesRequest {});
    part!("nodes.json", list_nodes, ListNodesRequest::default());
    part!("policies.json", list_policies, ListPoliciesRequest {});
    part!("verify.json", verify, VerifyRequest {});
    part!("gc.json", explain_gc, ExplainGcRequest {});
    progress("facts");
    match agent.clone().get_facts(GetFactsRequest {}).await {
        Ok(facts) => {
            for fact in facts.into_inner().facts {
                archive.add(&file_name(&fact.name), &fact.text)?;
            }
        }
        Err(status) => missing.push(format!("facts: {}", status.message())),
    }
    Ok(())
}

fn part<T: Serialize>(
    archive: &mut Archive,
    name: &str,
    answer: Result<Response<T>, Status>,
    missing: &mut Vec<String>,
) -> anyhow::Result<()> {
    match answer {
        Ok(answer) => archive.add(name, &serde_json::to_string_pretty(&answer.into_inner())?),
        Err(status) => {
            missing.push(format!("{name}: {}", status.message()));
            Ok(())
        }
    }
}

/// Nothing of it leads out of the archive's directory.
fn file_name(name: &str) -> String {
    name.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_')).collect()
}

fn about(socket: &Path) -> String {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let system = fs::read_to_string("/etc/os-release").unwrap_or_default();
    format!(
        "ferrulectl {}\nmade {}\nsocket {}\nkernel {}\n\n{system}\nIn this archive: the agent's answers, its \
         configuration, metrics, log and failed ADDs, the last dropped packets and flows (addresses, ports, names of \
         pods), the host's interfaces and routes, the agent's nftables tables, and facts about the kernel. No packets' contents, no credentials, no environment.\n",
        env!("CARGO_PKG_VERSION"),
        time::clock(time::now() * 1000),
        socket.display(),
        kernel.trim(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fact_cannot_leave_the_archives_directory() {
        assert_eq!(file_name("../../etc/pass wd"), "....etcpasswd");
        assert_eq!(file_name("metrics.txt"), "metrics.txt");
    }
}
