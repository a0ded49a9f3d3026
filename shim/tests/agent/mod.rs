//! A mock agent that records requests.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use ferrule_proto::cni::{
    AddRequest, AddResponse, AddResult, CheckRequest, CheckResponse, DelRequest, DelResponse, Error,
    GcRequest, GcResponse, Interface, Ip, Route, StatusRequest, StatusResponse,
    add_response::Outcome,
    cni_server::{Cni, CniServer},
};
use tempfile::TempDir;
use tokio::{net::UnixListener, runtime::Runtime};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status, metadata::MetadataMap, transport::Server};

pub(crate) struct MockAgent {
    /// Holds the socket.
    dir: TempDir,
    socket: PathBuf,
    /// Dropping the runtime stops the agent.
    runtime: Runtime,
    received: Arc<Received>,
}

#[derive(Clone)]
pub(crate) enum Behaviour {
    Serve,
    Refuse(Error),
    Hang,
}

/// All requests so far.
#[derive(Default)]
struct Received {
    /// Each with `grpc-timeout`.
    adds: Mutex<Vec<(AddRequest, Option<String>)>>,
    others: Mutex<Vec<String>>,
    /// `traceparent` and `tracestate` of every call.
    traces: Mutex<Vec<[Option<String>; 2]>>,
}

struct Service {
    behaviour: Behaviour,
    received: Arc<Received>,
}

// === impl MockAgent ===

impl MockAgent {
    pub(crate) fn start(behaviour: Behaviour) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        let runtime = Runtime::new().unwrap();
        let received = Arc::<Received>::default();
        let service = CniServer::new(Service { behaviour, received: Arc::clone(&received) });
        let listener = {
            let _inside = runtime.enter();
            UnixListener::bind(&socket).unwrap()
        };
        let incoming = UnixListenerStream::new(listener);
        runtime.spawn(Server::builder().add_service(service).serve_with_incoming(incoming));
        Self { dir, socket, runtime, received }
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(crate) fn adds(&self) -> Vec<(AddRequest, Option<String>)> {
        self.received.adds.lock().unwrap().clone()
    }

    pub(crate) fn others(&self) -> Vec<String> {
        self.received.others.lock().unwrap().clone()
    }

    pub(crate) fn traces(&self) -> Vec<[Option<String>; 2]> {
        self.received.traces.lock().unwrap().clone()
    }

    /// Waits for a call, then stops as if killed. Returns the agent's directory.
    pub(crate) fn stop_when_called(self) -> TempDir {
        while self.adds().is_empty() && self.others().is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.runtime.shutdown_background();
        self.dir
    }
}

// === impl Service ===

impl Service {
    /// Records a call. Returns the error to answer with, if any.
    async fn served(&self, metadata: &MetadataMap, call: Option<String>) -> Option<Error> {
        let text = |name| metadata.get(name).map(|value| value.to_str().unwrap().to_owned());
        self.received.traces.lock().unwrap().push(["traceparent", "tracestate"].map(text));
        self.received.others.lock().unwrap().extend(call);
        match &self.behaviour {
            Behaviour::Serve => None,
            Behaviour::Refuse(error) => Some(error.clone()),
            Behaviour::Hang => std::future::pending().await,
        }
    }
}

#[tonic::async_trait]
impl Cni for Service {
    async fn add(&self, request: Request<AddRequest>) -> Result<Response<AddResponse>, Status> {
        let timeout = request.metadata().get("grpc-timeout").map(|v| v.to_str().unwrap().to_owned());
        let (metadata, _, request) = request.into_parts();
        self.received.adds.lock().unwrap().push((request.clone(), timeout));
        let outcome = match self.served(&metadata, None).await {
            Some(error) => Outcome::Error(error),
            None => Outcome::Result(result(&request)),
        };
        Ok(Response::new(AddResponse { outcome: Some(outcome) }))
    }

    async fn del(&self, request: Request<DelRequest>) -> Result<Response<DelResponse>, Status> {
        let call = format!("DEL {}", request.get_ref().netns);
        Ok(Response::new(DelResponse { error: self.served(request.metadata(), Some(call)).await }))
    }

    async fn check(&self, request: Request<CheckRequest>) -> Result<Response<CheckResponse>, Status> {
        let error = self.served(request.metadata(), Some("CHECK".into())).await;
        Ok(Response::new(CheckResponse { error }))
    }

    async fn gc(&self, request: Request<GcRequest>) -> Result<Response<GcResponse>, Status> {
        let call = format!("GC {}", request.get_ref().valid.len());
        Ok(Response::new(GcResponse { error: self.served(request.metadata(), Some(call)).await }))
    }

    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let error = self.served(request.metadata(), Some("STATUS".into())).await;
        Ok(Response::new(StatusResponse { error }))
    }
}

fn result(request: &AddRequest) -> AddResult {
    let interface = |name: &str, sandbox: &str| Interface {
        name: name.into(),
        mac: "02:00:00:00:00:01".into(),
        mtu: request.mtu,
        sandbox: sandbox.into(),
    };
    let gateway = "169.254.1.1".to_owned();
    AddResult {
        interfaces: vec![interface("fer0a1b2c3d4e5", ""), interface("eth0", &request.netns)],
        ips: vec![Ip { address: "10.1.2.3/32".into(), gateway: gateway.clone(), interface: 1 }],
        routes: vec![Route { dst: "0.0.0.0/0".into(), gw: gateway, ..Default::default() }],
    }
}
