//! A node in a cluster with policies: pods in namespaces, and who reaches whom.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    apiserver::{ApiServer, Options, Resource, objects},
    cluster::{Cluster, NODE},
    node::{Node, POD_V4, POD_V6, on_node},
    pod::Pod,
    sys::{self, wait_until},
};
use serde_json::{Value, json};

/// A node with its cluster.
pub(crate) struct Scene<'a> {
    pub(crate) node: &'a mut Node,
    pub(crate) cluster: Cluster,
}

/// Echo servers of a pod, for TCP and UDP; dropping them stops them.
pub(crate) struct Servers {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// A way to reach a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    Tcp(u16),
    Udp(u16),
    Ping,
}

/// For what an agent does within a second, on a loaded machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);
/// How long an answer may take; what is denied gets none.
const ANSWER: Duration = Duration::from_millis(700);
/// The ports of all servers. The first one has the name `http` in the pod's spec.
pub(crate) const PORTS: [u16; 2] = [80, 81];
pub(crate) const WEB: By = By::Tcp(80);

/// Runs `run` on a node with an agent, a cluster without ClusterNetworkPolicies, and the namespaces `web` and
/// `db`, which have the label `team` with their name.
///
/// # Errors
/// The closure's error, or if the agent does not get ready.
pub(crate) fn with_scene<T: Send>(
    run: impl FnOnce(&mut Scene<'_>) -> anyhow::Result<T> + Send,
) -> anyhow::Result<T> {
    with_scene_of(Options::default(), run)
}

/// As [`with_scene`], with another API server.
///
/// # Errors
/// As [`with_scene`].
pub(crate) fn with_scene_of<T: Send>(
    options: Options,
    run: impl FnOnce(&mut Scene<'_>) -> anyhow::Result<T> + Send,
) -> anyhow::Result<T> {
    on_node(|node| {
        let cluster = Cluster::start(options)?;
        cluster.api.create(Resource::Nodes, objects::node(NODE, &[POD_V4, POD_V6]))?;
        make_namespaces(&cluster.api)?;
        cluster.start_agent(node, &[])?;
        wait_until("the agent is ready", TIMEOUT, || Ok(node.http("/readyz")?.0 == 200))?;
        let mut scene = Scene { node, cluster };
        run(&mut scene).map_err(|error| {
            let health = scene.node.http("/readyz?verbose").map(|(_, text)| text).unwrap_or_default();
            let drops = scene.node.ctl(&["drops"]).unwrap_or_else(|error| error.to_string());
            error.context(format!("{health}\n{drops}"))
        })
    })
}

/// Creates the namespaces `web` and `db`.
///
/// # Errors
/// If one exists.
pub(crate) fn make_namespaces(api: &ApiServer) -> anyhow::Result<()> {
    for name in ["web", "db"] {
        api.create(Resource::Namespaces, objects::with_label(objects::namespace(name), "team", name))?;
    }
    Ok(())
}

/// Creates a pod of a namespace in the API, with the label `app` and the named port `http`.
///
/// # Errors
/// If a pod of this name exists.
pub(crate) fn schedule(api: &ApiServer, node: &str, pod: &Pod, app: &str) -> anyhow::Result<()> {
    let [http, _] = PORTS;
    let more = json!({ "metadata": { "uid": pod.uid, "labels": { "app": app } },
        "spec": { "containers": [{ "name": "main", "ports": [{ "name": "http", "containerPort": http }] }] } });
    api.create(Resource::Pods, objects::merged(objects::pod(&pod.namespace, &pod.name, node), &more))?;
    Ok(())
}

/// Whether a pod or a node gets an echo from an address.
///
/// # Errors
/// If a socket cannot be opened.
pub(crate) fn reaches(from: &Path, to: IpAddr, by: By) -> anyhow::Result<bool> {
    let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
    match by {
        By::Tcp(port) => sys::in_netns(from, || {
            let Ok(mut stream) = TcpStream::connect_timeout(&SocketAddr::new(to, port), ANSWER) else {
                return Ok(false);
            };
            stream.set_read_timeout(Some(ANSWER))?;
            let mut heard = [0; 4];
            Ok(stream.write_all(b"echo").is_ok() && stream.read_exact(&mut heard).is_ok())
        }),
        By::Udp(port) => sys::in_netns(from, || {
            let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
            socket.connect(SocketAddr::new(to, port))?;
            socket.set_read_timeout(Some(ANSWER))?;
            let _ = socket.send(b"echo");
            Ok(socket.recv(&mut [0; 4]).is_ok())
        }),
        By::Ping => {
            let ping = format!("-n -c 1 -W 1 {to}");
            Ok(sys::command_in(from, "ping")?.args(ping.split(' ')).output()?.status.success())
        }
    }
}

/// Waits until a pod reaches another one, in both families, or until it does not.
///
/// # Errors
/// If that does not happen.
pub(crate) fn wait_until_reached(from: &Pod, to: &Pod, by: By, is_reached: bool) -> anyhow::Result<()> {
    for address in &to.addresses {
        let what = format!("{} reaches {} ({address}) by {by:?}: {is_reached}", from.name, to.name);
        wait_until(&what, TIMEOUT, || Ok(reaches(from.path(), *address, by)? == is_reached))?;
    }
    Ok(())
}

/// Requires that a pod reaches another one now, in both families, or that it does not.
///
/// # Errors
/// If that is not so.
pub(crate) fn expect(from: &Pod, to: &Pod, by: By, is_reached: bool) -> anyhow::Result<()> {
    for address in &to.addresses {
        let found = reaches(from.path(), *address, by)?;
        ensure!(found == is_reached, "{} reaches {} ({address}) by {by:?}: {found}", from.name, to.name);
    }
    Ok(())
}

// === impl Scene ===

impl Scene<'_> {
    /// Creates and attaches a pod, with servers. `name` is also the label `app`.
    pub(crate) fn pod(&self, namespace: &str, name: &str) -> anyhow::Result<(Pod, Servers)> {
        let mut pod = self.unattached(namespace, name)?;
        let servers = Servers::start(pod.path())?;
        let result = self.node.runtime()?.add(&pod)?;
        pod.attached(&result)?;
        Ok((pod, servers))
    }

    /// Creates a pod that is not attached.
    pub(crate) fn unattached(&self, namespace: &str, name: &str) -> anyhow::Result<Pod> {
        let pod = Pod { namespace: namespace.to_owned(), ..self.node.pod(name)? };
        schedule(&self.cluster.api, NODE, &pod, name)?;
        Ok(pod)
    }

    /// Creates a NetworkPolicy, or replaces its spec.
    pub(crate) fn set_policy(&self, namespace: &str, name: &str, spec: Value) -> anyhow::Result<()> {
        let policy = objects::network_policy(namespace, name, spec);
        let api = &self.cluster.api;
        match api.get(Resource::NetworkPolicies, namespace, name) {
            Some(_) => api.update(Resource::NetworkPolicies, policy)?,
            None => api.create(Resource::NetworkPolicies, policy)?,
        };
        Ok(())
    }

    pub(crate) fn delete_policy(&self, namespace: &str, name: &str) -> anyhow::Result<()> {
        self.cluster.api.delete(Resource::NetworkPolicies, namespace, name)?;
        Ok(())
    }

    /// Sets the label `app` of a pod.
    pub(crate) fn relabel(&self, pod: &Pod, app: &str) -> anyhow::Result<()> {
        let label = json!({ "metadata": { "labels": { "app": app } } });
        self.cluster.api.patch(Resource::Pods, &pod.namespace, &pod.name, label)?;
        Ok(())
    }

    /// Sets the label `team` of a namespace.
    pub(crate) fn relabel_namespace(&self, name: &str, team: &str) -> anyhow::Result<()> {
        let label = json!({ "metadata": { "labels": { "team": team } } });
        self.cluster.api.patch(Resource::Namespaces, "", name, label)?;
        Ok(())
    }

    /// What the health of a component says.
    pub(crate) fn health(&self, component: &str) -> anyhow::Result<String> {
        let (_, text) = self.node.http("/readyz?verbose")?;
        let found = text.lines().find(|it| it.contains(&format!(" {component} (")));
        Ok(found.with_context(|| text.clone())?.to_owned())
    }
}

// === impl Servers ===

impl Servers {
    /// Starts servers on all addresses of a network namespace.
    pub(crate) fn start(at: &Path) -> anyhow::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for port in PORTS {
            let address = SocketAddr::new([0_u16; 8].into(), port);
            let listener = sys::bind_in(at, address, TcpListener::bind)?;
            listener.set_nonblocking(true)?;
            let socket = sys::bind_in(at, address, UdpSocket::bind)?;
            socket.set_read_timeout(Some(Duration::from_millis(50)))?;
            let stopped = Arc::clone(&stop);
            threads.push(thread::spawn(move || serve_tcp(&listener, &stopped)));
            let stopped = Arc::clone(&stop);
            threads.push(thread::spawn(move || serve_udp(&socket, &stopped)));
        }
        Ok(Self { stop, threads })
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|it| drop(it.join()));
    }
}

/// Echoes on all connections, which stay open until the end.
fn serve_tcp(listener: &TcpListener, stop: &AtomicBool) {
    let mut open: Vec<TcpStream> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        if let Ok((stream, _)) = listener.accept()
            && stream.set_nonblocking(true).is_ok()
        {
            open.push(stream);
        }
        open.retain_mut(|stream| {
            let mut room = [0; 1024];
            match stream.read(&mut room) {
                Ok(0) => false,
                Ok(len) => stream.write_all(room.get(..len).unwrap_or_default()).is_ok(),
                Err(error) => error.kind() == ErrorKind::WouldBlock,
            }
        });
        thread::sleep(Duration::from_millis(2));
    }
}

fn serve_udp(socket: &UdpSocket, stop: &AtomicBool) {
    let mut room = [0; 1024];
    while !stop.load(Ordering::Relaxed) {
        if let Ok((len, from)) = socket.recv_from(&mut room) {
            let _ = socket.send_to(room.get(..len).unwrap_or_default(), from);
        }
    }
}
