//! The manifests in `deploy/`, their placeholders replaced.

use std::path::Path;

use anyhow::Result;

use crate::{failure::Failure, files, oci::digest, workspace::Workspace};

/// The values of the placeholders.
#[derive(Debug)]
pub(crate) struct Values {
    pub(crate) image: String,
    pub(crate) namespace: String,
    /// The user name, as the API server knows it, who may write VIF annotations.
    pub(crate) vif_controller: String,
    /// Whether agents read KuryrPorts.
    pub(crate) with_kuryr: bool,
}

/// In the order of application: the agents last.
const FILES: [&str; 6] = ["namespace.yaml", "rbac.yaml", KURYR, "admission.yaml", CONFIG, "agent.yaml"];
/// Only with [`Values::kuryr`].
const KURYR: &str = "kuryr.yaml";
/// Agents read it at their start, so that a change must restart them.
const CONFIG: &str = "config.yaml";

/// Renders the manifests of a deployment.
///
/// # Errors
/// If a file is missing, a placeholder is unknown, or a value is not safe to insert.
pub(crate) fn render(ws: &Workspace, values: &Values) -> Result<String> {
    let folder = ws.root.join("deploy");
    let read = |name: &str| files::read(&folder.join(name), "restore it from the repository");
    let config = digest(&read(CONFIG)?);
    let known = [
        ("CONFIG_DIGEST", config.as_str()),
        ("IMAGE", &values.image),
        ("NAMESPACE", &values.namespace),
        ("VIF_CONTROLLER", &values.vif_controller),
    ];
    for (name, value) in known {
        check(name, value)?;
    }
    let wanted = FILES.into_iter().filter(|name| values.with_kuryr || *name != KURYR);
    let rendered = wanted.map(|name| {
        let text = String::from_utf8_lossy(&read(name)?).into_owned();
        replace(&folder.join(name), &text, &known)
    });
    Ok(rendered.collect::<Result<Vec<_>>>()?.join("---\n"))
}

/// Rejects values that could end a string of YAML or CEL.
fn check(name: &str, value: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@".contains(c);
    if !value.is_empty() && value.chars().all(plain) {
        return Ok(());
    }
    Err(Failure {
        attempted: format!("inserting {value:?} as {name} into the manifests"),
        why: "the value is empty, or has characters other than letters, digits and -_./:@".to_owned(),
        remedy: "correct the flag; `cargo xtask deploy --help` names them".to_owned(),
    }
    .into())
}

