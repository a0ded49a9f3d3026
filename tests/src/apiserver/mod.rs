//! An API server for tests: the semantics of Kubernetes' own over etcd, for the few resources that an agent uses,
//! and switches to break it in every way that a real one breaks.
//!
//! It speaks real HTTP, so that real clients can be run against it, `kubectl` too. What is left out: TLS, admission,
//! field validation beyond names, and all that only controllers do.

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

/// How a server starts.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where it listens; port 0 is any that is free.
    pub listen: SocketAddr,
    /// The bearer tokens that are good. None: nobody is asked for one.
    pub tokens: Option<Vec<String>>,
    /// Whether the KuryrPort resource is installed.
    pub kuryr: bool,
    /// Whether `sendInitialEvents` is understood.
    pub watch_list: bool,
    /// How often a watch gets a bookmark.
    pub bookmark_interval: Duration,
    /// Changes that are remembered.
    pub history_limit: usize,
    /// How long a watch may take none of its events while a hundred of them wait; then its connection is closed.
    pub slow_watch_limit: Duration,
}

/// A running server. It stops when it is dropped.
///
/// Its methods do not wait for clients and can be called from any thread; it listens in the network namespace of the
/// thread that started it. They write as nobody can over HTTP: an object's status together with the rest, and with
/// the `uid` that it has already.
#[derive(Debug)]
pub struct ApiServer {
    core: Arc<Core>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

/// A restart that takes longer has failed.
const RESTART_LIMIT: Duration = Duration::from_secs(10);

// === impl Options ===

impl Default for Options {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            tokens: None,
            kuryr: true,
            watch_list: true,
            bookmark_interval: Duration::from_secs(60),
            history_limit: 100_000,
            slow_watch_limit: Duration::from_secs(2),
        }
    }
}

// === impl ApiServer ===

impl ApiServer {
    /// Starts a server, with the namespaces of a new cluster.
    ///
    /// # Errors
    /// If it cannot listen.
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

    /// `http://` and the address.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Where it listens.
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
        // JSON is YAML.
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

    /// Creates an object, in the namespace that it names, or in `default`; gives it as it is stored.
    ///
    /// # Errors
    /// If it is there already, or has no name.
    pub fn create(&self, resource: Resource, object: Value) -> Result<Value, Status> {
        let namespace = namespace_of(&object);
        self.core.write(|store| write::create(store, resource.stored(), &namespace, object, Part::Whole))
    }

    /// Replaces an object.
    ///
    /// # Errors
    /// If it is not there, or has a `resourceVersion` that is not the current one.
    pub fn update(&self, resource: Resource, object: Value) -> Result<Value, Status> {
        let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        let key = Key::new(resource, &namespace_of(&object), name);
        self.core.write(|store| write::update(store, resource.stored(), &key, object, Part::Whole))
    }

    /// Merges a patch into an object.
    ///
    /// # Errors
    /// If the object is not there.
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

    /// Deletes an object: at once, or, if it has finalizers, when they are gone.
    ///
    /// # Errors
    /// If the object is not there.
    pub fn delete(&self, resource: Resource, namespace: &str, name: &str) -> Result<Value, Status> {
        self.delete_with(resource, namespace, name, &json!({}))
    }

    /// Starts to terminate a pod: it is gone when it is deleted again without a grace period.
    ///
    /// # Errors
    /// If the pod is not there.
    pub fn terminate(&self, namespace: &str, name: &str, grace_seconds: u64) -> Result<Value, Status> {
        self.delete_with(Resource::Pods, namespace, name, &json!({ "gracePeriodSeconds": grace_seconds }))
    }

    /// An object, if it is there.
    #[must_use]
    pub fn get(&self, resource: Resource, namespace: &str, name: &str) -> Option<Value> {
        let key = Key::new(resource, namespace, name);
        lock(&self.core.store).get(&key).map(|object| object.value())
    }

    /// All objects of a resource.
    #[must_use]
    pub fn list(&self, resource: Resource) -> Vec<Value> {
        let store = lock(&self.core.store);
        store.at(store.version(), resource, None).iter().map(|object| object.value()).collect()
    }

    /// Throws a switch.
    ///
    /// A restart is waited for: until the server is down; or, without a pause, until it is up again.
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

    /// The requests that have been answered, the oldest first; the newest ten thousand.
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        self.core.log.requests()
    }

    /// Forgets the requests so far.
    pub fn clear_requests(&self) {
        self.core.log.clear();
    }

    /// How many watches are open, for each resource that has any.
    #[must_use]
    pub fn open_watches(&self) -> HashMap<Resource, usize> {
        self.core.faults.open_watches()
    }

    /// The current version.
    #[must_use]
    pub fn resource_version(&self) -> u64 {
        lock(&self.core.store).version()
    }

    /// Bytes of all answers' bodies.
    #[must_use]
    pub fn bytes_served(&self) -> u64 {
        self.core.log.total_bytes()
    }

    /// Stops the server; all connections are closed when this returns.
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
        // One that panicked has stopped as well.
        let _stopped = self.thread.take().map(JoinHandle::join);
    }
}

fn namespace_of(object: &Value) -> String {
    object.pointer("/metadata/namespace").and_then(Value::as_str).unwrap_or("default").to_owned()
}
