//! Policies, pods, namespaces, nodes and Services of files, compiled as an agent does.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
};

use anyhow::{Context as _, bail};
use ferrule_policy::{Capacities, Change, Compiler, Table, object};
use ferrule_proto::quoted::Quoted;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::{
    manifest,
    table::{plain, pod},
};

/// What files contain.
pub(super) struct Loaded {
    pub compiler: Compiler,
    /// What was ignored or assumed.
    pub notes: Vec<String>,
    /// What was not understood of policies.
    pub problems: Vec<String>,
}

/// Objects, as changes.
#[derive(Default)]
pub(super) struct Objects {
    changes: Vec<Change>,
    /// Of pods and policies.
    mentioned: BTreeSet<String>,
    namespaces: BTreeSet<String>,
    ignored: BTreeMap<String, usize>,
}

/// Bytes of a file: 30,000 pods in YAML take about 150 MiB.
const MAX_BYTES: usize = 512 << 20;
/// The label that the API server gives each namespace.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";
/// No map limits what files may contain.
const UNLIMITED: Capacities = Capacities {
    peers: usize::MAX,
    blocks: usize::MAX,
    rulesets: usize::MAX,
    rules: usize::MAX,
    named: usize::MAX,
    ports: usize::MAX,
    endpoints: usize::MAX,
    matches: Capacities::MATCHES,
};

/// Reads and compiles files. Of two objects of the same name, the last counts.
pub(super) fn load(files: &[PathBuf]) -> anyhow::Result<Loaded> {
    let mut objects = Objects::default();
    for file in files {
        let text = manifest::read(file, MAX_BYTES)?;
        objects.add_all(&text).with_context(|| format!("cannot decode {}", file.display()))?;
    }
    objects.compile()
}

// === impl Objects ===

impl Objects {
    pub(super) fn add_all(&mut self, text: &str) -> anyhow::Result<()> {
        let documents = if manifest::is_json(text) {
            vec![serde_json::from_str(text).context("the input is not JSON")?]
        } else {
            manifest::yaml(text, MAX_BYTES)?
        };
        // An empty document is `null`.
        documents.into_iter().filter(|it| !it.is_null()).try_for_each(|it| self.add(it, ""))
    }

    /// `listed`: the kind of the items of a list, which they may lack.
    fn add(&mut self, mut object: Value, listed: &str) -> anyhow::Result<()> {
        let text = |field| object.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (kind, version) = (text("kind"), text("apiVersion"));
        let kind = if kind.is_empty() { listed.to_owned() } else { kind };
        if let Some(of) = kind.strip_suffix("List")
            && let Some(Value::Array(items)) = object.get_mut("items").map(Value::take)
        {
            return items.into_iter().try_for_each(|item| self.add(item, of));
        }
        let group = version.split_once('/').map_or("", |(group, _)| group);
        match (kind.as_str(), group) {
            ("", _) => bail!("found an object without kind, expected one such as a NetworkPolicy or a Pod"),
            ("Pod", "") => self.add_pod(object),
            ("Namespace", "") => self.add_namespace(object),
            ("Node", "") => {
                named(&mut object, "Node", None)?;
                self.changes.push(Change::Node(decode(&object)?));
                Ok(())
            }
            ("Service", "") => {
                named(&mut object, "Service", Some("default"))?;
                self.changes.push(Change::Service(decode(&object)?));
                Ok(())
            }
            ("NetworkPolicy", "networking.k8s.io" | "") => {
                self.mentioned.insert(named(&mut object, "NetworkPolicy", Some("default"))?);
                self.changes.push(Change::Policy(Arc::new(object::network_policy(&decode(&object)?))));
                Ok(())
            }
            ("ClusterNetworkPolicy", "policy.networking.k8s.io" | "") => {
                named(&mut object, "ClusterNetworkPolicy", None)?;
                self.changes
                    .push(Change::Policy(Arc::new(object::cluster_network_policy(&decode(&object)?)?)));
                Ok(())
            }
            (kind, _) if kind.contains("NetworkPolicy") => bail!(
                "found a {} of {}, expected a NetworkPolicy of networking.k8s.io/v1 or a ClusterNetworkPolicy \
                 of policy.networking.k8s.io: Ferrule enforces no others",
                plain(kind),
                Quoted(&version)
            ),
            (kind, _) => {
                *self.ignored.entry(plain(kind)).or_default() += 1;
                Ok(())
            }
        }
    }

    fn add_pod(&mut self, mut object: Value) -> anyhow::Result<()> {
        self.mentioned.insert(named(&mut object, "Pod", Some("default"))?);
        self.changes.push(Change::Pod(Arc::new(decode(&object)?)));
        Ok(())
    }

    fn add_namespace(&mut self, mut object: Value) -> anyhow::Result<()> {
        named(&mut object, "Namespace", None)?;
        let mut namespace: Box<object::Namespace> = decode(&object)?;
        let name = namespace.metadata.name.clone();
        namespace.metadata.labels.insert(NAME_LABEL, &name);
        self.namespaces.insert(name);
        self.changes.push(Change::Namespace(namespace));
        Ok(())
    }

    pub(super) fn compile(mut self) -> anyhow::Result<Loaded> {
        let mut notes = Vec::new();
        for (kind, count) in &self.ignored {
            notes.push(format!("ignored {count} of kind {kind}: policies do not depend on them"));
        }
        let assumed: Vec<_> = self.mentioned.difference(&self.namespaces).cloned().collect();
        for name in assumed {
            notes.push(format!(
                "the namespace {} is not in the files: assumed with the label {NAME_LABEL} only",
                plain(&name)
            ));
            self.add_namespace(json!({"metadata": {"name": name}}))?;
        }
        let mut compiler = Compiler::new(Table::A, UNLIMITED);
        compiler.apply(self.changes).context("cannot compile the policies")?;
        let problems = compiler.policies().flat_map(|policy| {
            policy.problems.iter().map(|problem| plain(&format!("{}: {problem}", policy.id)))
        });
        let problems = problems.collect();
        Ok(Loaded { compiler, notes, problems })
    }
}

/// Gives an object of a manifest what the API server would: its namespace, and a UID. Returns the namespace.
fn named(object: &mut Value, kind: &str, namespace: Option<&str>) -> anyhow::Result<String> {
    let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
    let text = |metadata: &Map<String, Value>, field| {
        metadata.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let Some((metadata, name)) = metadata
        .map(|it| (text(it, "name"), it))
        .map(|(name, it)| (it, name))
        .filter(|(_, it)| !it.is_empty())
    else {
        bail!("found a {kind} without metadata.name, expected a name");
    };
    let namespace = match (text(metadata, "namespace"), namespace) {
        (_, None) => String::new(),
        (given, Some(default)) if given.is_empty() => default.to_owned(),
        (given, Some(_)) => given,
    };
    metadata.insert("namespace".to_owned(), json!(namespace));
    metadata.insert("uid".to_owned(), json!(format!("{kind}/{namespace}/{name}")));
    Ok(namespace)
}

fn decode<T: DeserializeOwned>(object: &Value) -> anyhow::Result<T> {
    // By its text: a policy keeps the text of its spec.
    serde_json::from_str(&object.to_string()).with_context(|| {
        let text = |pointer| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let name = pod(text("/metadata/namespace"), text("/metadata/name"));
        format!("cannot decode the {} {}", plain(text("/kind")), plain(&name))
    })
}
