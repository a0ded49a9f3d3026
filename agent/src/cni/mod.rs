//! The `ferrule.cni.v1.Cni` service: requests are checked here, and results put into words.

mod call;
mod error;
mod status;

use std::{path::PathBuf, sync::Arc};

use agent_common::GATEWAY_MAC;
use ferrule_proto::{
    API, annotations,
    cni::{
        AddRequest, AddResponse, AddResult, ApiRange, AttachmentKey, CheckRequest, CheckResponse, DelRequest,
        DelResponse, Error, GcRequest, GcResponse, Interface, Ip, Route, StatusRequest, StatusResponse,
        add_response::Outcome, cni_server::Cni,
    },
    names::{ContainerId, IfName, NetworkName, check_pod},
};
use ipnet::IpNet;
use tonic::{Request, Response, Status};

use crate::{
    attach::{AttachRequest, Engine},
    crash::{self, Step},
    health::Health,
    plug::GATEWAY,
    registry::{Attachment, Key, Pod},
    server::Caller,
    watch::Annotations,
};
use call::Call;
pub use call::Calls;
pub use error::CallError;
use ferrule_vif::Mac;

/// The service.
pub struct CniService {
    pub engine: Arc<Engine>,
    pub health: Health,
    pub calls: Calls,
}

#[tonic::async_trait]
impl Cni for CniService {
    async fn add(&self, request: Request<AddRequest>) -> Result<Response<AddResponse>, Status> {
        let _in_work = Caller::begin(&request);
        let mut call = self.calls.begin("ADD", request.metadata());
        let request = request.into_inner();
        let what = name("ADD", request.key.as_ref());
        let add = async {
            check_api(request.api)?;
            let pod = request.pod.unwrap_or_default();
            check_pod(&pod)?;
            let request = AttachRequest {
                key: key(request.key)?,
                netns: netns(request.netns)?,
                pod: Pod { namespace: pod.namespace, name: pod.name, uid: pod.uid },
                annotations: pod.annotations.map(annotations_of),
                mtu: Some(request.mtu).filter(|mtu| *mtu != 0),
            };
            call.about(&request.key);
            call.of_pod(&request.pod);
            Ok(self.engine.attach(request, call.phases()).await?)
        };
        let added = add.await.map_err(|error| report(error, &what));
        call.end(added.as_ref().err());
        crash::point(Step::AddAnswering);
        let outcome = match added {
            Ok(attachments) => Outcome::Result(result(&attachments)),
            Err(error) => Outcome::Error(error),
        };
        Ok(Response::new(AddResponse { outcome: Some(outcome) }))
    }

    async fn del(&self, request: Request<DelRequest>) -> Result<Response<DelResponse>, Status> {
        let _in_work = Caller::begin(&request);
        let mut call = self.calls.begin("DEL", request.metadata());
        let request = request.into_inner();
        let what = name("DEL", request.key.as_ref());
        let del = async {
            check_api(request.api)?;
            let key = key(request.key)?;
            self.tell_whose(&mut call, &key);
            Ok(self.engine.detach(key, call.phases()).await?)
        };
        let error = del.await.err().map(|error| report(error, &what));
        call.end(error.as_ref());
        crash::point(Step::DelAnswering);
        Ok(Response::new(DelResponse { error }))
    }

    async fn check(&self, request: Request<CheckRequest>) -> Result<Response<CheckResponse>, Status> {
        let _in_work = Caller::begin(&request);
        let mut call = self.calls.begin("CHECK", request.metadata());
        let request = request.into_inner();
        let what = name("CHECK", request.key.as_ref());
        let check = async {
            check_api(request.api)?;
            let (key, netns) = (key(request.key)?, netns(request.netns)?);
            self.tell_whose(&mut call, &key);
            Ok(self.engine.verify(key, netns, request.previous, call.phases()).await?)
        };
        let error = check.await.err().map(|error| report(error, &what));
        call.end(error.as_ref());
        Ok(Response::new(CheckResponse { error }))
    }

