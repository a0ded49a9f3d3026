//! The server of metrics beyond the node, if there is to be one. A node works without.

use std::{sync::Arc, thread, time::Duration};

use anyhow::Context as _;
use tokio::time::sleep;

use super::api_server::ApiServer;
use crate::{
    api::Api,
    config::{Config, MetricsListener},
    health::{Health, Reporter},
    metrics::Metrics,
    observe::scrape::{Certificate, Guard, Scrapes},
};

/// Between two attempts to listen.
const RETRY: Duration = Duration::from_secs(30);

/// Starts the server, on a thread of its own: TLS for strangers must not take time from calls.
///
/// # Errors
/// If the kernel refuses the thread.
pub(super) fn start(
    config: &Config,
    api: Option<&ApiServer<'_>>,
    health: &Health,
    metrics: &Metrics,
) -> anyhow::Result<()> {
    let (Some(listener), Some(api)) = (config.metrics.clone(), api) else { return Ok(()) };
    let health = health.component("metrics", false, "not listening yet");
    // A client of its own: a connection is driven by the thread that has opened it, and the watches must not
    // wait for this one.
    let client = Arc::new(Api::new(api.config.kubeconfig.clone()));
    let (name, metrics) = (api.config.node_name.clone(), metrics.clone());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let serve = move || runtime.block_on(serve(listener, name, client, metrics, health));
    thread::Builder::new().name("scrapes".to_owned()).spawn(serve).context("cannot start a thread")?;
    Ok(())
}

async fn serve(listener: MetricsListener, name: String, api: Arc<Api>, metrics: Metrics, health: Reporter) {
    loop {
        match listen(&listener, &name, &api, &metrics).await {
            Ok(scrapes) => {
                health.healthy(format!("listening on {}", listener.address));
                scrapes.serve().await;
            }
            Err(error) => health.unhealthy(format!("{error:#}; trying again every {} s", RETRY.as_secs())),
        }
        sleep(RETRY).await;
    }
}

async fn listen(
    listener: &MetricsListener,
    name: &str,
    api: &Arc<Api>,
    metrics: &Metrics,
) -> anyhow::Result<Scrapes> {
    let certificate = match listener.certificate.clone() {
        Some((chain, key)) => Certificate::of_files(chain, key)?,
        None => Certificate::self_signed(name)?.0,
    };
    let guard = Guard::new(Arc::clone(api));
    Ok(Scrapes::listen(listener.address, certificate, guard, metrics.clone()).await?)
}
