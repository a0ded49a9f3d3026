//! Starts the server of metrics beyond the node, if there is to be one.

use std::sync::Arc;

use super::{api_server::ApiServer, tasks::Tasks};
use crate::{
    config::Config,
    metrics::Metrics,
    observe::scrape::{Certificate, Guard, Scrapes},
};

/// # Errors
/// If the certificate cannot be used, or the address is in use or not this node's.
pub(super) async fn serve(
    config: &Config,
    api: Option<&ApiServer<'_>>,
    metrics: &Metrics,
    tasks: &mut Tasks,
) -> anyhow::Result<()> {
    let (Some(listener), Some(api)) = (&config.metrics, api) else { return Ok(()) };
    let certificate = match listener.certificate.clone() {
        Some((chain, key)) => Certificate::of_files(chain, key)?,
        None => Certificate::self_signed(&api.config.node_name)?.0,
    };
    let guard = Guard::new(Arc::clone(&api.client));
    let scrapes = Scrapes::listen(listener.address, certificate, guard, metrics.clone()).await?;
    tasks.spawn("metrics", scrapes.serve());
    tracing::info!(address = %listener.address, "serving metrics to clients that the API server allows");
    Ok(())
}
