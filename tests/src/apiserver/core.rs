//! State shared by all requests.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::sync::{mpsc, watch};

use super::{
    Options,
    connections::Connections,
    faults::{Faults, lock},
    log::Log,
    resource::Resource,
    server::Order,
    status::Status,
    store::{History, Store},
};

/// The server without its listener.
#[derive(Debug)]
pub(super) struct Core {
    pub options: Options,
    pub store: Mutex<Store>,
    /// The newest version.
    pub head: watch::Sender<u64>,
    pub settings: Mutex<Settings>,
    pub faults: Arc<Faults>,
    pub log: Log,
    pub connections: Connections,
    pub orders: mpsc::UnboundedSender<Order>,
}

/// Settings that change at run time, other than faults.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub tokens: Option<Vec<String>>,
    pub denied: Vec<(Resource, Option<String>)>,
    pub kuryr: bool,
    pub cluster_policies: bool,
    /// The version of ClusterNetworkPolicies, if it is another one.
    pub cluster_policies_as: Option<String>,
    pub watch_list: bool,
    pub gone_at_opening: bool,
    pub bookmark_interval: Duration,
}

// === impl Core ===

impl Core {
    pub fn new(options: Options, orders: mpsc::UnboundedSender<Order>) -> Self {
        let store = Store::new(options.history_limit);
        let settings = Settings {
            tokens: options.tokens.clone(),
            denied: Vec::new(),
            kuryr: options.kuryr,
            cluster_policies: options.cluster_policies,
            cluster_policies_as: None,
            watch_list: options.watch_list,
            gone_at_opening: false,
            bookmark_interval: options.bookmark_interval,
        };
        Self {
            head: watch::Sender::new(store.version()),
            store: Mutex::new(store),
            settings: Mutex::new(settings),
            faults: Arc::new(Faults::new()),
            log: Log::new(),
            connections: Connections::default(),
            orders,
            options,
        }
    }

    pub fn settings(&self) -> Settings {
        lock(&self.settings).clone()
    }

    /// Applies the effect of a restart to the store.
    pub fn restart(&self, history: History) {
        let mut store = lock(&self.store);
        store.restart(history);
        self.head.send_replace(store.version());
    }

    /// Changes the store and wakes the watches.
    pub fn write<T>(&self, change: impl FnOnce(&mut Store) -> Result<T, Status>) -> Result<T, Status> {
        let mut store = lock(&self.store);
        let result = change(&mut store);
        let version = store.version();
        drop(store);
        self.head.send_replace(version);
        result
    }
}
