//! The names that a runtime gives us, checked.
//!
//! A value of one of these types is safe to put into a path, a log line or an interface alias. The shim checks
//! what the runtime gave it, and the agent checks what came through the socket: both by these types.

use std::fmt;

use crate::cni::Pod;

/// A name was refused: which one, and by which rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {shown:?} {rule}")]
pub struct InvalidName {
    what: &'static str,
    /// At most [`SHOWN`] characters of it, so that a hostile one cannot flood a log.
    shown: String,
    rule: &'static str,
}

/// `name` in the network configuration. Rule: the CNI specification, and an upper length of ours.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NetworkName(String);

/// `CNI_CONTAINERID`. Rule: the CNI specification, and an upper length of ours.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContainerId(String);

/// `CNI_IFNAME`. Rule: the CNI specification and the kernel's `dev_valid_name`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IfName(String);

/// The longest network name and container ID, in bytes: with an interface name they fit into the 255 bytes
/// that the kernel keeps of an interface alias (`IFALIASZ` in `linux/if.h`).
const MAX_NETWORK: usize = 100;
const MAX_CONTAINER_ID: usize = 128;
/// `IFNAMSIZ` in `linux/if.h`, less the terminating NUL.
const MAX_IFNAME: usize = 15;
const SHOWN: usize = 64;

// === impl NetworkName, ContainerId, IfName ===

impl NetworkName {
    /// Checks a network's name.
    ///
    /// # Errors
    /// If it is empty, longer than 100 bytes, or has other characters than `[a-zA-Z0-9_.-]`, the first
    /// alphanumeric.
    pub fn new(name: &str) -> Result<Self, InvalidName> {
        let what = "network name";
        check_identifier(what, name)?;
        check_length(what, name, MAX_NETWORK, "is longer than 100 bytes")?;
        Ok(Self(name.to_owned()))
    }
}

impl ContainerId {
    /// Checks a container's ID.
    ///
    /// # Errors
    /// If it is empty, longer than 128 bytes, or has other characters than `[a-zA-Z0-9_.-]`, the first
    /// alphanumeric.
    pub fn new(id: &str) -> Result<Self, InvalidName> {
        let what = "container ID";
        check_identifier(what, id)?;
        check_length(what, id, MAX_CONTAINER_ID, "is longer than 128 bytes")?;
        Ok(Self(id.to_owned()))
    }
}

impl IfName {
    /// Checks the name of an interface in the pod.
    ///
    /// # Errors
    /// If it is empty, longer than 15 bytes, `.`, `..`, `lo`, `all` or `default`, or has a `/`, a `:`, a `%`,
    /// white space, or a character outside printable ASCII.
    pub fn new(name: &str) -> Result<Self, InvalidName> {
        let what = "interface name";
        let refuse = |rule| Err(refuse(what, name, rule));
        if name.is_empty() {
            return refuse("is empty");
        }
        check_length(what, name, MAX_IFNAME, "is longer than 15 bytes")?;
        if name == "." || name == ".." {
            return refuse("is a directory");
        }
        if name == "lo" {
            return refuse("is the loopback interface's");
        }
        if name == "all" || name == "default" {
            return refuse("names the settings of all interfaces below /proc/sys/net");
        }
        // The kernel makes a number of `%d`.
        if name.bytes().any(|b| !b.is_ascii_graphic() || matches!(b, b'/' | b':' | b'%')) {
            return refuse("may only have printable ASCII without '/', ':' and '%'");
        }
        Ok(Self(name.to_owned()))
    }
}

macro_rules! text {
    ($($name:ident),+) => {$(
        impl $name {
            /// The name as text.
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

/// Checks what a runtime says of a pod, each part of which it may leave out.
///
/// Podman gives the container's name for the pod's, which may have upper case and underscores: so the rule is that
/// of container IDs rather than Kubernetes' own.
///
/// # Errors
/// If the namespace is longer than 63 bytes, the name longer than 253, or the UID longer than 128; or if one has other
/// characters than `[a-zA-Z0-9_.-]`, the first alphanumeric.
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
        return Err(refuse(what, name, "may only have [a-zA-Z0-9_.-], the first alphanumeric"));
    }
    Ok(())
}

fn check_length(what: &'static str, name: &str, max: usize, rule: &'static str) -> Result<(), InvalidName> {
    if name.len() > max { Err(refuse(what, name, rule)) } else { Ok(()) }
}

fn refuse(what: &'static str, name: &str, rule: &'static str) -> InvalidName {
    InvalidName { what, shown: name.chars().take(SHOWN).collect(), rule }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_runtimes_use_are_accepted() {
        assert!(ContainerId::new("aed3e59f43f1ec754d9a6455864784bba7a9455e7989d6c8ff38f3e0d575811c").is_ok());
        assert!(NetworkName::new("k8s-pod-network.v1_x").is_ok());
        for name in ["eth0", "net1", "a", "fifteen-bytes-x"] {
            assert!(IfName::new(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn names_that_could_leave_a_directory_or_break_a_line_are_refused() {
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
    fn a_pod_is_named_as_kubernetes_or_podman_would_or_not_at_all() {
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
    fn an_error_shows_no_more_than_the_start_of_a_hostile_name() {
        let error = ContainerId::new(&"x/".repeat(500_000)).unwrap_err().to_string();
        assert!(error.len() < 200, "{error}");
        let error = IfName::new("a\nb").unwrap_err().to_string();
        assert!(!error.contains('\n'), "control characters are escaped: {error}");
    }
}
