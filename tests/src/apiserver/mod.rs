//! An API server for tests: the semantics of the Kubernetes API server on etcd, for the resources that the
//! agent uses, with fault injection.
//!
//! The server speaks HTTP, so that real clients, including `kubectl`, work. Left out: TLS, admission, field
//! validation beyond names, and everything that controllers do.

use std::{
    collections::HashMap,
    fs,
    net::{SocketAddr, TcpListener},
    path::Path,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::Context as _;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

mod connections;
mod control;
mod core;
mod discovery;
mod faults;
mod http;
mod list;
mod log;
mod meta;
mod object;
pub mod objects;
mod params;
mod resource;
mod reviews;
mod selector;
mod server;
mod status;
mod store;
mod watch;
mod write;

pub use faults::{Garbage, Refusal, Switch, Which};
pub use log::Request;
pub use resource::Resource;
pub use status::Status;
pub use store::History;

use self::core::Core;
use faults::lock;
use object::Key;
use server::Order;
use write::{Part, PatchType};

/// Configuration of a server.
#[derive(Debug, Clone)]
pub struct Options {
    /// Address to listen on; port 0 selects a free port.
    pub listen: SocketAddr,
    /// The accepted bearer tokens. None: requests need no token.
    pub tokens: Option<Vec<String>>,
    /// Whether the KuryrPort resource is installed.
    pub kuryr: bool,
    /// Whether the ClusterNetworkPolicy resource is installed.
    pub cluster_policies: bool,
    /// Whether `sendInitialEvents` is supported.
    pub watch_list: bool,
    /// Interval of bookmarks on a watch.
    pub bookmark_interval: Duration,
    /// Number of changes in the history.
    pub history_limit: usize,
    /// Maximum time for which a watch with a hundred pending events may read none of them, before its
    /// connection closes.
    pub slow_watch_limit: Duration,
}

/// A running server; dropping it stops it.
///
/// The methods do not wait for clients and work from any thread. The server listens in the network namespace
/// of the thread that started it. Unlike HTTP clients, the methods can write an object together with its
/// status, and choose its `uid`.
#[derive(Debug)]
pub struct ApiServer {
    core: Arc<Core>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

/// Timeout of a restart.
const RESTART_LIMIT: Duration = Duration::from_secs(10);

// === impl Options ===

impl Default for Options {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            tokens: None,
            kuryr: true,
            cluster_policies: false,
            watch_list: true,
            bookmark_interval: Duration::from_secs(60),
            history_limit: 100_000,
            slow_watch_limit: Duration::from_secs(2),
        }
    }
}

// === impl ApiServer ===

