//! An agent that speaks bytes: it answers what was recorded, whatever its release, and remembers what it was sent.

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
    /// Holds the socket until the end.
    _dir: TempDir,
    socket: PathBuf,
    /// Dropped, it stops the agent.
    _runtime: Runtime,
    seen: Seen,
}

/// Method and message of each call.
type Seen = Arc<Mutex<Vec<(String, Vec<u8>)>>>;

/// Encoded messages by method. A method that is not there is one that the agent has not heard of.
pub(crate) type Answers = HashMap<String, Vec<u8>>;

/// gRPC's length-prefixed message: a flag and four bytes of length before it.
const PREFIX: usize = 5;

// === impl RawAgent ===

impl RawAgent {
    pub(crate) fn start(answers: Answers) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        let (runtime, seen) = (Runtime::new().unwrap(), Seen::default());
        let listener = {
            let _inside = runtime.enter();
            UnixListener::bind(&socket).unwrap()
        };
        runtime.spawn(serve(listener, Arc::new(answers), Arc::clone(&seen)));
        Self { _dir: dir, socket, _runtime: runtime, seen }
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(crate) fn seen(&self) -> Vec<(String, Vec<u8>)> {
        self.seen.lock().unwrap().clone()
    }
}

async fn serve(listener: UnixListener, answers: Arc<Answers>, seen: Seen) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (answers, seen) = (Arc::clone(&answers), Arc::clone(&seen));
        tokio::spawn(async move {
            let mut connection = h2::server::handshake(stream).await.unwrap();
            // It ends when the shim does.
            while let Some(Ok((request, respond))) = connection.accept().await {
                tokio::spawn(answer(request, respond, Arc::clone(&answers), Arc::clone(&seen)));
            }
        });
    }
}

async fn answer(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    answers: Arc<Answers>,
    seen: Seen,
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
    seen.lock().unwrap().push((method, message));
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
