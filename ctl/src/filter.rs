//! Which pods a command shows.

/// Pods are chosen by namespace and by the beginning of their name, as with `drops` and `flows`.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Filter {
    /// Only pods of this namespace
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
    /// Only this pod: `namespace/name`, or the beginning of a name
    #[arg(long, value_name = "POD")]
    pub(crate) pod: Option<String>,
}

// === impl Filter ===

impl Filter {
    /// Whether everything is shown.
    pub(crate) fn is_empty(&self) -> bool {
        self.namespace.is_none() && self.pod.is_none()
    }

    pub(crate) fn matches(&self, namespace: &str, name: &str) -> bool {
        let has_namespace = self.namespace.as_deref().is_none_or(|it| it == namespace);
        has_namespace
            && self.pod.as_deref().is_none_or(|pod| match pod.split_once('/') {
                Some((its, pod)) => its == namespace && name.starts_with(pod),
                None => name.starts_with(pod),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_chosen_by_namespace_and_the_beginning_of_the_name() {
        let filter = |namespace: Option<&str>, pod: Option<&str>| Filter {
            namespace: namespace.map(str::to_owned),
            pod: pod.map(str::to_owned),
        };
        assert!(filter(None, None).matches("shop", "web-0") && filter(None, None).is_empty());
        for (namespace, pod, expected) in [
            (Some("shop"), None, true),
            (Some("sho"), None, false),
            (None, Some("web"), true),
            (None, Some("eb-0"), false),
            (None, Some("shop/web-0"), true),
            (None, Some("db/web-0"), false),
            (Some("db"), Some("shop/web-0"), false),
        ] {
            assert_eq!(filter(namespace, pod).matches("shop", "web-0"), expected, "{namespace:?} {pod:?}");
        }
    }
}
