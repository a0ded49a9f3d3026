//! The pod that a command is about.

use anyhow::bail;

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct PodArg {
    /// The pod's name, or the beginning of its container's ID
    #[arg(value_name = "[NAMESPACE/]POD")]
    pub(crate) pod: String,
    /// The pod's namespace. Needed only if the node has pods of this name in several
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
}

// === impl PodArg ===

impl PodArg {
    /// Namespace and name. An empty namespace stands for any.
    ///
    /// # Errors
    /// If two namespaces are named, or none of the parts is a name.
    pub(crate) fn resolve(&self) -> anyhow::Result<(String, String)> {
        let (before, name) = match self.pod.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, self.pod.as_str()),
        };
        let namespace = match (before, self.namespace.as_deref()) {
            (Some(one), Some(other)) if one != other => {
                bail!("{:?} names the namespace {one}, and --namespace {other}", self.pod)
            }
            (Some(one), _) | (None, Some(one)) => one,
            (None, None) => "",
        };
        if name.is_empty() || name.contains('/') || (before == Some("")) {
            bail!("invalid pod {:?}, expected a name or NAMESPACE/POD", self.pod);
        }
        Ok((namespace.to_owned(), name.to_owned()))
    }

    pub(crate) fn names_namespace(&self) -> bool {
        self.namespace.is_some() || self.pod.contains('/')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_named_with_its_namespace_before_it_or_beside_it() {
        let resolve = |pod: &str, namespace: Option<&str>| {
            PodArg { pod: pod.to_owned(), namespace: namespace.map(str::to_owned) }.resolve().ok()
        };
        let is = |namespace: &str, name: &str| Some((namespace.to_owned(), name.to_owned()));
        assert_eq!(resolve("shop/web-0", None), is("shop", "web-0"));
        assert_eq!(resolve("web-0", Some("shop")), is("shop", "web-0"));
        assert_eq!(resolve("shop/web-0", Some("shop")), is("shop", "web-0"));
        assert_eq!(resolve("web-0", None), is("", "web-0"));
        for (pod, namespace) in [("shop/web-0", Some("db")), ("/web-0", None), ("", None), ("a/b/c", None)] {
            assert_eq!(resolve(pod, namespace), None, "{pod} {namespace:?}");
        }
    }
}
