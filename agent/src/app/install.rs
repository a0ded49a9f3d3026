//! Installation on the node: the shim at start, the CNI configuration once the agent is ready.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep},
};

use super::tasks::Tasks;
use crate::{
    backoff::{Backoff, Policy},
    chain::chain,
    config::Config,
    health::{Health, Reporter},
    install::Install,
};

const BACKOFF: Policy = Policy::new(Duration::from_secs(1), Duration::from_secs(60));

/// Installs the shim now and starts a task that installs the configuration, if directories are configured.
/// The health component lives as long as the returned reporter.
///
/// # Errors
/// If the shim cannot be installed.
pub(super) async fn install(
    config: &Config,
    health: &Health,
    tasks: &mut Tasks,
) -> anyhow::Result<Option<Arc<Reporter>>> {
    let Some(dirs) = &config.install else { return Ok(None) };
    let install =
        Install { bin_dir: dirs.bin.clone(), conf_dir: dirs.conf.clone(), socket: config.socket.clone() };
    let shim = install.clone();
    spawn_blocking(move || shim.shim()).await?.context("cannot install the CNI plugin")?;
    tracing::info!(directory = %install.bin_dir.display(), "installed the CNI plugin");
    let reporter = health.component("install", false, "waiting for the agent to become ready");
    let reporter = Arc::new(reporter);
    tasks.spawn_until_done("install", configure(install, health.clone(), Arc::clone(&reporter)));
    Ok(Some(reporter))
}

/// Waits for readiness first: a runtime that finds the configuration calls the shim.
async fn configure(install: Install, health: Health, reporter: Arc<Reporter>) {
    health.until_ready().await;
    let mut backoff = Backoff::new(BACKOFF);
    loop {
        let now = install.clone();
        let why = match spawn_blocking(move || now.conflist()).await {
            Ok(Ok(())) => break,
            Ok(Err(error)) => chain(&error),
            Err(panic) => panic.to_string(),
        };
        reporter.unhealthy(format!("{why}; retrying"));
        sleep(backoff.next(Instant::now())).await;
    }
    let directory = install.conf_dir.display();
    tracing::info!(%directory, "installed the CNI configuration");
    reporter.healthy(format!("installed the CNI plugin and its configuration, in {directory}"));
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::health::State;

    #[tokio::test(start_paused = true)]
    async fn the_configuration_is_installed_once_ready_and_failures_are_reported_and_retried() {
        let dir = tempfile::tempdir().unwrap();
        let conf_dir = dir.path().join("net.d");
        fs::write(&conf_dir, "a file where the directory should be").unwrap();
        let install = Install {
            bin_dir: dir.path().join("bin"),
            conf_dir: conf_dir.clone(),
            socket: "/run/a.sock".into(),
        };
        let health = Health::default();
        let needed = health.component("ranges", true, "");
        let reporter = Arc::new(health.component("install", false, ""));
        let task = tokio::spawn(configure(install, health.clone(), Arc::clone(&reporter)));
        sleep(Duration::from_secs(600)).await;
        assert_eq!(reporter.state(), Some(State::Starting), "not ready yet");
        needed.healthy("");
        sleep(Duration::from_secs(600)).await;
        assert_eq!(reporter.state(), Some(State::Unhealthy));
        assert!(health.is_ready() && health.components()["install"].why.contains("net.d"));
        fs::remove_file(&conf_dir).unwrap();
        task.await.unwrap();
        assert_eq!(reporter.state(), Some(State::Healthy));
        assert_eq!(fs::read_dir(&conf_dir).unwrap().count(), 1);
    }
}
