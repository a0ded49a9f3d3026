//! Installation on the node: the shim at start, the CNI configuration once the agent is ready; and again
//! whenever another program removes or changes them.

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
    install::{Install, InstallError, Watch},
    metrics::InstallMetrics,
};

/// Of failures, and of repairs: another program may undo each of them. A calm hour restarts the series.
const BACKOFF: Policy =
    Policy::new(Duration::from_secs(1), Duration::from_secs(60)).reset_after(Duration::from_secs(3600));
/// After a change, so that several at once cause one look.
const SETTLE: Duration = Duration::from_millis(200);
/// Plugins of other programs that a message names.
const NAMED: usize = 6;

/// A look at the node's directories.
struct Look {
    /// What was missing or changed, and is installed now.
    repaired: Vec<&'static str>,
    /// Another plugin's configuration, which the runtime uses.
    first: Option<String>,
    /// The plugins of other programs in the agent's configuration.
    chained: Vec<String>,
}

/// Installs the shim now and starts a task that installs the configuration and keeps both, if directories are
/// configured. The health component lives as long as the returned reporter.
///
/// # Errors
/// If the shim cannot be installed, and there is none.
pub(super) async fn install(
    config: &Config,
    health: &Health,
    metrics: &InstallMetrics,
    tasks: &mut Tasks,
) -> anyhow::Result<Option<Arc<Reporter>>> {
    let Some(dirs) = &config.install else { return Ok(None) };
    let install =
        Install { bin_dir: dirs.bin.clone(), conf_dir: dirs.conf.clone(), socket: config.socket.clone() };
    let reporter = health.component("install", false, "waiting for the agent to become ready");
    let reporter = Arc::new(reporter);
    let shim = install.clone();
    match spawn_blocking(move || shim.shim()).await? {
        Ok(_) => tracing::info!(directory = %install.bin_dir.display(), "installed the CNI plugin"),
        Err(error) if install.has_shim() => keeps_another(&reporter, &error),
        Err(error) => return Err(error).context("cannot install the CNI plugin"),
    }
    let keep = keep(install, Install::shim, health.clone(), Arc::clone(&reporter), metrics.clone());
    tasks.spawn("install", keep);
    Ok(Some(reporter))
}

/// Waits for readiness first: a runtime that finds the configuration calls the shim.
async fn keep(
    install: Install,
    shim: fn(&Install) -> Result<bool, InstallError>,
    health: Health,
    reporter: Arc<Reporter>,
    metrics: InstallMetrics,
) {
    health.until_ready().await;
    let mut backoff = Backoff::new(BACKOFF);
    let mut is_installed = false;
    loop {
        // Before the look, so that no change falls between. Fails without a directory; the look creates it.
        let watch = Watch::new(&[&install.bin_dir, &install.conf_dir]);
        let now = install.clone();
        let look = match spawn_blocking(move || look(&now, shim)).await {
            Ok(looked) => looked.map_err(|error| chain(&error)),
            Err(panic) => Err(panic.to_string()),
        };
        let look = match look {
            Ok(look) => look,
            Err(why) => {
                reporter.unhealthy(format!("{why}; retrying"));
                sleep(backoff.next(Instant::now())).await;
                continue;
            }
        };
        if is_installed {
            for what in &look.repaired {
                metrics.repairs.inc();
                tracing::warn!(
                    what,
                    "another program removed or changed an installed file; installed it again"
                );
            }
        } else {
            tracing::info!(directory = %install.conf_dir.display(), "installed the CNI configuration");
        }
        report(&install, &look, &reporter, &metrics);
        if is_installed && !look.repaired.is_empty() {
            sleep(backoff.next(Instant::now())).await;
        } else if let Ok(watch) = watch {
            // An error means that the agent is stopping.
            let _ = watch.changed().await;
            sleep(SETTLE).await;
        } else if is_installed {
            reporter.unhealthy("cannot watch the directories: raise fs.inotify.max_user_instances; retrying");
            sleep(backoff.next(Instant::now())).await;
        }
        is_installed = true;
    }
}

fn look(install: &Install, shim: fn(&Install) -> Result<bool, InstallError>) -> Result<Look, InstallError> {
    let mut repaired = Vec::new();
    let plugin = match shim(install) {
        Err(error) if !install.has_shim() => return Err(error),
        done => done,
    };
    let conflist = install.conflist()?;
    repaired.extend(conflist.is_new.then_some("the CNI configuration"));
    repaired.extend(plugin?.then_some("the CNI plugin"));
    Ok(Look { repaired, first: install.foreign_first()?, chained: conflist.chained })
}

/// A full disk keeps no agent from serving: the shim of another release works, too.
fn keeps_another(reporter: &Reporter, error: &InstallError) {
    let error = chain(error);
    tracing::error!(
        error,
        "cannot install the CNI plugin; the runtime goes on with the one that is installed"
    );
    reporter
        .unhealthy(format!("{error}; the runtime goes on with the CNI plugin that is installed; retrying"));
}

