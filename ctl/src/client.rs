//! The gRPC client of the agent.

use std::{io, path::Path, time::Duration};

use anyhow::anyhow;
use ferrule_proto::agent::agent_client::AgentClient;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint},
};

const DEADLINE: Duration = Duration::from_secs(10);
/// Bytes of an answer. 10,000 nodes with two ranges each take about 4 MiB.
const MAX_ANSWER: usize = 64 << 20;

/// Connects to the agent's introspection on `socket`.
pub(crate) async fn connect(socket: &Path) -> anyhow::Result<AgentClient<Channel>> {
    Ok(AgentClient::new(channel(socket).await?).max_decoding_message_size(MAX_ANSWER))
}

/// Connects to the agent on `socket`. The deadline is that of an answer, not of the stream after it.
pub(crate) async fn channel(socket: &Path) -> anyhow::Result<Channel> {
    let path = socket.to_owned();
    let connector = tower::service_fn(move |_| {
        let path = path.clone();
        async move { io::Result::Ok(TokioIo::new(UnixStream::connect(path).await?)) }
    });
    // The URI only fills the `:authority` header: the connector chooses the socket.
    let endpoint = Endpoint::from_static("http://ferrule").timeout(DEADLINE);
    endpoint.connect_with_connector(connector).await.map_err(|error| {
        // The errors in between repeat the operating system's.
        let (socket, why) = (socket.display(), anyhow::Error::from(error));
        anyhow!(
            "cannot connect to the agent on {socket}: {}; check that ferrule-agent runs, that this is its --socket, and \
             that you are root",
            why.root_cause()
        )
    })
}

/// Why the agent has no answer: its message, without the code. `command`: what an older agent lacks.
pub(crate) fn unanswered(status: Status, command: &str) -> anyhow::Error {
    match status.code() {
        Code::Unimplemented => {
            anyhow!("the agent does not know `{command}`: it is older than this ferrulectl")
        }
        Code::NotFound | Code::InvalidArgument => anyhow!("{}", status.message()),
        _ => anyhow::Error::new(status).context("the agent does not answer as expected"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_agent_a_refusal_and_a_failure_have_texts_of_their_own() {
        let told = |status: Status| format!("{:#}", unanswered(status, "nodes --ask"));
        let old = told(Status::unimplemented("unknown method Ask"));
        assert_eq!(old, "the agent does not know `nodes --ask`: it is older than this ferrulectl");
        for refusal in [Status::not_found("no node node-9"), Status::invalid_argument("no node node-9")] {
            assert_eq!(told(refusal), "no node node-9");
        }
        let failed = told(Status::unavailable("the agent is stopping"));
        assert!(failed.starts_with("the agent does not answer as expected: "), "{failed}");
        assert!(failed.contains("the agent is stopping"), "{failed}");
    }
}
