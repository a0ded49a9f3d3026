//! A measured path: from a client in one network namespace to a server in another.

use std::{
    net::{IpAddr, SocketAddr},
    path::{Path as File, PathBuf},
};

use ferrule_tests::pod::Pod;

#[derive(Debug, Clone)]
pub(crate) struct Path {
    name: &'static str,
    pub(crate) client: PathBuf,
    pub(crate) server: PathBuf,
    /// Where the server listens.
    pub(crate) listen: SocketAddr,
    /// What the client calls: another address than the server's, if the node translates.
    pub(crate) call: SocketAddr,
}

const PORT: u16 = 5201;

// === impl Path ===

impl Path {
    /// Between two pods.
    pub(crate) fn new(name: &'static str, client: &Pod, server: &Pod, address: IpAddr) -> Self {
        Self::between(name, client.path(), server.path(), address)
    }

    /// Between two network namespaces.
    pub(crate) fn between(name: &'static str, client: &File, server: &File, address: IpAddr) -> Self {
        let listen = SocketAddr::new(address, PORT);
        Self { name, client: client.into(), server: server.into(), listen, call: listen }
    }

    /// The path if the client calls another address than the one where the server listens.
    pub(crate) fn translated(self, call: SocketAddr, listen: SocketAddr) -> Self {
        Self { call, listen, ..self }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }
}
