//! The collection of objects that a watch covers.

/// A collection, whole or narrowed by a selector.
#[derive(Debug, Clone)]
pub struct Scope {
    /// The name of the watch in logs, metrics and checkpoints.
    pub name: &'static str,
    /// Such as `/api/v1/pods`.
    pub path: &'static str,
    /// Such as `("fieldSelector", "spec.nodeName=node-1")`. `None`: the whole collection.
    pub selector: Option<(&'static str, String)>,
}

// === impl Scope ===

impl Scope {
    /// Identifies the history that positions belong to: another server or selector has another one.
    pub(super) fn identity(&self, server: &str) -> String {
        match &self.selector {
            Some((name, value)) => format!("{server} {} {name}={value}", self.path),
            None => format!("{server} {}", self.path),
        }
    }

    /// The path of a request. Parameters without a value are left out.
    pub(super) fn request(&self, parameters: &[(&str, &str)]) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        if let Some((name, value)) = &self.selector {
            query.append_pair(name, value);
        }
        for (name, value) in parameters.iter().filter(|(_, value)| !value.is_empty()) {
            query.append_pair(name, value);
        }
        format!("{}?{}", self.path, query.finish())
    }
}
