//! The `ferrule.cni.v1.Cni` service: request → verb of the [engine](crate::attach) → reply or CNI error.

mod call;
mod error;
mod reply;
mod request;
mod status;

use std::sync::Arc;

use ferrule_proto::cni::{
    AddRequest, AddResponse, AttachmentKey, CheckRequest, CheckResponse, DelRequest, DelResponse, GcRequest,
    GcResponse, StatusRequest, StatusResponse, add_response::Outcome, cni_server::Cni,
};
use tonic::{Request, Response, Status};

use crate::{
    attach::Engine,
    crash::{self, Step},
    health::Health,
    registry::{Key, Registry},
};
use call::Call;
pub use call::Calls;
pub use error::CallError;

/// The service.
pub struct CniService {
    pub engine: Arc<Engine>,
    /// For the pod of a traced call that names only a key.
    pub registry: Arc<Registry>,
    pub health: Health,
    pub calls: Calls,
}

#[tonic::async_trait]
impl Cni for CniService {
    async fn add(&self, request: Request<AddRequest>) -> Result<Response<AddResponse>, Status> {
        let mut call = self.calls.begin("ADD", request.metadata());
        let request = request.into_inner();
        let what = describe("ADD", request.key.as_ref());
        let add = async {
            let request = request::add(request)?;
            call.set_key(&request.key);
            call.set_pod(&request.pod);
            call.note(&request.key, &request.pod);
            Ok(self.engine.attach(request, call.phases()).await?)
        };
        let added = add.await.map_err(|error| call.failed(error, &what));
        call.end(added.as_ref().err());
        crash::point(Step::AddAnswering);
        let outcome = match added {
            Ok(attachments) => Outcome::Result(reply::add(&attachments)),
            Err(error) => Outcome::Error(error),
        };
        Ok(Response::new(AddResponse { outcome: Some(outcome) }))
    }

    async fn del(&self, request: Request<DelRequest>) -> Result<Response<DelResponse>, Status> {
        let mut call = self.calls.begin("DEL", request.metadata());
        let request = request.into_inner();
        let what = describe("DEL", request.key.as_ref());
        let del = async {
            request::api(request.api)?;
            let key = request::key(request.key)?;
            self.set_key_and_pod(&mut call, &key);
            Ok(self.engine.detach(key, call.phases()).await?)
        };
        let error = del.await.err().map(|error| call.failed(error, &what));
        call.end(error.as_ref());
        crash::point(Step::DelAnswering);
        Ok(Response::new(DelResponse { error }))
    }

    async fn check(&self, request: Request<CheckRequest>) -> Result<Response<CheckResponse>, Status> {
        let mut call = self.calls.begin("CHECK", request.metadata());
        let request = request.into_inner();
        let what = describe("CHECK", request.key.as_ref());
        let check = async {
            let request::Check { key, netns, prev_result } = request::check(request)?;
            self.set_key_and_pod(&mut call, &key);
            Ok(self.engine.verify(key, netns, prev_result, call.phases()).await?)
        };
        let error = check.await.err().map(|error| call.failed(error, &what));
        call.end(error.as_ref());
        Ok(Response::new(CheckResponse { error }))
    }

    async fn gc(&self, request: Request<GcRequest>) -> Result<Response<GcResponse>, Status> {
        let mut call = self.calls.begin("GC", request.metadata());
        let request = request.into_inner();
        let gc = async {
            let request::Gc { network, valid } = request::gc(request)?;
            call.set_network(&network);
            Ok(self.engine.retain(&network, &valid, call.phases()).await?)
        };
        let error = gc.await.err().map(|error| call.failed(error, "GC"));
        call.end(error.as_ref());
        Ok(Response::new(GcResponse { error }))
    }

    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        if self.engine.is_stopping() {
            // The shim waits for the next agent: a restart is no reason for a node that is not ready.
            return Err(Status::unavailable("the agent is stopping"));
        }
        let call = self.calls.begin("STATUS", request.metadata());
        let error = match request::api(request.into_inner().api) {
            Ok(()) => status::error(&status::settled(&self.health).await),
            Err(error) => Some(error.into_proto("STATUS")),
        };
        // Not logged: runtimes poll STATUS every few seconds, and each component logs its own changes.
        call.end(error.as_ref());
        Ok(Response::new(StatusResponse { error }))
    }
}

// === impl CniService ===

impl CniService {
    /// Notes whom a call is about that names only the key.
    fn set_key_and_pod(&self, call: &mut Call<'_>, key: &Key) {
        call.set_key(key);
        if let Some(attachment) = self.registry.get(key) {
            call.set_pod(&attachment.pod);
        }
    }
}

/// The call as error messages name it, such as "ADD of net/0123/eth0"; a malformed key is left out.
fn describe(verb: &str, key: Option<&AttachmentKey>) -> String {
    let key = key.cloned().and_then(|key| request::key(Some(key)).ok());
    key.map_or_else(|| verb.to_owned(), |key| format!("{verb} of {key}"))
}
