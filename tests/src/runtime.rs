//! A container runtime as a CNI plugin sees it.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    thread::{self, JoinHandle},
};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use crate::{dist, pod::Pod, sys};

/// Executes a CNI plugin as the specification requires: environment, standard input, standard output.
#[derive(Debug, Clone)]
pub struct Runtime {
    plugin: PathBuf,
    config: Value,
    pub ifname: String,
}

/// Exit status and output of a plugin.
#[derive(Debug)]
pub struct Answer {
    pub status: ExitStatus,
    /// `null` if the plugin printed nothing.
    pub json: Value,
}

/// Results between ADD and DEL, as libcni caches them in `/var/lib/cni`. Every node has a `/run` of its own.
const RESULTS: &str = "/run/cni-results";

/// A call that runs on a thread of its own.
pub struct Background<T>(JoinHandle<anyhow::Result<T>>);

/// A CNI error as the plugin printed it.
#[derive(Debug, thiserror::Error)]
#[error("CNI error {code}: {msg} ({details})")]
pub struct CniError {
    pub code: u64,
    pub msg: String,
    pub details: String,
}

// === impl Runtime ===

impl Runtime {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let config = json!({ "cniVersion": "1.1.0", "name": "cluster", "type": "ferrule" });
        Ok(Self { plugin: dist::binary("ferrule")?, config, ifname: "eth0".to_owned() })
    }

    /// A runtime that executes another plugin with its own network configuration.
    pub fn with_plugin(plugin: PathBuf, config: Value) -> Self {
        Self { plugin, config, ifname: "eth0".to_owned() }
    }

    /// Sets one key of the network configuration.
    pub fn with(mut self, key: &str, value: Value) -> Self {
        if let Some(config) = self.config.as_object_mut() {
            config.insert(key.to_owned(), value);
        }
        self
    }

    /// Calls ADD and caches the result.
    ///
    /// # Errors
    /// A [`CniError`], if the plugin refuses.
    pub fn add(&self, pod: &Pod) -> anyhow::Result<Value> {
        let result = self.call("ADD", pod)?.into_result()?;
        fs::create_dir_all(RESULTS)?;
        fs::write(self.kept(pod), result.to_string()).context("cannot cache the result")?;
        Ok(result)
    }

    /// Calls DEL, with the cached ADD result if there is one.
    ///
    /// # Errors
    /// A [`CniError`], if the plugin refuses.
    pub fn del(&self, pod: &Pod) -> anyhow::Result<()> {
        self.after_add(pod).call("DEL", pod)?.into_result()?;
        // The file is missing if ADD was never called.
        let _ = fs::remove_file(self.kept(pod));
        Ok(())
    }

    /// Calls CHECK, with the cached ADD result if there is one.
    ///
    /// # Errors
    /// A [`CniError`], if the plugin refuses.
    pub fn check(&self, pod: &Pod) -> anyhow::Result<()> {
        self.after_add(pod).call("CHECK", pod)?.into_result().map(drop)
    }

    /// Adds the cached ADD result to the network configuration as `prevResult`, if there is one.
    pub fn after_add(&self, pod: &Pod) -> Self {
        let kept = fs::read_to_string(self.kept(pod)).ok();
        match kept.and_then(|kept| serde_json::from_str(&kept).ok()) {
            Some(result) if self.config.get("prevResult").is_none() => {
                self.clone().with("prevResult", result)
            }
            _ => self.clone(),
        }
    }

    fn kept(&self, pod: &Pod) -> PathBuf {
        let network = self.config.get("name").and_then(Value::as_str).unwrap_or_default();
        Path::new(RESULTS).join(format!("{network}-{}-{}", pod.container_id, self.ifname))
    }

    /// Calls STATUS, which takes no pod.
    ///
    /// # Errors
    /// If the plugin cannot be executed or prints invalid JSON.
    pub fn status(&self) -> anyhow::Result<Answer> {
        let path = self.plugin.parent().map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
        let environment = [("CNI_COMMAND".to_owned(), "STATUS".to_owned()), ("CNI_PATH".to_owned(), path)];
        self.call_with(&environment, self.config.to_string().as_bytes())
    }

    /// Calls any verb with a pod's environment.
    ///
    /// # Errors
    /// If the plugin cannot be executed or prints invalid JSON.
    pub fn call(&self, verb: &str, pod: &Pod) -> anyhow::Result<Answer> {
        self.call_with(&self.environment(verb, pod), self.config.to_string().as_bytes())
    }

    /// Starts a call on a thread of its own.
    pub fn in_background<T: Send + 'static>(
        &self,
        pod: &Pod,
        call: impl FnOnce(&Self, &Pod) -> anyhow::Result<T> + Send + 'static,
    ) -> Background<T> {
        let (runtime, pod) = (self.clone(), pod.clone());
        Background(thread::spawn(move || call(&runtime, &pod)))
    }

    /// The environment that the runtime of a kubelet sets.
    pub fn environment(&self, verb: &str, pod: &Pod) -> Vec<(String, String)> {
        let args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={};K8S_POD_NAME={};K8S_POD_INFRA_CONTAINER_ID={};K8S_POD_UID={}",
            pod.namespace, pod.name, pod.container_id, pod.uid
        );
        let netns = pod.netns.to_string_lossy().into_owned();
        let pairs = [
            ("CNI_COMMAND", verb.to_owned()),
            ("CNI_CONTAINERID", pod.container_id.clone()),
            ("CNI_NETNS", netns),
            ("CNI_IFNAME", self.ifname.clone()),
            ("CNI_ARGS", args),
            (
                "CNI_PATH",
                self.plugin.parent().map(|path| path.to_string_lossy().into_owned()).unwrap_or_default(),
            ),
            // Reference plugins search `PATH` for other programs.
            ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin".to_owned()),
        ];
        pairs.map(|(key, value)| (key.to_owned(), value)).into()
    }

    /// Executes the plugin with an arbitrary environment and standard input.
    ///
    /// # Errors
    /// If the plugin cannot be executed or prints invalid JSON.
    pub fn call_with(&self, environment: &[(String, String)], stdin: &[u8]) -> anyhow::Result<Answer> {
        let mut command = Command::new(&self.plugin);
        command.env_clear().envs(environment.iter().cloned());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = sys::die_with_parent(&mut command)
            .spawn()
            .with_context(|| format!("cannot run {}", self.plugin.display()))?;
        if let Some(mut pipe) = child.stdin.take() {
            // A plugin that rejects its environment may exit without reading its input.
            let _ = pipe.write_all(stdin);
        }
        let output = child.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let json = if text.trim().is_empty() {
            Value::Null
        } else {
            serde_json::from_str(&text).with_context(|| format!("the plugin printed invalid JSON: {text}"))?
        };
        Ok(Answer { status: output.status, json })
    }

    pub fn config(&self) -> &Value {
        &self.config
    }
}

// === impl Background ===

impl<T> Background<T> {
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }

    /// Waits for the call.
    ///
    /// # Errors
    /// The call's error, or if the call panicked.
    pub fn join(self) -> anyhow::Result<T> {
        self.0.join().map_err(|_| anyhow::anyhow!("the call panicked"))?
    }
}

// === impl Answer ===

impl Answer {
    /// The result of a call that is expected to succeed.
    ///
    /// # Errors
    /// A [`CniError`], if the plugin refused.
    pub fn into_result(self) -> anyhow::Result<Value> {
        if self.status.success() { Ok(self.json) } else { Err(self.into_error()?.into()) }
    }

    /// The error of a call that is expected to fail.
    ///
    /// # Errors
    /// If the plugin succeeded, or failed without printing a CNI error.
    pub fn into_error(self) -> anyhow::Result<CniError> {
        let text = |key| self.json.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        match self.json.get("code").and_then(Value::as_u64) {
            Some(code) if self.status.code() == Some(1) && code > 0 => {
                Ok(CniError { code, msg: text("msg"), details: text("details") })
            }
            _ => bail!("expected a CNI error, found {}, {}", self.status, self.json),
        }
    }
}