/// Replaces every `${NAME}`.
fn replace(path: &Path, text: &str, known: &[(&str, &str)]) -> Result<String> {
    let mut parts = text.split("${");
    let mut replaced = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let found = part.split_once('}').and_then(|(name, rest)| {
            let (_, value) = known.iter().find(|(known, _)| *known == name)?;
            Some((value, rest))
        });
        let Some((value, rest)) = found else {
            let start: String = part.chars().take(20).collect();
            let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
            return Err(Failure {
                attempted: format!("rendering {}", path.display()),
                why: format!("there is no placeholder that begins \"${{{start}\""),
                remedy: format!("use one of {}", names.join(", ")),
            }
            .into());
        };
        replaced.push_str(value);
        replaced.push_str(rest);
    }
    Ok(replaced)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs};

    use serde_json::{Value, json};

    use super::*;

    fn values() -> Values {
        Values {
            image: "registry.example/ferrule@sha256:0123".to_owned(),
            namespace: "net".to_owned(),
            vif_controller: "system:serviceaccount:net:sdn".to_owned(),
            with_kuryr: true,
        }
    }

    fn rendered() -> String {
        render(&Workspace::find().unwrap(), &values()).unwrap()
    }

    fn objects() -> Vec<Value> {
        serde_saphyr::from_multiple(&rendered()).unwrap()
    }

    fn of_kind(kind: &str) -> Vec<Value> {
        let found: Vec<Value> = objects().into_iter().filter(|it| it["kind"] == kind).collect();
        assert!(!found.is_empty(), "{kind}");
        found
    }

    fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
        value[name].as_array().unwrap_or_else(|| panic!("no list {name} in {value}"))
    }

    #[test]
    fn every_file_is_rendered_and_no_placeholder_is_left() {
        let text = rendered();
        assert!(!text.contains("${"), "{text}");
        let folder = Workspace::find().unwrap().root.join("deploy");
        let files = fs::read_dir(folder).unwrap().map(Result::unwrap).filter(|it| it.path().is_file());
        let there = files.map(|it| it.file_name().into_string().unwrap());
        let listed: BTreeSet<String> = FILES.into_iter().map(ToOwned::to_owned).collect();
        assert_eq!(there.collect::<BTreeSet<_>>(), listed);
        for object in objects() {
            assert!(object["apiVersion"].is_string() && object["metadata"]["name"].is_string(), "{object}");
            if let Some(namespace) = object["metadata"]["namespace"].as_str() {
                assert_eq!(namespace, "net");
            }
        }
    }

    #[test]
    fn kuryrs_objects_are_read_only_if_they_are_asked_for() {
        assert!(rendered().contains("kuryrports"));
        let without = Values { with_kuryr: false, ..values() };
        assert!(!render(&Workspace::find().unwrap(), &without).unwrap().contains("kuryrports"));
    }

    #[test]
    fn the_agent_may_do_what_is_named_and_nothing_else() {
        let mut allowed = BTreeSet::new();
        for role in of_kind("ClusterRole") {
            for rule in list(&role, "rules") {
                let names = ["apiGroups", "resources", "verbs"].map(|field| {
                    let names: Vec<&str> = list(rule, field).iter().map(|it| it.as_str().unwrap()).collect();
                    assert!(!names.iter().any(|name| name.contains('*')), "a wildcard in {rule}");
                    names.join(",")
                });
                allowed.insert(names.join(" "));
            }
        }
        let expected = [
            " namespaces,services list,watch",
            " nodes get,list,watch,patch",
            " nodes/status patch",
            " pods get,list,watch",
            "events.k8s.io events create,patch",
            "networking.k8s.io networkpolicies list,watch",
            "openstack.org kuryrports get,list,watch",
            "policy.networking.k8s.io clusternetworkpolicies list,watch",
        ];
        assert_eq!(allowed, expected.map(ToOwned::to_owned).into());
    }

    #[test]
    fn the_agent_is_not_privileged() {
        let [set] = of_kind("DaemonSet").try_into().unwrap();
        let pod = &set["spec"]["template"]["spec"];
        assert_eq!((&pod["hostNetwork"], &pod["hostPID"]), (&json!(true), &Value::Null));
        assert_eq!(pod["initContainers"], Value::Null);
        for container in list(pod, "containers") {
            let security = &container["securityContext"];
            assert_eq!(security["privileged"], json!(false));
            assert_eq!(security["readOnlyRootFilesystem"], json!(true));
            assert_eq!(security["capabilities"]["drop"], json!(["ALL"]));
            assert_eq!(security["capabilities"]["add"], json!(["DAC_OVERRIDE", "NET_ADMIN", "SYS_ADMIN"]));
            for mount in list(container, "volumeMounts") {
                assert_ne!(mount["mountPropagation"], "Bidirectional", "only privileged containers may");
            }
        }
    }

    #[test]
    fn probes_ask_the_agent_of_this_node() {
        let [set] = of_kind("DaemonSet").try_into().unwrap();
        let agent = &set["spec"]["template"]["spec"]["containers"][0];
        for (probe, path) in
            [("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")]
        {
            assert_eq!(agent[probe]["httpGet"], json!({ "host": "127.0.0.1", "port": 9469, "path": path }));
        }
    }

    #[test]
    fn agents_restart_when_their_configuration_changes() {
        let [set] = of_kind("DaemonSet").try_into().unwrap();
        let annotation = &set["spec"]["template"]["metadata"]["annotations"]["ferrule.dev/config"];
        assert!(annotation.as_str().unwrap().starts_with("sha256:"), "{annotation}");
    }

    #[test]
    fn an_unknown_placeholder_is_named() {
        let path = Path::new("deploy/x.yaml");
        assert_eq!(replace(path, "a ${B}${B} $C", &[("B", "b")]).unwrap(), "a bb $C");
        for wrong in ["image: ${IMAEG}", "image: ${B"] {
            let error = replace(path, wrong, &[("B", "b")]).unwrap_err().to_string();
            assert!(error.contains("deploy/x.yaml") && error.contains("use one of B"), "{error}");
        }
    }

    #[test]
    fn a_value_cannot_end_the_text_around_it() {
        for wrong in ["", "a b", "x' || true || '", "a\nb: c", "\"", "${IMAGE}"] {
            assert!(check("IMAGE", wrong).is_err(), "{wrong:?}");
        }
        check("IMAGE", "registry.example:5000/a/ferrule:0.1.0@sha256:ab").unwrap();
    }
}
