//! Removes everything that agents leave on a node.
//!
//! The order keeps the runtime from calling a plugin that works no longer: its configuration goes first. What
//! is gone already is no error, so that a removal that failed can be repeated.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, anyhow};
use tokio::{task::spawn_blocking, time::timeout};

use super::signals::StopSignals;
use crate::{
    api::Api,
    config::{Kubernetes, Places},
    dataplane,
    install::Install,
    nodes,
    plug::{
        netlink::Socket,
        nft::{host_ports_table, masquerade_table},
        nodes::{route, rule, tunnel, uplink_filter},
        range_route, veth,
    },
    server::NodeLock,
};

/// What agents, present and former, keep in the directory of the durable stores.
const STORES: [&str; 3] = ["attachments", "registry.redb", "watch"];
/// What agents and shims keep beside the socket.
const BESIDE_SOCKET: [&str; 4] = ["agent.lock", "deferred", "deferred.lock", "deferred.turn"];

/// For the API server, which a node that is being removed may not reach.
const PATIENCE: Duration = Duration::from_secs(10);

/// Removes everything, and then waits for a signal if it is to `stay`. With an API server, also what agents
/// have said of this node there; a failure of that is logged only, because nothing on the node depends on it.
///
/// # Errors
/// If an agent is running, or if something cannot be removed; everything else is removed then.
pub async fn uninstall(places: Places, kubernetes: Option<Kubernetes>, stay: bool) -> anyhow::Result<()> {
    let mut signals = StopSignals::new().context("cannot handle signals")?;
    let lock = NodeLock::take().context("cannot remove what a running agent needs: stop the agent")?;
    if let Some(kubernetes) = kubernetes {
        // First: the way to the API server may be one of the routes that go.
        retract(kubernetes).await;
    }
    let callers = spawn_blocking(move || remove(&places)).await??;
    for file in &callers {
        tracing::warn!(
            ?file,
            "the runtime may go on calling the CNI plugin, which is gone: this configuration is another's, and names \
             the plugin; remove or change it"
        );
    }
    if callers.is_empty() {
        tracing::info!("nothing of the agent is left on this node");
    }
    if stay {
        let signal = signals.next().await;
        tracing::info!(signal, "stopping");
    }
    drop(lock);
    Ok(())
}

async fn retract(Kubernetes { node_name, kubeconfig, .. }: Kubernetes) {
    let api = Api::new(kubeconfig);
    let retracted = match timeout(PATIENCE, nodes::retract(&api, &node_name)).await {
        Ok(retracted) => retracted.map_err(anyhow::Error::from),
        Err(_) => Err(anyhow!("the API server has not answered within {PATIENCE:?}")),
    };
    match retracted {
        Ok(false) => {}
        Ok(true) => tracing::info!(what = "the condition of the Node", number = 1, "removed"),
        Err(error) => {
            let error = format!("{error:#}");
            tracing::warn!(
                node = node_name,
                error,
                "the Node keeps the condition NetworkUnavailable, if it has it"
            );
        }
    }
}

/// Returns the configurations of others that call the plugin.
fn remove(places: &Places) -> anyhow::Result<Vec<PathBuf>> {
    let mut done = Done::default();
    let installed = places.install.as_ref().map(|dirs| Install {
        bin_dir: dirs.bin.clone(),
        conf_dir: dirs.conf.clone(),
        socket: places.socket.clone(),
    });
    if let Some(installed) = &installed {
        done.note("the CNI configuration", installed.remove_conflist().map(usize::from));
    }
    done.note("interfaces of pods", veth::delete_all());
    done.note("the table of nftables", masquerade_table::remove().map(usize::from));
    done.note("the table of pods' ports", host_ports_table::delete().map(usize::from));
    done.note("routes to other nodes", node_routes());
    done.note("unreachable routes", range_route::keep(&[]).map(|_| 0));
    done.note(
        "the tunnel",
        Socket::open().map_err(Into::into).and_then(|mut it| tunnel::remove(&mut it)).map(usize::from),
    );
    done.note("filters of uplinks", Socket::open().and_then(|mut it| uplink_filter::remove(&mut it)));
    done.note("pinned maps", dataplane::remove_pins(&places.bpf_dir).map(usize::from));
    if let Some(installed) = &installed {
        done.note("the CNI plugin", installed.remove_shim().map(usize::from));
    }
    // Last: a plugin that was called before may have written there.
    done.note("state", state(places));
    let callers = installed.map(|it| it.callers()).transpose();
    match (done.0, callers) {
        (Some(error), _) => Err(error),
        (None, callers) => Ok(callers?.unwrap_or_default()),
    }
}

fn node_routes() -> anyhow::Result<usize> {
    let mut host = Socket::open()?;
    rule::keep(&mut host, &[].into())?;
    let changes = route::diff(&route::Routes::new(), &route::list(&mut host)?);
    route::apply(&mut host, &changes)?;
    Ok(changes.len())
}

/// Removes what agents and shims have written, and their directories if there is nothing else.
fn state(places: &Places) -> anyhow::Result<usize> {
    let beside = places.socket.parent().unwrap_or(Path::new("/"));
    let written = STORES.map(|name| places.state_dir.join(name)).into_iter();
    let written = written.chain(BESIDE_SOCKET.map(|name| beside.join(name))).chain([places.socket.clone()]);
    let mut removed = 0;
    for path in written {
        removed += usize::from(erase(&path).with_context(|| format!("cannot remove {path:?}"))?);
    }
    for directory in [places.state_dir.as_path(), beside] {
        match fs::remove_dir(directory) {
            Ok(()) => {}
            Err(error) if is_kept(&error) => {}
            Err(error) => return Err(error).with_context(|| format!("cannot remove {directory:?}")),
        }
    }
    Ok(removed)
}

/// Removes a file or a directory. Returns whether there was one.
fn erase(path: &PathBuf) -> io::Result<bool> {
    let is_directory = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        found => found?.is_dir(),
    };
    if is_directory {
        fs::remove_dir_all(path)?
    } else {
        fs::remove_file(path)?
    }
    Ok(true)
}

/// Whether a directory is gone already, has files of others, or is a mount, as in a container.
fn is_kept(error: &io::Error) -> bool {
    use io::ErrorKind::{DirectoryNotEmpty, NotFound, ReadOnlyFilesystem, ResourceBusy};
    matches!(error.kind(), NotFound | DirectoryNotEmpty | ResourceBusy | ReadOnlyFilesystem)
}

/// The first failure.
#[derive(Default)]
struct Done(Option<anyhow::Error>);

// === impl Done ===

impl Done {
    fn note(&mut self, what: &'static str, result: Result<usize, impl Into<anyhow::Error>>) {
        match result {
            Ok(0) => {}
            Ok(number) => tracing::info!(what, number, "removed"),
            Err(error) => {
                let error = error.into().context(format!("cannot remove {what}"));
                tracing::error!(error = format!("{error:#}"), "the removal goes on");
                self.0.get_or_insert(error);
            }
        }
    }
}
