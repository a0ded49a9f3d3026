//! `CNI_ARGS`: the pod's identity, as `KEY=VALUE` pairs separated by semicolons.

use ferrule_proto::{
    cni::{Pod, error::Code},
    names::check_pod,
    quoted::Quoted,
};

use crate::error::CniError;

/// Bytes.
const MAX_VALUE: usize = 4096;

/// Parses the pod's namespace, name and UID from `CNI_ARGS`.
///
/// Unknown keys of Kubernetes (`K8S_…`) are ignored: their number grows. By the CNI conventions, other
/// unknown keys are an error unless `IgnoreUnknown` is set. `IP` and `MAC` are refused even then: podman sets
/// `IgnoreUnknown` always, and a container without the address that its user asked for is worse than none.
///
/// # Errors
/// If a pair is malformed, a value is too long, a known key is repeated, an unknown key is not to be ignored,
/// an address or a MAC is requested, or a name of the pod is invalid.
pub(crate) fn parse(args: &str) -> Result<Pod, CniError> {
    let mut known = Known::default();
    if args.is_empty() {
        return Ok(Pod::default());
    }
    for pair in args.split(';') {
        known.add(pair)?;
    }
    known.into_pod()
}

/// Values of the known keys.
#[derive(Default)]
struct Known<'a> {
    namespace: Option<&'a str>,
    name: Option<&'a str>,
    uid: Option<&'a str>,
    ignore_unknown: Option<&'a str>,
    /// The first unknown key. A later `IgnoreUnknown` may still allow it.
    unknown: Option<&'a str>,
}

impl<'a> Known<'a> {
    fn add(&mut self, pair: &'a str) -> Result<(), CniError> {
        let Some((key, value)) = pair.split_once('=').filter(|(key, _)| !key.is_empty()) else {
            return Err(refuse(format!("invalid pair {}, expected KEY=VALUE", Quoted(pair))));
        };
        if value.len() > MAX_VALUE {
            return Err(refuse(format!("value of {} is longer than {MAX_VALUE} bytes", Quoted(key))));
        }
        let slot = match key {
            "K8S_POD_NAMESPACE" => &mut self.namespace,
            "K8S_POD_NAME" => &mut self.name,
            "K8S_POD_UID" => &mut self.uid,
            "IgnoreUnknown" => &mut self.ignore_unknown,
            "IP" | "MAC" if !value.is_empty() => {
                let msg = format!(
                    "ADD: CNI_ARGS requests {key}={}, which this plugin does not support",
                    Quoted(value)
                );
                let remedy = "remove the request (podman: --ip, --ip6, --mac-address): the agent's IPAM chooses \
                              the addresses, or the pod's annotation vif.ferrule.dev/v1 sets addresses and MAC";
                return Err(CniError::new(Code::UnsupportedField, msg, remedy));
            }
            _ => {
                if !key.starts_with("K8S_") {
                    self.unknown.get_or_insert(key);
                }
                return Ok(());
            }
        };
        match slot.replace(value) {
            None => Ok(()),
            Some(_) => Err(refuse(format!("duplicate key {key}"))),
        }
    }

    fn into_pod(self) -> Result<Pod, CniError> {
        let ignore_unknown = match self.ignore_unknown {
            None | Some("" | "0") => false,
            Some("1") => true,
            Some(text) if text.eq_ignore_ascii_case("true") => true,
            Some(text) if text.eq_ignore_ascii_case("false") => false,
            Some(text) => {
                return Err(refuse(format!("IgnoreUnknown is {}, expected a boolean", Quoted(text))));
            }
        };
        if let (Some(key), false) = (self.unknown, ignore_unknown) {
            return Err(refuse(format!("unknown key {}, and IgnoreUnknown=1 is not set", Quoted(key))));
        }
        let text = |value: Option<&str>| value.unwrap_or_default().to_owned();
        let (namespace, name, uid) = (text(self.namespace), text(self.name), text(self.uid));
        let pod = Pod { namespace, name, uid, annotations: None };
        check_pod(&pod).map_err(refuse)?;
        Ok(pod)
    }
}

