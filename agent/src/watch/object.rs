//! The only properties of an API object that a watch needs to know.

use std::{fmt, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// An object that can be watched. Its JSON form is also its form in a checkpoint.
pub trait Object: DeserializeOwned + Serialize + Send + Sync + 'static {
    /// How long a resumed stream may replay what was missed, before the objects of a checkpoint are used. In
    /// a large cluster, streams of some types are never quiet, which would end the replay.
    const REPLAY: Duration = HOLD;

    /// Whether a cluster that lacks the type is healthy: older clusters do.
    const IS_OPTIONAL: bool = false;

    fn key(&self) -> ObjectKey;
    fn uid(&self) -> &str;
    /// Takes the resourceVersion out. The watch moves its position by it; sinks and checkpoints have no use
    /// for it.
    fn take_version(&mut self) -> String;

    /// Whether an earlier version of the object has already said all this. The watch then neither repeats the
    /// object to its sink nor writes it to the checkpoint.
    fn is_repeated_from(&self, _earlier: &Self) -> bool {
        false
    }

    /// Whether the object can be written to a checkpoint. A type of which there are many may need it no more
    /// once a checkpoint has it.
    fn is_writable(&self) -> bool {
        true
    }

    /// A checkpoint has the object.
    fn saved(&self) {}
}

/// The longest time that the objects of a checkpoint wait for a server that says nothing; a runtime waits
/// longer for an ADD.
pub(super) const HOLD: Duration = Duration::from_secs(5);

/// Namespace and name of an object. A later object with the same key has another UID. Clones share the text.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey(Arc<str>);

/// Identity and version of an object of any type.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ObjectMeta {
    #[serde(default)]
    namespace: Option<String>,
    name: String,
    #[serde(default)]
    uid: Option<String>,
    pub resource_version: String,
}

// === impl ObjectKey ===

impl ObjectKey {
    /// `namespace` is empty for cluster-scoped objects. Neither name contains a slash.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self(if namespace.is_empty() { name.into() } else { format!("{namespace}/{name}").into() })
    }

    /// Empty for cluster-scoped objects.
    pub fn namespace(&self) -> &str {
        self.0.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    pub fn name(&self) -> &str {
        self.0.split_once('/').map_or(&self.0, |(_, name)| name)
    }

    /// `namespace/name`, or the name alone.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// As [`Self::as_str`]; shares the text.
    pub fn text(&self) -> Arc<str> {
        Arc::clone(&self.0)
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl ObjectMeta ===

impl ObjectMeta {
    pub(super) fn key(&self) -> ObjectKey {
        ObjectKey::new(self.namespace.as_deref().unwrap_or_default(), &self.name)
    }

    pub(super) fn uid(&self) -> &str {
        self.uid.as_deref().unwrap_or_default()
    }

    /// Whether the object can be identified and versioned.
    pub(super) fn is_complete(&self) -> bool {
        !self.resource_version.is_empty() && !self.name.is_empty()
    }
}
