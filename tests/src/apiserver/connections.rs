//! Open connections, so that faults can break them.

use std::{
    collections::BTreeMap,
    os::fd::AsFd as _,
    sync::{Arc, Mutex},
};

use hyper::service::service_fn;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
};
use nix::sys::socket::{setsockopt, sockopt::Linger};
use tokio::{net::TcpStream, sync::mpsc};

use super::{core::Core, faults::lock, http};

/// Handle that closes one connection.
#[derive(Debug, Clone)]
pub(super) struct Killer(mpsc::Sender<bool>);

/// All open connections.
#[derive(Debug, Default)]
pub(super) struct Connections(Mutex<(u64, BTreeMap<u64, Killer>)>);

// === impl Killer ===

impl Killer {
    /// Closes the connection, with a TCP reset or in order.
    pub fn kill(&self, reset: bool) {
        // A full queue means that the connection is already closing.
        let _full_or_gone = self.0.try_send(reset);
    }
}

// === impl Connections ===

impl Connections {
    pub fn kill_all(&self, reset: bool) {
        lock(&self.0).1.values().for_each(|killer| killer.kill(reset));
    }

    fn enter(&self, killer: Killer) -> u64 {
        let mut connections = lock(&self.0);
        connections.0 += 1;
        let id = connections.0;
        connections.1.insert(id, killer);
        id
    }

    fn leave(&self, id: u64) {
        lock(&self.0).1.remove(&id);
    }
}

/// Serves a connection until it ends or is killed.
pub(super) async fn serve(core: Arc<Core>, stream: TcpStream) {
    let (sender, mut killed) = mpsc::channel(1);
    let killer = Killer(sender);
    let id = core.connections.enter(killer.clone());
    // A second descriptor for the socket, because hyper owns the first one.
    let socket = stream.as_fd().try_clone_to_owned();
    let _as_it_is = stream.set_nodelay(true);
    let service = service_fn(|request| http::serve(Arc::clone(&core), killer.clone(), request));
    let builder = Builder::new(TokioExecutor::new());
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        // Polled first, so that a killed connection cannot end in order.
        biased;
        reset = killed.recv() => {
            if let (Some(true), Ok(socket)) = (reset, &socket) {
                let at_once = nix::libc::linger { l_onoff: 1, l_linger: 0 };
                let _as_it_is = setsockopt(socket, Linger, &at_once);
            }
        }
        // A client may hang up; that is not an error.
        _ = connection => {}
    }
    core.connections.leave(id);
}
