//! The collection of objects that a watch covers.

/// A collection, narrowed by a selector.
#[derive(Debug, Clone)]
pub struct Scope {
    /// The name of the watch in logs, metrics and checkpoints.
    pub name: &'static str,
    /// Such as `/api/v1/pods`.
    pub path: &'static str,
    /// Such as `("fieldSelector", "spec.nodeName=node-1")`.
    pub selector: (&'static str, String),
}

// === impl Scope ===

impl Scope {
    /// Identifies the history that positions belong to: another server or selector has another one.
    pub(super) fn identity(&self, server: &str) -> String {
        let (name, value) = &self.selector;
        format!("{server} {} {name}={value}", self.path)
    }

    /// The path of a request. Parameters without a value are left out.
    pub(super) fn request(&self, parameters: &[(&str, &str)]) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair(self.selector.0, &self.selector.1);
        for (name, value) in parameters.iter().filter(|(_, value)| !value.is_empty()) {
            query.append_pair(name, value);
        }
        format!("{}?{}", self.path, query.finish())
    }
}
