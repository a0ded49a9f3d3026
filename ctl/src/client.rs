//! The way to the agent.

use std::{io, path::Path, time::Duration};

use anyhow::Context as _;
use ferrule_proto::agent::agent_client::AgentClient;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};

const DEADLINE: Duration = Duration::from_secs(10);

/// Connects to the agent that listens on a socket.
pub(crate) async fn connect(socket: &Path) -> anyhow::Result<AgentClient<Channel>> {
    let path = socket.to_owned();
    let connector = tower::service_fn(move |_| {
        let path = path.clone();
        async move { io::Result::Ok(TokioIo::new(UnixStream::connect(path).await?)) }
    });
    // The name goes into a header only: the connector decides where to.
    let endpoint = Endpoint::from_static("http://ferrule").timeout(DEADLINE);
    let channel = endpoint.connect_with_connector(connector).await.with_context(|| {
        format!("cannot reach the agent on {}; does ferrule-agent run, and are you root?", socket.display())
    })?;
    Ok(AgentClient::new(channel))
}