fn report(install: &Install, look: &Look, reporter: &Reporter, metrics: &InstallMetrics) {
    let directory = install.conf_dir.display();
    metrics.overridden.set(i64::from(look.first.is_some()));
    match &look.first {
        None => reporter.healthy(format!(
            "installed the CNI plugin and its configuration, in {directory}{}",
            behind(&look.chained)
        )),
        Some(first) => reporter.unhealthy(format!(
            "the runtime uses {first:?} in {directory}, which sorts before the agent's file and does not call the \
             plugin \"ferrule\": new pods get another network; remove or rename that file, or let its plugin call \
             \"ferrule\", as Multus does by delegates or clusterNetwork"
        )),
    }
}

fn behind(chained: &[String]) -> String {
    if chained.is_empty() {
        return String::new();
    }
    let more = match chained.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let named = chained.iter().take(NAMED).map(|it| format!("{it:?}")).collect::<Vec<_>>().join(", ");
    format!("; behind it run the plugins of other programs: {named}{more}")
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use serde_json::{Value, json};

    use tokio::{task::JoinHandle, time::timeout};

    use super::*;
    use crate::health::State;

    struct Kept {
        dir: tempfile::TempDir,
        health: Health,
        reporter: Arc<Reporter>,
        metrics: InstallMetrics,
        task: JoinHandle<()>,
    }

    /// Writes the shim as [`Install::shim`] does.
    fn shim(install: &Install) -> Result<bool, InstallError> {
        let path = install.bin_dir.join("ferrule");
        fs::create_dir_all(&install.bin_dir).unwrap();
        let is_missing = !path.exists();
        if is_missing {
            fs::write(path, "shim").unwrap();
        }
        Ok(is_missing)
    }

    fn keeping(prepare: impl FnOnce(&Path)) -> Kept {
        let dir = tempfile::tempdir().unwrap();
        prepare(dir.path());
        let (bin_dir, conf_dir) = (dir.path().join("bin"), dir.path().join("net.d"));
        let install = Install { bin_dir, conf_dir, socket: "/run/a.sock".into() };
        let (health, metrics) = (Health::default(), InstallMetrics::default());
        let reporter = Arc::new(health.component("install", false, ""));
        let task = tokio::spawn(keep(install, shim, health.clone(), Arc::clone(&reporter), metrics.clone()));
        Kept { dir, health, reporter, metrics, task }
    }

    async fn until(what: &str, condition: impl Fn() -> bool) {
        let waiting = async {
            while !condition() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        assert!(timeout(Duration::from_secs(30), waiting).await.is_ok(), "{what}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_configuration_is_installed_once_ready_and_failures_are_reported_and_retried() {
        let file = |dir: &Path| fs::write(dir.join("net.d"), "a file where the directory should be").unwrap();
        let dir = tempfile::tempdir().unwrap();
        file(dir.path());
        let (bin_dir, conf_dir) = (dir.path().join("bin"), dir.path().join("net.d"));
        let install = Install { bin_dir, conf_dir: conf_dir.clone(), socket: "/run/a.sock".into() };
        let health = Health::default();
        let needed = health.component("ranges", true, "");
        let reporter = Arc::new(health.component("install", false, ""));
        let task = tokio::spawn(keep(
            install,
            shim,
            health.clone(),
            Arc::clone(&reporter),
            InstallMetrics::default(),
        ));
        sleep(Duration::from_secs(600)).await;
        assert_eq!(reporter.state(), Some(State::Starting), "not ready yet");
        needed.healthy("");
        sleep(Duration::from_secs(600)).await;
        assert_eq!(reporter.state(), Some(State::Unhealthy));
        assert!(health.is_ready() && health.components()["install"].why.contains("net.d"));
        fs::remove_file(&conf_dir).unwrap();
        until("installed", || reporter.state() == Some(State::Healthy)).await;
        assert_eq!(fs::read_dir(&conf_dir).unwrap().count(), 1);
        task.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_shim_that_cannot_be_replaced_is_reported_and_the_configuration_installed() {
        let dir = tempfile::tempdir().unwrap();
        let (bin_dir, conf_dir) = (dir.path().join("bin"), dir.path().join("net.d"));
        let install = Install { bin_dir, conf_dir: conf_dir.clone(), socket: "/run/a.sock".into() };
        let health = Health::default();
        let reporter = Arc::new(health.component("install", false, ""));
        let full = |install: &Install| {
            let path = install.bin_dir.join("ferrule");
            Err(InstallError::Write { what: "write", path, source: std::io::ErrorKind::StorageFull.into() })
        };
        let metrics = InstallMetrics::default();
        let task = tokio::spawn(keep(install.clone(), full, health.clone(), Arc::clone(&reporter), metrics));
        until("reported", || reporter.state() == Some(State::Unhealthy)).await;
        assert!(!conf_dir.exists(), "no runtime must call a plugin that is missing");
        fs::create_dir_all(&install.bin_dir).unwrap();
        fs::write(install.bin_dir.join("ferrule"), "of another release").unwrap();
        assert!(!install.has_shim(), "not executable");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(install.bin_dir.join("ferrule"), mode).unwrap();
        until("the configuration is installed", || conf_dir.join("05-ferrule.conflist").exists()).await;
        sleep(Duration::from_secs(600)).await;
        assert_eq!(reporter.state(), Some(State::Unhealthy));
        let why = health.components()["install"].why.clone();
        assert!(why.contains("bin/ferrule") && why.contains("no storage space"), "{why}");
        task.abort();
    }

    #[tokio::test]
    async fn a_removed_or_changed_file_is_installed_again_and_counted() {
        let kept = keeping(|_| {});
        let (conflist, plugin) =
            (kept.dir.path().join("net.d/05-ferrule.conflist"), kept.dir.path().join("bin/ferrule"));
        until("installed", || kept.reporter.state() == Some(State::Healthy)).await;
        let content = fs::read_to_string(&conflist).unwrap();
        assert_eq!(kept.metrics.repairs.get(), 0, "the first installation is no repair");
        let is_whole = || fs::read_to_string(&conflist).is_ok_and(|it| it == content) && plugin.exists();
        let changes: [&dyn Fn(); 4] = [
            &|| fs::write(&conflist, "{}").unwrap(),
            &|| fs::remove_file(&conflist).unwrap(),
            &|| fs::remove_file(&plugin).unwrap(),
            &|| fs::remove_dir_all(kept.dir.path().join("net.d")).unwrap(),
        ];
        for (number, change) in (1..).zip(changes) {
            change();
            until("the file is whole again", || is_whole() && kept.metrics.repairs.get() >= number).await;
        }
        kept.task.abort();
    }

    #[tokio::test]
    async fn what_other_programs_append_to_the_configuration_stays_and_is_named() {
        let kept = keeping(|_| {});
        let conflist = kept.dir.path().join("net.d/05-ferrule.conflist");
        until("installed", || kept.reporter.state() == Some(State::Healthy)).await;
        let read = || serde_json::from_slice::<Value>(&fs::read(&conflist).unwrap()).unwrap();
        let (original, mesh) = (read(), json!({ "type": "istio-cni", "log_level": "info" }));
        let mut chained = original.clone();
        chained["plugins"].as_array_mut().unwrap().push(mesh);
        let write = |network: &Value| {
            let new = kept.dir.path().join("new");
            fs::write(&new, network.to_string()).unwrap();
            fs::rename(&new, &conflist).unwrap();
        };
        // The installer of a mesh writes the whole file in its own layout.
        write(&chained);
        until("named", || kept.health.components()["install"].why.contains("\"istio-cni\"")).await;
        sleep(3 * SETTLE).await;
        assert_eq!(fs::read_to_string(&conflist).unwrap(), chained.to_string());
        assert_eq!(kept.metrics.repairs.get(), 0);
        let mut damaged = chained.clone();
        damaged["plugins"][0]["capabilities"] = json!({});
        write(&damaged);
        until("repaired", || kept.metrics.repairs.get() == 1).await;
        assert_eq!(read(), chained, "the mesh's entry stays");
        write(&original);
        until("forgotten", || !kept.health.components()["install"].why.contains("istio-cni")).await;
        sleep(3 * SETTLE).await;
        assert_eq!((read(), kept.metrics.repairs.get()), (original, 1), "the mesh is gone");
        kept.task.abort();
    }

    #[tokio::test]
    async fn a_program_that_undoes_every_repair_meets_longer_and_longer_pauses() {
        let kept = keeping(|_| {});
        let conflist = kept.dir.path().join("net.d/05-ferrule.conflist");
        until("installed", || kept.reporter.state() == Some(State::Healthy)).await;
        let end = Instant::now() + Duration::from_millis(2500);
        while Instant::now() < end {
            let _ = fs::remove_file(&conflist);
            sleep(Duration::from_millis(10)).await;
        }
        // At once, after 1 s, and 2 s after that.
        assert!((1..=3).contains(&kept.metrics.repairs.get()), "{}", kept.metrics.repairs.get());
        kept.task.abort();
    }

    #[tokio::test]
    async fn another_plugins_file_that_sorts_before_is_reported_until_it_is_gone() {
        let first = "00-other.conflist";
        let kept = keeping(|dir| {
            fs::create_dir(dir.join("net.d")).unwrap();
            fs::write(dir.join("net.d").join(first), r#"{"plugins":[{"type":"bridge"}]}"#).unwrap();
        });
        until("reported", || kept.reporter.state() == Some(State::Unhealthy)).await;
        let why = kept.health.components()["install"].why.clone();
        assert!(why.contains(first) && why.contains("new pods get another network"), "{why}");
        assert!(kept.health.is_ready(), "an ADD would be served");
        assert_eq!(kept.metrics.overridden.get(), 1);
        fs::remove_file(kept.dir.path().join("net.d").join(first)).unwrap();
        until("healthy", || kept.reporter.state() == Some(State::Healthy)).await;
        assert_eq!(kept.metrics.overridden.get(), 0);
        kept.task.abort();
    }
}
