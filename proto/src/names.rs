//! Validated names from the container runtime.
//!
//! A value of these types is safe in a path, a log line and an interface alias. The shim validates the
//! runtime's input and the agent validates what arrives on its socket, both with these types.

use std::fmt;

use crate::{cni::Pod, quoted::Quoted};

/// A name that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {quoted} {problem}")]
pub struct InvalidName {
    what: &'static str,
    quoted: String,
    problem: &'static str,
}

/// `name` in the network configuration. Rules: the CNI specification, and a length limit of ours.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NetworkName(String);

/// `CNI_CONTAINERID`. Rules: the CNI specification, and a length limit of ours.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContainerId(String);

/// `CNI_IFNAME`. Rules: the CNI specification and the kernel's `dev_valid_name`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IfName(String);

/// Bytes. An ownership stamp of the longest names fits into an interface alias: 255 bytes (`IFALIASZ` in
/// `linux/if.h`).
const MAX_NETWORK: usize = 100;
const MAX_CONTAINER_ID: usize = 128;
/// `IFNAMSIZ` in `linux/if.h`, less the terminating NUL.
const MAX_IFNAME: usize = 15;

// === impl NetworkName, ContainerId, IfName ===

impl NetworkName {
    /// Validates a network name.
    ///
    /// # Errors
    /// If the name is empty, is longer than 100 bytes, has characters outside `[a-zA-Z0-9_.-]`, or does not
    /// start with a letter or digit.
    pub fn new(name: &str) -> Result<Self, InvalidName> {
        let what = "network name";
        check_identifier(what, name)?;
        check_length(what, name, MAX_NETWORK, "is longer than 100 bytes")?;
        Ok(Self(name.to_owned()))
    }
}

impl ContainerId {
    /// Validates a container ID.
    ///
    /// # Errors
    /// If the ID is empty, is longer than 128 bytes, has characters outside `[a-zA-Z0-9_.-]`, or does not
    /// start with a letter or digit.
    pub fn new(id: &str) -> Result<Self, InvalidName> {
        let what = "container ID";
        check_identifier(what, id)?;
        check_length(what, id, MAX_CONTAINER_ID, "is longer than 128 bytes")?;
        Ok(Self(id.to_owned()))
    }
}

impl IfName {
    /// Validates the name of an interface in a pod.
    ///
    /// # Errors
    /// If the name is empty, is longer than 15 bytes, is `.`, `..`, `lo`, `all` or `default`, or contains
    /// `/`, `:`, `%`, white space or a character outside printable ASCII.
    pub fn new(name: &str) -> Result<Self, InvalidName> {
        let what = "interface name";
        let refuse = |rule| Err(refuse(what, name, rule));
        if name.is_empty() {
            return refuse("is empty");
        }
        check_length(what, name, MAX_IFNAME, "is longer than 15 bytes")?;
        if name == "." || name == ".." {
            return refuse("is a directory name");
        }
        if name == "lo" {
            return refuse("is the name of the loopback interface");
        }
        if name == "all" || name == "default" {
            return refuse("is reserved: /proc/sys/net uses it for the settings of all interfaces");
        }
        // The kernel replaces `%d` by a number.
        if name.bytes().any(|b| !b.is_ascii_graphic() || matches!(b, b'/' | b':' | b'%')) {
            return refuse("has invalid characters, expected printable ASCII without '/', ':' and '%'");
        }
        Ok(Self(name.to_owned()))
    }
}