fn refuse(reason: impl std::fmt::Display) -> CniError {
    let details = "the runtime must set CNI_ARGS like K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0";
    CniError::new(Code::InvalidEnvironment, format!("parsing CNI_ARGS: {reason}"), details)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pod(namespace: &str, name: &str, uid: &str) -> Pod {
        Pod { namespace: namespace.into(), name: name.into(), uid: uid.into(), annotations: None }
    }

    #[test]
    fn pairs_may_have_any_order() {
        let expected = pod("default", "web-0", "ec271277-50dc-4c0b-a1eb-c406affb679b");
        let mut pairs = [
            "IgnoreUnknown=1",
            "K8S_POD_NAMESPACE=default",
            "K8S_POD_NAME=web-0",
            "K8S_POD_INFRA_CONTAINER_ID=ddcf",
            "K8S_POD_UID=ec271277-50dc-4c0b-a1eb-c406affb679b",
            "K1=V=1",
        ];
        for _ in 0..pairs.len() {
            pairs.rotate_left(1);
            assert_eq!(parse(&pairs.join(";")).unwrap(), expected);
        }
    }

    #[test]
    fn arguments_without_kubernetes_are_accepted() {
        assert_eq!(parse("").unwrap(), Pod::default());
        assert_eq!(parse("K8S_POD_NAME=quirky_Wozniak.1").unwrap(), pod("", "quirky_Wozniak.1", ""));
        assert_eq!(parse("K8S_POD_NAMESPACE=;K8S_POD_NEW_KEY=\n").unwrap(), Pod::default());
        assert_eq!(parse("GW=02:00:00:00:00:01;IgnoreUnknown=true").unwrap(), Pod::default());
        assert_eq!(parse("IP=;MAC=;IgnoreUnknown=1").unwrap(), Pod::default(), "nothing is requested");
    }

    #[test]
    fn requested_addresses_are_refused_even_if_unknown_keys_are_to_be_ignored() {
        for (args, expected) in [
            ("IgnoreUnknown=1;K8S_POD_NAME=a;IP=10.0.0.1", "requests IP=\"10.0.0.1\""),
            ("MAC=02:00:00:00:00:01;IgnoreUnknown=true", "requests MAC=\"02:00:00:00:00:01\""),
            ("IP=10.0.0.1", "requests IP="),
        ] {
            let error = parse(args).unwrap_err();
            assert_eq!(error.code, 2, "{args}");
            assert!(error.msg.contains(expected) && error.details.contains("--ip"), "{error:?}");
        }
    }

    #[test]
    fn invalid_arguments_are_refused_and_named() {
        let long_name = format!("K8S_POD_NAME={}", "a".repeat(254));
        let long_value = format!("IgnoreUnknown=1;X={}", "a".repeat(4097));
        for (args, expected) in [
            (";", "KEY=VALUE"),
            ("K8S_POD_NAME", "K8S_POD_NAME"),
            ("=x", "=x"),
            ("K8S_POD_NAME=a;", "KEY=VALUE"),
            ("K8S_POD_NAME=a;K8S_POD_NAME=b", "duplicate key K8S_POD_NAME"),
            ("GW=10.0.0.1", "unknown key \"GW\""),
            ("GW=10.0.0.1;IgnoreUnknown=0", "unknown key \"GW\""),
            ("IgnoreUnknown=maybe", "boolean"),
            ("K8S_POD_NAME=../../etc", "pod name \"../../etc\""),
            ("K8S_POD_NAMESPACE=a\nb", "pod namespace \"a\\nb\""),
            ("K8S_POD_UID=%s%n", "pod UID"),
            ("K8S_POD_NAME=pöd", "pod name"),
            (&long_name, "longer than 253"),
            (&long_value, "longer than 4096"),
        ] {
            let error = parse(args).unwrap_err();
            assert_eq!(error.code, 4, "{args:?}");
            assert!(error.msg.contains(expected), "{args:?}: {}", error.msg);
            assert!(!error.msg.contains('\n') && error.msg.len() < 300, "{args:?}: {}", error.msg);
        }
    }

    proptest! {
        #[test]
        fn arbitrary_arguments_neither_panic_nor_pass_a_hostile_name(args in "[A-Z_a-z0-8;=\\PC\n]{0,200}") {
            if let Ok(pod) = parse(&args) {
                for name in [pod.namespace, pod.name, pod.uid] {
                    prop_assert!(name.bytes().all(|b| b.is_ascii_graphic() && b != b'/'));
                }
            }
        }
    }
}
