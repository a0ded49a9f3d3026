//! The demo's API server, a separate process that can be killed, and a client for it.
//!
//! A file takes the role of etcd: the objects and the version at the time of the kill.

use std::{
    env, fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    apiserver::{ApiServer, History, Options, Resource, Switch, objects},
    cluster::{KUBECONFIG, NODE},
    pod::{NAMESPACE, Pod, VIF},
    sys,
};
use serde_json::{Value, json};

/// The API server's process.
pub(crate) struct Api {
    process: Child,
}

const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 6443);
const KEPT: &str = "/run/etcd.json";
const TIMEOUT: Duration = Duration::from_secs(5);

/// Runs the API server until it is killed. Saved objects are restored; their history is compacted.
///
/// # Errors
/// If the server cannot listen, or the saved state cannot be read.
pub(crate) fn serve(kept: &Path) -> anyhow::Result<()> {
    let server = ApiServer::start(Options { listen: LISTEN, ..Options::default() })?;
    server.kubeconfig(Path::new(KUBECONFIG), None)?;
    if kept.exists() {
        let kept: Value = serde_json::from_slice(&fs::read(kept)?)?;
        for (resource, list) in [(Resource::Nodes, "nodes"), (Resource::Pods, "pods")] {
            for object in kept.get(list).and_then(Value::as_array).into_iter().flatten() {
                server.create(resource, object.clone())?;
            }
        }
        let version = kept.get("version").and_then(Value::as_u64).unwrap_or_default();
        for turn in server.resource_version()..=version {
            let label = json!({ "metadata": { "labels": { "turn": turn.to_string() } } });
            server.patch(Resource::Namespaces, "", "default", label)?;
        }
        // A client that connected before the restore sees nothing of it.
        server.switch(Switch::Restart { pause_ms: 0, history: History::Compacted });
    }
    println!("{}", server.url());
    loop {
        thread::park();
    }
}

// === impl Api ===

impl Api {
    /// Starts the process and waits until it serves the saved state.
    ///
    /// # Errors
    /// If the process exits.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let mut command = Command::new(env::current_exe()?);
        command.arg("--api-server").arg(KEPT).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process =
            sys::die_with_parent(&mut command).spawn().context("cannot start the API server")?;
        let mut url = String::new();
        if let Some(stdout) = process.stdout.take() {
            BufReader::new(stdout).read_line(&mut url)?;
        }
        ensure!(!url.is_empty(), "the API server exited");
        Ok(Self { process })
    }

    /// Kills the API server by SIGKILL, and saves its objects except one pod, as if that pod had been deleted
    /// during the outage.
    ///
    /// # Errors
    /// If the process was not running.
    pub(crate) fn kill(mut self, deleted: &Pod) -> anyhow::Result<()> {
        let list = |path: &str| -> anyhow::Result<Value> { request("GET", path, None) };
        let (mut pods, mut nodes) = (list("/api/v1/pods")?, list("/api/v1/nodes")?);
        self.process.kill()?;
        self.process.wait()?;
        let version = pods.pointer("/metadata/resourceVersion").and_then(Value::as_str).unwrap_or_default();
        let version: u64 = version.parse()?;
        let items = |list: &mut Value| list.get_mut("items").map(Value::take).unwrap_or_default();
        let (mut pods, nodes) = (items(&mut pods), items(&mut nodes));
        if let Some(pods) = pods.as_array_mut() {
            pods.retain(|pod| pod.pointer("/metadata/uid") != Some(&json!(deleted.uid)));
        }
        let kept = json!({ "version": version, "nodes": nodes, "pods": pods });
        Ok(fs::write(PathBuf::from(KEPT), kept.to_string())?)
    }

    /// Creates a Node without pod CIDRs.
    ///
    /// # Errors
    /// If the server refuses.
    pub(crate) fn create_node(&self) -> anyhow::Result<()> {
        let mut node = objects::node(NODE, &[]);
        node.as_object_mut().context("the node is not an object")?.remove("spec");
        request("POST", "/api/v1/nodes", Some(&node)).map(drop)
    }

    /// Sets the Node's pod CIDRs.
    ///
    /// # Errors
    /// If the server refuses.
    pub(crate) fn give_ranges(&self, ranges: &[&str]) -> anyhow::Result<()> {
        let spec = json!({ "spec": { "podCIDR": ranges.first(), "podCIDRs": ranges } });
        request("PATCH", &format!("/api/v1/nodes/{NODE}"), Some(&spec)).map(drop)
    }

    /// Creates a pod on the node, optionally annotated with a VIF, and stores the assigned UID in `pod`.
    ///
    /// # Errors
    /// If the server refuses.
    pub(crate) fn create(&self, pod: &mut Pod, vif: Option<&str>) -> anyhow::Result<()> {
        let object = objects::pod(NAMESPACE, &pod.name, NODE);
        let object = vif.map_or(object.clone(), |vif| objects::with_annotation(object, VIF, vif));
        let made = request("POST", &format!("/api/v1/namespaces/{NAMESPACE}/pods"), Some(&object))?;
        let uid =
            made.pointer("/metadata/uid").and_then(Value::as_str).context("the created pod has no UID")?;
        uid.clone_into(&mut pod.uid);
        Ok(())
    }

    /// Annotates a pod with a VIF.
    ///
    /// # Errors
    /// If the server refuses.
    pub(crate) fn annotate(&self, pod: &Pod, vif: &str) -> anyhow::Result<()> {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{}", pod.name);
        request("PATCH", &path, Some(&objects::annotation(VIF, vif))).map(drop)
    }

    /// Reason and note of each pod event.
    ///
    /// # Errors
    /// If the server does not answer.
    pub(crate) fn events(&self) -> anyhow::Result<Vec<(String, String)>> {
        let list = request("GET", "/api/v1/events", None)?;
        let events = list.get("items").and_then(Value::as_array).into_iter().flatten();
        let text = |event: &Value, key| event.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        Ok(events.map(|event| (text(event, "reason"), text(event, "message"))).collect())
    }
}

/// Sends one request, on a connection of its own.
fn request(method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
    let body = body.map(Value::to_string).unwrap_or_default();
    let mut stream =
        TcpStream::connect_timeout(&LISTEN, TIMEOUT).context("cannot connect to the API server")?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: api\r\nConnection: close\r\n\
         Content-Type: application/{}\r\nContent-Length: {}\r\n\r\n{body}",
        if method == "PATCH" { "merge-patch+json" } else { "json" },
        body.len()
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("the response has no header")?;
    ensure!(head.starts_with("HTTP/1.1 2"), "{method} {path} failed: {body}");
    Ok(serde_json::from_str(body)?)
}
