//! The service `observer.Observer`, for `ferrulectl` and clients of Hubble's API.

use std::{pin::Pin, sync::Arc, time::Instant};

use ferrule_proto::observer::{
    GetFlowsRequest, GetFlowsResponse, ServerStatusRequest, ServerStatusResponse, observer_server::Observer,
};
use futures_util::Stream;
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status};

use super::{
    history::{CAPACITY, History},
    query::Query,
    subscription::Subscription,
};

/// Serves the history.
pub struct ObserverService {
    history: Arc<History>,
    /// The setting of the dataplane: one in so many flows has records.
    flow_sampling: Box<dyn Fn() -> u32 + Send + Sync>,
    /// Empty without Kubernetes.
    node_name: String,
    started: Instant,
    places: Arc<Semaphore>,
}

/// Clients at a time.
const MAX_CLIENTS: usize = 32;

// === impl ObserverService ===

impl ObserverService {
    pub fn new(
        history: Arc<History>,
        flow_sampling: impl Fn() -> u32 + Send + Sync + 'static,
        node_name: String,
    ) -> Self {
        let (flow_sampling, places) = (Box::new(flow_sampling), Arc::new(Semaphore::new(MAX_CLIENTS)));
        Self { history, flow_sampling, node_name, started: Instant::now(), places }
    }
}

#[tonic::async_trait]
impl Observer for ObserverService {
    type GetFlowsStream = Pin<Box<dyn Stream<Item = Result<GetFlowsResponse, Status>> + Send>>;

    async fn get_flows(
        &self,
        request: Request<GetFlowsRequest>,
    ) -> Result<Response<Self::GetFlowsStream>, Status> {
        let query =
            Query::new(&request.into_inner()).map_err(|error| Status::invalid_argument(error.to_string()))?;
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| {
            Status::resource_exhausted(format!(
                "{MAX_CLIENTS} clients get flows already, which is the most: end one of them"
            ))
        })?;
        let history = Arc::clone(&self.history);
        let subscription = Subscription::new(query, history, self.node_name.clone(), place);
        Ok(Response::new(Box::pin(subscription.messages())))
    }

    async fn server_status(
        &self,
        _: Request<ServerStatusRequest>,
    ) -> Result<Response<ServerStatusResponse>, Status> {
        Ok(Response::new(ServerStatusResponse {
            num_flows: self.history.len() as u64,
            max_flows: CAPACITY as u64,
            seen_flows: self.history.end().borrow().position,
            uptime_ns: u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX),
            num_connected_nodes: Some(1),
            num_unavailable_nodes: Some(0),
            unavailable_nodes: Vec::new(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            flow_sampling: (self.flow_sampling)(),
        }))
    }
}
