//! A container runtime, as far as a CNI plugin can tell.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use crate::{
    dist,
    pod::{NAMESPACE, Pod},
    sys,
};

/// Executes a CNI plugin by the specification: environment, standard input, standard output.
#[derive(Debug, Clone)]
pub struct Runtime {
    plugin: PathBuf,
    config: Value,
    pub ifname: String,
}

/// What a plugin answered.
#[derive(Debug)]
pub struct Answer {
    pub status: ExitStatus,
    /// `null` if it printed nothing.
    pub json: Value,
}

/// Where results are kept between ADD and DEL, as libcni keeps them in `/var/lib/cni`. A node's `/run` is its own.
const RESULTS: &str = "/run/cni-results";

/// A CNI error as it was printed.
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

    /// The same runtime with another plugin and its configuration.
    pub fn with_plugin(plugin: PathBuf, config: Value) -> Self {
        Self { plugin, config, ifname: "eth0".to_owned() }
    }

    /// The same runtime with a key of the network configuration set.
    pub fn with(mut self, key: &str, value: Value) -> Self {
        if let Some(config) = self.config.as_object_mut() {
            config.insert(key.to_owned(), value);
        }
        self
    }

    /// ADD.
    ///
    /// # Errors
    /// A [`CniError`], if the plugin refuses.
    pub fn add(&self, pod: &Pod) -> anyhow::Result<Value> {
        let result = self.call("ADD", pod)?.into_result()?;
        fs::create_dir_all(RESULTS)?;
        fs::write(self.kept(pod), result.to_string()).context("cannot keep the result")?;
        Ok(result)
    }

    /// DEL, with the ADD's result if there is one.
    ///
    /// # Errors
    /// A [`CniError`], if the plugin refuses.
    pub fn del(&self, pod: &Pod) -> anyhow::Result<()> {
        self.after_add(pod).call("DEL", pod)?.into_result()?;
        // There may have been no ADD.
        let _ = fs::remove_file(self.kept(pod));
        Ok(())
    }

    /// CHECK, with the ADD's result if there is one.
    ///
    /// # Errors
    /// A [`CniError`], if the plugin refuses.
    pub fn check(&self, pod: &Pod) -> anyhow::Result<()> {
        self.after_add(pod).call("CHECK", pod)?.into_result().map(drop)
    }

    /// The same runtime with the result of a pod's ADD in the network configuration, if there is one.
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

    /// STATUS, which is of no pod.
    ///
    /// # Errors
    /// If the plugin cannot be run or prints what is not JSON.
    pub fn status(&self) -> anyhow::Result<Answer> {
        let path = self.plugin.parent().map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
        let environment = [("CNI_COMMAND".to_owned(), "STATUS".to_owned()), ("CNI_PATH".to_owned(), path)];
        self.call_with(&environment, self.config.to_string().as_bytes())
    }

    /// Any verb, with the environment of a pod.
    ///
    /// # Errors
    /// If the plugin cannot be run or prints what is not JSON.
    pub fn call(&self, verb: &str, pod: &Pod) -> anyhow::Result<Answer> {
        self.call_with(&self.environment(verb, pod), self.config.to_string().as_bytes())
    }

    /// The environment that a kubelet's runtime would give.
    pub fn environment(&self, verb: &str, pod: &Pod) -> Vec<(String, String)> {
        let args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={NAMESPACE};K8S_POD_NAME={};K8S_POD_INFRA_CONTAINER_ID={};K8S_POD_UID={}",
            pod.name, pod.container_id, pod.uid
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
            // Reference plugins look for others by it.
            ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin".to_owned()),
        ];
        pairs.map(|(key, value)| (key.to_owned(), value)).into()
    }

    /// Any environment and any standard input.
    ///
    /// # Errors
    /// If the plugin cannot be run or prints what is not JSON.
    pub fn call_with(&self, environment: &[(String, String)], stdin: &[u8]) -> anyhow::Result<Answer> {
        let mut command = Command::new(&self.plugin);
        command.env_clear().envs(environment.iter().cloned());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = sys::die_with_parent(&mut command)
            .spawn()
            .with_context(|| format!("cannot run {}", self.plugin.display()))?;
        if let Some(mut pipe) = child.stdin.take() {
            // A plugin that refuses the environment need not read on.
            let _ = pipe.write_all(stdin);
        }
        let output = child.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let json = if text.trim().is_empty() {
            Value::Null
        } else {
            serde_json::from_str(&text)
                .with_context(|| format!("the plugin printed what is not JSON: {text}"))?
        };
        Ok(Answer { status: output.status, json })
    }

    /// The network configuration.
    pub fn config(&self) -> &Value {
        &self.config
    }
}

// === impl Answer ===

impl Answer {
    /// The result of a call that should succeed.
    ///
    /// # Errors
    /// A [`CniError`], if the plugin refused.
    pub fn into_result(self) -> anyhow::Result<Value> {
        if self.status.success() { Ok(self.json) } else { Err(self.into_error()?.into()) }
    }

    /// The error of a call that should fail.
    ///
    /// # Errors
    /// If it succeeded, or failed without an error as the specification has it.
    pub fn into_error(self) -> anyhow::Result<CniError> {
        let text = |key| self.json.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        match self.json.get("code").and_then(Value::as_u64) {
            Some(code) if self.status.code() == Some(1) && code > 0 => {
                Ok(CniError { code, msg: text("msg"), details: text("details") })
            }
            _ => bail!("the plugin should have failed with a CNI error, but: {}, {}", self.status, self.json),
        }
    }
}