macro_rules! text {
    ($($name:ident),+) => {$(
        impl $name {
            /// The name as a string slice.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )+};
}
text!(NetworkName, ContainerId, IfName);

/// Validates a pod's namespace, name and UID, each of which may be empty.
///
/// Podman passes the container name as the pod name, which may have upper case and underscores. So the
/// characters are those of a container ID instead of Kubernetes' own.
///
/// # Errors
/// If the namespace is longer than 63 bytes, the name longer than 253 bytes or the UID longer than 128 bytes,
/// or if one has characters outside `[a-zA-Z0-9_.-]` or does not start with a letter or digit.
pub fn check_pod(Pod { namespace, name, uid, .. }: &Pod) -> Result<(), InvalidName> {
    for (what, text, max, rule) in [
        ("pod namespace", namespace, 63, "is longer than 63 bytes"),
        ("pod name", name, 253, "is longer than 253 bytes"),
        ("pod UID", uid, 128, "is longer than 128 bytes"),
    ] {
        if !text.is_empty() {
            check_length(what, text, max, rule)?;
            check_identifier(what, text)?;
        }
    }
    Ok(())
}

fn check_identifier(what: &'static str, name: &str) -> Result<(), InvalidName> {
    let Some(first) = name.bytes().next() else {
        return Err(refuse(what, name, "is empty"));
    };
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
    if !first.is_ascii_alphanumeric() || !name.bytes().all(allowed) {
        return Err(refuse(
            what,
            name,
            "is invalid, expected [a-zA-Z0-9_.-] starting with a letter or digit",
        ));
    }
    Ok(())
}

fn check_length(what: &'static str, name: &str, max: usize, rule: &'static str) -> Result<(), InvalidName> {
    if name.len() > max { Err(refuse(what, name, rule)) } else { Ok(()) }
}

fn refuse(what: &'static str, name: &str, problem: &'static str) -> InvalidName {
    InvalidName { what, quoted: Quoted(name).to_string(), problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_real_runtimes_are_valid() {
        assert!(ContainerId::new("aed3e59f43f1ec754d9a6455864784bba7a9455e7989d6c8ff38f3e0d575811c").is_ok());
        assert!(NetworkName::new("k8s-pod-network.v1_x").is_ok());
        for name in ["eth0", "net1", "a", "fifteen-bytes-x"] {
            assert!(IfName::new(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn path_traversal_and_control_characters_are_invalid() {
        for name in ["", ".", "..", "../x", "a/b", "a:b", "a b", "a\nb", "a\0b", "ünïcode", "%s/", "-a", "_a"]
        {
            assert!(ContainerId::new(name).is_err(), "container ID {name:?}");
            assert!(NetworkName::new(name).is_err(), "network {name:?}");
        }
        for name in [
            "",
            ".",
            "..",
            "a/b",
            "a:b",
            "a b",
            "a\tb",
            "a\0b",
            "ünïcode",
            "sixteen-bytes-xx",
            "lo",
            "eth%d",
            "all",
            "default",
        ] {
            assert!(IfName::new(name).is_err(), "interface {name:?}");
        }
        assert!(ContainerId::new(&"a".repeat(129)).is_err());
        assert!(NetworkName::new(&"a".repeat(101)).is_err());
    }

    #[test]
    fn pod_names_follow_kubernetes_or_podman_and_may_be_empty() {
        let pod = |name: &str| Pod { name: name.to_owned(), ..Pod::default() };
        for name in ["", "web-0", "Some_Container", &"a".repeat(253)] {
            assert!(check_pod(&pod(name)).is_ok(), "{name:?}");
        }
        for name in ["a b", "../x", "a\nb", "%s", "-a", "\u{202e}", &"a".repeat(254)] {
            assert!(check_pod(&pod(name)).is_err(), "{name:?}");
        }
        assert!(check_pod(&Pod { namespace: "a".repeat(64), ..Pod::default() }).is_err());
        assert!(check_pod(&Pod { uid: "a".repeat(129), ..Pod::default() }).is_err());
    }

    #[test]
    fn error_quotes_and_cuts_a_hostile_name() {
        let error = ContainerId::new(&"x/".repeat(500_000)).unwrap_err().to_string();
        assert!(error.len() < 200, "{error}");
        let error = IfName::new("a\nb").unwrap_err().to_string();
        assert!(!error.contains('\n'), "control characters are escaped: {error}");
    }
}