impl ApiServer {
    /// Starts a server with the namespaces of a new cluster.
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub fn start(options: Options) -> anyhow::Result<Self> {
        let listen = options.listen;
        let listener = TcpListener::bind(listen).with_context(|| format!("cannot listen on {listen}"))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (orders, receiver) = mpsc::unbounded_channel();
        let core = Arc::new(Core::new(options, orders));
        let mut server = Self { core, address, thread: None };
        for name in ["default", "kube-system"] {
            server.create(Resource::Namespaces, objects::namespace(name))?;
        }

        let core = Arc::clone(&server.core);
        let listener = {
            let _on_this = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let run = move || runtime.block_on(server::run(core, listener, address, receiver));
        server.thread = Some(thread::Builder::new().name("apiserver".to_owned()).spawn(run)?);
        Ok(server)
    }

    /// `http://<address>`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Writes a kubeconfig file for this server.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn kubeconfig(&self, path: &Path, token: Option<&str>) -> anyhow::Result<()> {
        let user = token.map_or_else(|| json!({}), |token| json!({ "token": token }));
        // JSON is a subset of YAML.
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "test", "cluster": { "server": self.url() } }],
            "users": [{ "name": "test", "user": user }],
            "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "test" } }],
            "current-context": "test",
        });
        fs::write(path, format!("{config:#}\n")).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Creates an object, in the namespace that it names or in `default`, and returns the stored object.
    ///
    /// # Errors
    /// If the object exists already or has no name.
    pub fn create(&self, resource: Resource, object: Value) -> Result<Value, Status> {
        let namespace = namespace_of(&object);
        self.core.write(|store| write::create(store, resource.stored(), &namespace, object, Part::Whole))
    }

    /// Replaces an object.
    ///
    /// # Errors
    /// If the object does not exist, or its `resourceVersion` is stale.
    pub fn update(&self, resource: Resource, object: Value) -> Result<Value, Status> {
        let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        let key = Key::new(resource, &namespace_of(&object), name);
        self.core.write(|store| write::update(store, resource.stored(), &key, object, Part::Whole))
    }

    /// Applies a merge patch.
    ///
    /// # Errors
    /// If the object does not exist.
    pub fn patch(
        &self,
        resource: Resource,
        namespace: &str,
        name: &str,
        patch: Value,
    ) -> Result<Value, Status> {
        let key = Key::new(resource, namespace, name);
        let (endpoint, kind) = (resource.stored(), PatchType::Merge);
        self.core.write(|store| write::patch(store, endpoint, &key, patch, kind, Part::Whole))
    }

    /// Deletes an object: at once or, with finalizers, once they are removed.
    ///
    /// # Errors
    /// If the object does not exist.
    pub fn delete(&self, resource: Resource, namespace: &str, name: &str) -> Result<Value, Status> {
        self.delete_with(resource, namespace, name, &json!({}))
    }

    /// Starts to terminate a pod. A second delete without a grace period removes the pod.
    ///
    /// # Errors
    /// If the pod does not exist.
    pub fn terminate(&self, namespace: &str, name: &str, grace_seconds: u64) -> Result<Value, Status> {
        self.delete_with(Resource::Pods, namespace, name, &json!({ "gracePeriodSeconds": grace_seconds }))
    }

    #[must_use]
    pub fn get(&self, resource: Resource, namespace: &str, name: &str) -> Option<Value> {
        let key = Key::new(resource, namespace, name);
        lock(&self.core.store).get(&key).map(|object| object.value())
    }

    #[must_use]
    pub fn list(&self, resource: Resource) -> Vec<Value> {
        let store = lock(&self.core.store);
        store.at(store.version(), resource, None).iter().map(|object| object.value()).collect()
    }

    /// Applies a switch.
    ///
    /// A restart blocks until the server is down or, without a pause, until the server is up again.
    pub fn switch(&self, switch: Switch) {
        if let Some(restart) = control::throw(&self.core, switch) {
            let (done, mut is_done) = oneshot::channel();
            let _stopping = self.core.orders.send(Order::Restart(restart, Some(done)));
            let limit = std::time::Instant::now() + RESTART_LIMIT;
            while is_done.try_recv() == Err(oneshot::error::TryRecvError::Empty)
                && std::time::Instant::now() < limit
            {
                thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// The most recent 10,000 answered requests, oldest first.
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        self.core.log.requests()
    }

    pub fn clear_requests(&self) {
        self.core.log.clear();
    }

    /// The number of open watches of each resource that has any.
    #[must_use]
    pub fn open_watches(&self) -> HashMap<Resource, usize> {
        self.core.faults.open_watches()
    }

    /// The current resourceVersion.
    #[must_use]
    pub fn resource_version(&self) -> u64 {
        lock(&self.core.store).version()
    }

    /// Total bytes of response bodies.
    #[must_use]
    pub fn bytes_served(&self) -> u64 {
        self.core.log.total_bytes()
    }

    /// Stops the server; all connections are closed on return.
    pub fn stop(self) {
        drop(self);
    }

    fn delete_with(
        &self,
        resource: Resource,
        namespace: &str,
        name: &str,
        options: &Value,
    ) -> Result<Value, Status> {
        let key = Key::new(resource, namespace, name);
        self.core.write(|store| write::delete(store, resource.stored(), &key, options))
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        let _already = self.core.orders.send(Order::Stop);
        // A thread that panicked has stopped as well.
        let _stopped = self.thread.take().map(JoinHandle::join);
    }
}

fn namespace_of(object: &Value) -> String {
    object.pointer("/metadata/namespace").and_then(Value::as_str).unwrap_or("default").to_owned()
}
