//! A mock agent on the level of bytes: sends recorded responses and records requests.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use h2::{RecvStream, server::SendResponse};
use tempfile::TempDir;
use tokio::{net::UnixListener, runtime::Runtime};
use tonic::codegen::{
    Bytes,
    http::{HeaderMap, Request, Response},
};

pub(crate) struct RawAgent {
    /// Holds the socket.
    _dir: TempDir,
    socket: PathBuf,
    /// Dropping the runtime stops the agent.
    _runtime: Runtime,
    received: Received,
}

/// Method and message of each call.
type Received = Arc<Mutex<Vec<(String, Vec<u8>)>>>;

/// Encoded responses by method. Other methods are unimplemented.
pub(crate) type Answers = HashMap<String, Vec<u8>>;

/// Length of gRPC's message prefix: a flag and the message's length in four bytes.
const PREFIX: usize = 5;

// === impl RawAgent ===

impl RawAgent {
    pub(crate) fn start(answers: Answers) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        let (runtime, received) = (Runtime::new().unwrap(), Received::default());
        let listener = {
            let _inside = runtime.enter();
            UnixListener::bind(&socket).unwrap()
        };
        runtime.spawn(serve(listener, Arc::new(answers), Arc::clone(&received)));
        Self { _dir: dir, socket, _runtime: runtime, received }
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(crate) fn received(&self) -> Vec<(String, Vec<u8>)> {
        self.received.lock().unwrap().clone()
    }
}

async fn serve(listener: UnixListener, answers: Arc<Answers>, received: Received) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (answers, received) = (Arc::clone(&answers), Arc::clone(&received));
        tokio::spawn(async move {
            let mut connection = h2::server::handshake(stream).await.unwrap();
            // Ends when the shim exits.
            while let Some(Ok((request, respond))) = connection.accept().await {
                tokio::spawn(answer(request, respond, Arc::clone(&answers), Arc::clone(&received)));
            }
        });
    }
}

async fn answer(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    answers: Arc<Answers>,
    received: Received,
) {
    let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
    let mut body = request.into_body();
    let mut message = Vec::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk.unwrap();
        body.flow_control().release_capacity(chunk.len()).unwrap();
        message.extend_from_slice(&chunk);
    }
    message.drain(..PREFIX);
    let answer = answers.get(&method).cloned();
    received.lock().unwrap().push((method, message));
    let head = Response::builder().header("content-type", "application/grpc");
    let Some(answer) = answer else {
        let head = head.header("grpc-status", "12").body(()).unwrap();
        respond.send_response(head, true).unwrap();
        return;
    };
    let mut framed = vec![0];
    framed.extend_from_slice(&u32::try_from(answer.len()).unwrap().to_be_bytes());
    framed.extend_from_slice(&answer);
    let mut stream = respond.send_response(head.body(()).unwrap(), false).unwrap();
    stream.send_data(framed.into(), false).unwrap();
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().unwrap());
    stream.send_trailers(trailers).unwrap();
}
