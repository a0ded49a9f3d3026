//! A list of plugins, executed as libcni executes one.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::{Map, Value};

use crate::{dist, pod::Pod, runtime::Runtime};

/// A network configuration list, and what a runtime gives to its plugins.
#[derive(Debug, Clone)]
pub struct Chain {
    version: String,
    plugins: Vec<Value>,
    /// By capability: each plugin gets those that it declares.
    capabilities: Map<String, Value>,
    /// What the last ADD gave: CHECK and DEL of every plugin get it.
    result: Option<Value>,
}

/// The network's name.
const NAME: &str = "cluster";
/// Where Debian puts the reference plugins.
const REFERENCE: &str = "/usr/lib/cni";

// === impl Chain ===

impl Chain {
    /// A list of these plugins, each with its part of the configuration.
    pub fn new(version: &str, plugins: impl IntoIterator<Item = Value>) -> Self {
        Self {
            version: version.to_owned(),
            plugins: plugins.into_iter().collect(),
            capabilities: Map::new(),
            result: None,
        }
    }

    /// The same list, for which the runtime has something to hand over.
    pub fn with(mut self, capability: &str, value: Value) -> Self {
        self.capabilities.insert(capability.to_owned(), value);
        self
    }

    /// ADD of one plugin after the other, each with the result of the one before.
    ///
    /// # Errors
    /// A [`crate::runtime::CniError`] of the first that refuses. As with libcni, those before it are not undone: that is
    /// what the runtime's DEL is for.
    pub fn add(&mut self, pod: &Pod) -> anyhow::Result<Value> {
        let mut result = None;
        for plugin in &self.plugins {
            let answer = self.runtime(plugin, result.as_ref())?.call("ADD", pod)?.into_result();
            result = Some(answer.with_context(|| format!("ADD of {plugin}"))?);
        }
        self.result = result;
        self.result.clone().context("a list without a plugin")
    }

    /// CHECK of one plugin after the other, each with the result of the whole list. Debian's `portmap` is left out: with both
    /// families usable it looks in each for the rules of the other.
    ///
    /// # Errors
    /// A [`crate::runtime::CniError`] of the first that refuses.
    pub fn check(&self, pod: &Pod) -> anyhow::Result<()> {
        for plugin in self.plugins.iter().filter(|it| it.get("type") != Some(&"portmap".into())) {
            let answer = self.runtime(plugin, self.result.as_ref())?.call("CHECK", pod)?.into_result();
            answer.with_context(|| format!("CHECK of {plugin}"))?;
        }
        Ok(())
    }

    /// DEL of one plugin after the other, the last one first.
    ///
    /// # Errors
    /// A [`crate::runtime::CniError`] of the first that refuses.
    pub fn del(&mut self, pod: &Pod) -> anyhow::Result<()> {
        for plugin in self.plugins.iter().rev() {
            // Before 0.4.0 there was no result for a DEL.
            let result = self.result.as_ref().filter(|_| !self.version.starts_with("0.3"));
            let answer = self.runtime(plugin, result)?.call("DEL", pod)?.into_result();
            answer.with_context(|| format!("DEL of {plugin}"))?;
        }
        self.result = None;
        Ok(())
    }

    /// The result that CHECK and DEL will get.
    pub fn result(&mut self) -> &mut Option<Value> {
        &mut self.result
    }

    fn runtime(&self, plugin: &Value, result: Option<&Value>) -> anyhow::Result<Runtime> {
        let kind = plugin.get("type").and_then(Value::as_str).context("a plugin without a type")?;
        let path: PathBuf = match kind {
            "ferrule" => dist::binary(kind)?,
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
