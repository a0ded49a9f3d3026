//! The registry survives loss and corruption of its store: the agent rebuilds attachments from the kernel.

mod damage;
mod full_disk;
mod layout;
mod ownership;
mod rebuild;
mod record;
mod running;

use std::{
    collections::BTreeMap,
    fs,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use ferrule_tests::{
    cluster::with_cluster,
    node::{NODE_V4, Node, POD_V4, POD_V6, on_node, with_agent},
    pod::Pod,
    sys,
};
use serde_json::Value;

const STORE: &str = "/run/ferrule/attachments";
const LIMIT: Duration = Duration::from_secs(20);

/// A ping and a TCP connection between two pods, to detect interruptions.
struct Traffic {
    ping: Child,
    client: TcpStream,
    server: TcpStream,
}

impl Traffic {
    fn begin(from: &Pod, to: &Pod) -> anyhow::Result<Self> {
        let address = *to.addresses.first().context("not attached")?;
        let listener = sys::in_netns(to.path(), || Ok(TcpListener::bind((address, 0))?))?;
        let at = listener.local_addr()?;
        let client = sys::in_netns(from.path(), || Ok(TcpStream::connect_timeout(&at, LIMIT)?))?;
        let (server, _) = listener.accept()?;
        for end in [&client, &server] {
            end.set_read_timeout(Some(LIMIT))?;
        }
        let mut command = from.command("ping")?;
        command.args(["-n", "-q", "-i", "0.005", &address.to_string()]).stdout(Stdio::piped());
        let mut traffic = Self { ping: sys::die_with_parent(&mut command).spawn()?, client, server };
        traffic.talk()?;
        Ok(traffic)
    }

    fn talk(&mut self) -> anyhow::Result<()> {
        let mut answer = [0; 4];
        self.client.write_all(b"ping")?;
        self.server.read_exact(&mut answer).context("the server received nothing")?;
        self.server.write_all(&answer)?;
        self.client.read_exact(&mut answer).context("the client received no reply")
    }

    /// Requires that no ping was lost and that the connection still works.
    fn end(mut self) -> anyhow::Result<()> {
        self.talk()?;
        nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(self.ping.id().cast_signed()),
            nix::sys::signal::Signal::SIGINT,
        )?;
        let output = self.ping.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(text.contains(" 0% packet loss"), "{text}");
        Ok(())
    }
}

/// All files of the store with their contents.
fn files() -> anyhow::Result<BTreeMap<PathBuf, Vec<u8>>> {
    let entries = fs::read_dir(STORE)?.map(|entry| Ok(entry?.path()));
    let paths = entries.collect::<std::io::Result<Vec<_>>>()?;
    paths.into_iter().map(|path| Ok((path.clone(), fs::read(path)?))).collect()
}

/// The file of a pod's attachment.
fn record_of(pod: &Pod) -> anyhow::Result<PathBuf> {
    let is_it = |path: &Path| path.to_string_lossy().contains(&pod.container_id);
    files()?.into_keys().find(|path| is_it(path)).context("the pod has no record")
}

/// The part of an attachment that must survive a restart.
fn identity(attachments: &[Value]) -> Vec<Value> {
    let keys = [
        "network",
        "container_id",
        "ifname",
        "pod_namespace",
        "pod_name",
        "pod_uid",
        "addresses",
        "mac",
        "mtu",
        "netns",
        "netns_ino",
        "host_ifname",
        "host_ifindex",
    ];
    let of = |it: &Value| keys.iter().map(|key| it.get(*key).cloned().unwrap_or_default()).collect();
    let mut all: Vec<Value> = attachments.iter().map(of).collect();
    all.sort_by_key(Value::to_string);
    all
}

/// CHECK and a repeated ADD find no deviation, and the next pod gets an unused address.
fn lives_on(node: &Node, a: &Pod, b: &Pod) -> anyhow::Result<()> {
    let runtime = node.runtime()?;
    for pod in [a, b] {
        runtime.check(pod)?;
        let mut again = pod.clone();
        again.attached(&runtime.add(pod)?)?;
        ensure!(again.addresses == pod.addresses);
    }
    let new = node.attach("new")?;
    let is_taken = |it: &std::net::IpAddr| a.addresses.contains(it) || b.addresses.contains(it);
    ensure!(!new.addresses.iter().any(is_taken), "{:?}", new.addresses);
    new.ping(&a.addresses.first().context("not attached")?.to_string())?;
    runtime.del(&new)
}