    async fn gc(&self, request: Request<GcRequest>) -> Result<Response<GcResponse>, Status> {
        let _in_work = Caller::begin(&request);
        let mut call = self.calls.begin("GC", request.metadata());
        let GcRequest { api, network, valid } = request.into_inner();
        let gc = async {
            check_api(api)?;
            let of_network = |it: AttachmentKey| key(Some(AttachmentKey { network: network.clone(), ..it }));
            let valid = valid.into_iter().map(of_network).collect::<Result<Vec<_>, _>>()?;
            let network = NetworkName::new(&network)?;
            call.about_network(&network);
            Ok(self.engine.retain(&network, &valid, call.phases()).await?)
        };
        let error = gc.await.err().map(|error| report(error, "GC"));
        call.end(error.as_ref());
        Ok(Response::new(GcResponse { error }))
    }

    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let _in_work = Caller::begin(&request);
        let call = self.calls.begin("STATUS", request.metadata());
        let error = match check_api(request.into_inner().api) {
            Ok(()) => status::error(&self.health.troubles()),
            Err(error) => Some(error.into_proto("STATUS")),
        };
        // Runtimes ask every few seconds: the components say it once, when it changes.
        call.end(error.as_ref());
        Ok(Response::new(StatusResponse { error }))
    }
}

// === impl CniService ===

impl CniService {
    /// Whose attachment a call is about that does not say it.
    fn tell_whose(&self, call: &mut Call<'_>, key: &Key) {
        call.about(key);
        if let Some(attachment) = call.is_traced().then(|| self.engine.registry.get(key)).flatten() {
            call.of_pod(&attachment.pod);
        }
    }
}

fn check_api(caller: Option<ApiRange>) -> Result<(), CallError> {
    let caller = caller.ok_or(CallError::Missing("range of API versions"))?;
    if caller.meets(&API) { Ok(()) } else { Err(CallError::Api(caller)) }
}

fn key(key: Option<AttachmentKey>) -> Result<Key, CallError> {
    let key = key.ok_or(CallError::Missing("key"))?;
    Ok(Key {
        network: NetworkName::new(&key.network)?,
        container_id: ContainerId::new(&key.container_id)?,
        ifname: IfName::new(&key.ifname)?,
    })
}

fn netns(path: String) -> Result<PathBuf, CallError> {
    let path = PathBuf::from(path);
    if path.is_absolute() {
        Ok(path)
    } else {
        Err(CallError::Missing("absolute path of a network namespace"))
    }
}

/// The call in words. What the caller sent is shown only as far as it is well-formed.
fn name(verb: &str, of: Option<&AttachmentKey>) -> String {
    of.cloned()
        .and_then(|of| key(Some(of)).ok())
        .map_or_else(|| verb.to_owned(), |key| format!("{verb} of {key}"))
}

fn report(error: CallError, what: &str) -> Error {
    let error = error.into_proto(what);
    warn(&error);
    error
}

fn warn(error: &Error) {
    tracing::warn!(code = error.code, "{}", error.message);
}

/// All interfaces, the host's end of each before the pod's.
fn result(attachments: &[Attachment]) -> AddResult {
    let mut result = AddResult::default();
    for Attachment { key, vif, host, netns, .. } in attachments {
        let host_end = Interface {
            name: host.device().map(|device| device.ifname.clone()).unwrap_or_default(),
            mac: Mac(GATEWAY_MAC).to_string(),
            mtu: vif.mtu,
            sandbox: String::new(),
        };
        let pod_end = Interface {
            name: key.ifname.to_string(),
            mac: vif.mac.to_string(),
            mtu: vif.mtu,
            sandbox: netns.to_string_lossy().into_owned(),
        };
        let interface = u32::try_from(result.interfaces.len() + 1).unwrap_or_default();
        result.interfaces.extend([host_end, pod_end]);
        result.ips.extend(vif.addresses.iter().map(|address| {
            let gateway = vif.gateway_for(address, GATEWAY).to_string();
            Ip { address: IpNet::from(address).to_string(), gateway, interface }
        }));
        let routes = vif.all_routes(GATEWAY).into_iter();
        result.routes.extend(routes.map(|route| Route {
            dst: route.dst.to_string(),
            gw: route.gateway.to_string(),
            mtu: route.mtu.unwrap_or_default(),
            advmss: route.advmss.unwrap_or_default(),
            priority: route.priority.unwrap_or_default(),
        }));
    }
    result
}

fn annotations_of(told: ferrule_proto::cni::Annotations) -> Annotations {
    let mut values = told.values;
    Annotations {
        ferrule: values.remove(annotations::VIF),
        kuryr: values.remove(annotations::KURYR_VIF),
        config_source: values.remove(annotations::CONFIG_SOURCE),
    }
}
