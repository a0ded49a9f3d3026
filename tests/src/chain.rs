//! A CNI plugin chain, executed as libcni executes it.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::{Map, Value};

use crate::{dist, pod::Pod, runtime::Runtime};

/// A network configuration list and the runtime's capability arguments.
#[derive(Debug, Clone)]
pub struct Chain {
    version: String,
    plugins: Vec<Value>,
    /// The shim, below `target/dist`.
    shim: String,
    /// By capability; a plugin receives those that it declares.
    capabilities: Map<String, Value>,
    /// The last ADD's result, passed to CHECK and DEL of every plugin.
    result: Option<Value>,
}

const NAME: &str = "cluster";
const SHIM: &str = "ferrule";
/// Debian's directory of the reference plugins.
const REFERENCE: &str = "/usr/lib/cni";

// === impl Chain ===

impl Chain {
    /// A chain of these plugin configurations.
    pub fn new(version: &str, plugins: impl IntoIterator<Item = Value>) -> Self {
        Self {
            version: version.to_owned(),
            plugins: plugins.into_iter().collect(),
            shim: SHIM.to_owned(),
            capabilities: Map::new(),
            result: None,
        }
    }

    /// Adds a capability argument (`runtimeConfig`).
    pub fn with(mut self, capability: &str, value: Value) -> Self {
        self.capabilities.insert(capability.to_owned(), value);
        self
    }

    /// Selects another shim of `target/dist` for the plugin `ferrule`, from the next call on.
    pub fn use_shim(&mut self, shim: &str) {
        self.shim = shim.to_owned();
    }

    /// Calls ADD on one plugin after the other, each with the previous plugin's result.
    ///
    /// # Errors
    /// The [`crate::runtime::CniError`] of the first plugin that refuses. As in libcni, the plugins before it
    /// are not rolled back; the runtime's DEL does that.
    pub fn add(&mut self, pod: &Pod) -> anyhow::Result<Value> {
        let mut result = None;
        for plugin in &self.plugins {
            let answer = self.runtime(plugin, result.as_ref())?.call("ADD", pod)?.into_result();
            result = Some(answer.with_context(|| format!("ADD of {plugin}"))?);
        }
        self.result = result;
        self.result.clone().context("the chain has no plugin")
    }

    /// Calls CHECK on one plugin after the other, each with the result of the whole chain. Skips Debian's
    /// `portmap`: with both families usable, it searches each family for the other's rules.
    ///
    /// # Errors
    /// The [`crate::runtime::CniError`] of the first plugin that refuses.
    pub fn check(&self, pod: &Pod) -> anyhow::Result<()> {
        for plugin in self.plugins.iter().filter(|it| it.get("type") != Some(&"portmap".into())) {
            let answer = self.runtime(plugin, self.result.as_ref())?.call("CHECK", pod)?.into_result();
            answer.with_context(|| format!("CHECK of {plugin}"))?;
        }
        Ok(())
    }

    /// Calls DEL on one plugin after the other, in reverse order.
    ///
    /// # Errors
    /// The [`crate::runtime::CniError`] of the first plugin that refuses.
    pub fn del(&mut self, pod: &Pod) -> anyhow::Result<()> {
        for plugin in self.plugins.iter().rev() {
            // CNI versions before 0.4.0 pass no result to DEL.
            let result = self.result.as_ref().filter(|_| !self.version.starts_with("0.3"));
            let answer = self.runtime(plugin, result)?.call("DEL", pod)?.into_result();
            answer.with_context(|| format!("DEL of {plugin}"))?;
        }
        self.result = None;
        Ok(())
    }

    /// The result that CHECK and DEL will receive.
    pub fn result(&mut self) -> &mut Option<Value> {
        &mut self.result
    }

    fn runtime(&self, plugin: &Value, result: Option<&Value>) -> anyhow::Result<Runtime> {
        let kind = plugin.get("type").and_then(Value::as_str).context("the plugin has no type")?;
        let path: PathBuf = match kind {
            SHIM => dist::binary(&self.shim)?,
            _ => Path::new(REFERENCE).join(kind),
        };
        let declares =
            |key: &str| plugin.get("capabilities").and_then(|it| it.get(key)) == Some(&Value::Bool(true));
        let given = self.capabilities.iter().filter(|(key, _)| declares(key));
        let given: Map<String, Value> = given.map(|(key, value)| (key.clone(), value.clone())).collect();
        let mut runtime = Runtime::with_plugin(path, plugin.clone())
            .with("name", NAME.into())
            .with("cniVersion", self.version.as_str().into());
        if let Some(result) = result {
            runtime = runtime.with("prevResult", result.clone());
        }
        if !given.is_empty() {
            runtime = runtime.with("runtimeConfig", given.into());
        }
        Ok(runtime)
    }
}
