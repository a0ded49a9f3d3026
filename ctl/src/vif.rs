//! `ferrulectl vif`: decodes VIFs in manifests, without an agent.

use std::{fmt::Write as _, path::PathBuf};

use anyhow::{Context as _, bail};
use ferrule_proto::quoted::Quoted;
use ferrule_vif::{
    InterfaceRequest, Kind, VifRequest,
    manifest::{Decoded, Found, MAX_BYTES, Outcome, from_manifest},
};

use crate::{
    manifest,
    output::{Output, Report},
    table::plain,
};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Decode the VIFs in a Pod's annotations or in a KuryrPort, as the agent does
    ///
    /// Exit code 0: every VIF is valid. 1: the manifest or a VIF in it is invalid, the agent does not support
    /// its kind, or an annotation looks like a misspelt VIF.
    Decode {
        /// Manifest in YAML or JSON: a Pod, a KuryrPort or a list of them; - for standard input
        #[arg(short, long, value_name = "FILE")]
        file: PathBuf,
    },
}

/// An invalid VIF is a failure.
pub(crate) fn run(command: &Command, output: Output) -> anyhow::Result<Report> {
    let Command::Decode { file } = command;
    let text = manifest::read(file, MAX_BYTES)?;
    let objects = decode(&text).with_context(|| format!("cannot decode the manifest {}", file.display()))?;
    let text = output.show(&objects, |it| it.iter().map(render).collect::<Vec<_>>().join("\n\n"))?;
    Ok(Report { text, failures: objects.iter().flat_map(failures).collect(), ..Report::default() })
}

/// Decodes one JSON manifest, or one or more YAML manifests.
fn decode(text: &str) -> anyhow::Result<Vec<Decoded>> {
    // JSON is also YAML, but the JSON parser has better errors.
    if manifest::is_json(text) {
        return Ok(from_manifest(text)?);
    }
    let documents = manifest::yaml(text, MAX_BYTES)?;
    if documents.is_empty() {
        bail!("empty input, expected a Pod or a KuryrPort");
    }
    let mut objects = Vec::new();
    for document in documents {
        objects.extend(from_manifest(&document.to_string())?);
    }
    Ok(objects)
}

fn render(object: &Decoded) -> String {
    let mut text = title(object);
    if !object.pod_uid.is_empty() {
        let _ = write!(text, "  UID {}", plain(&object.pod_uid));
    }
    if object.static_pod {
        text.push_str("  static");
    }
    if object.found.is_empty() {
        text.push_str("\n  no VIF: the agent's IPAM allocates addresses");
    }
    for Found { source, outcome } in &object.found {
        let _ = write!(text, "\n  {}", source.as_str());
        match outcome {
            Outcome::Decoded(vif) => render_vif(&mut text, vif),
            Outcome::NotYet => text.push_str("  no VIF yet: Kuryr's controller has not written it"),
            Outcome::Refused(_) => text.push_str("  invalid"),
        }
    }
    text
}

fn render_vif(text: &mut String, vif: &VifRequest) {
    let _ = write!(text, "  ({})", vif.format);
    for interface in &vif.interfaces {
        let InterfaceRequest { name, kind, active, mac, mtu, addresses, gateways, routes, details } =
            interface;
        let active = if *active { "active" } else { "inactive" };
        let _ = write!(text, "\n    {name}  {kind}  {active}");
        if let Some(mtu) = mtu {
            let _ = write!(text, "  mtu {mtu}");
        }
        if let Some(mac) = mac {
            let _ = write!(text, "  mac {mac}");
        }
        let route = |route: &ferrule_vif::Route| {
            let mut text = route.dst.to_string();
            let via = route.gw.map(|gw| ("via", gw.to_string()));
            let numbers = [("mtu", route.mtu), ("advmss", route.advmss), ("priority", route.priority)];
            let numbers = numbers.into_iter().filter_map(|(name, number)| Some((name, number?.to_string())));
            for (name, value) in via.into_iter().chain(numbers) {
                let _ = write!(text, " {name} {value}");
            }
            text
        };
        let detail = |(key, value): (&&str, &String)| format!("{key}={}", plain(value));
        for (name, values, separator) in [
            ("addresses", addresses.iter().map(ToString::to_string).collect::<Vec<_>>(), " "),
            ("gateways", gateways.iter().map(ToString::to_string).collect(), " "),
            ("routes", routes.iter().map(route).collect(), ", "),
            ("details", details.iter().map(detail).collect(), " "),
        ] {
            if !values.is_empty() {
                let _ = write!(text, "\n      {name:9}  {}", values.join(separator));
            }
        }
    }
}

fn failures(object: &Decoded) -> impl Iterator<Item = String> {
    let of_found = object.found.iter().flat_map(|found| match &found.outcome {
        Outcome::Refused(error) => vec![error.to_string()],
        Outcome::Decoded(vif) => vif.interfaces.iter().filter_map(unsupported).collect(),
        Outcome::NotYet => Vec::new(),
    });
    let of_keys = object.misspelt.iter().map(|key| {
        format!(
            "the agent ignores the annotation {}; a VIF is read from vif.ferrule.dev/v1 or openstack.org/kuryr-vif",
            Quoted(key)
        )
    });
    of_found.chain(of_keys).map(|failure| format!("{}: {failure}", title(object)))
}

/// As the agent refuses the ADD.
fn unsupported(InterfaceRequest { name, kind, .. }: &InterfaceRequest) -> Option<String> {
    match kind {
        Kind::Veth => None,
        Kind::Other(kind) => {
            Some(format!("ADD refuses interface {name}: the kind {kind} is not supported yet; expected veth"))
        }
    }
}

fn title(object: &Decoded) -> String {
    let namespace = if object.namespace.is_empty() { "default" } else { &object.namespace };
    let name = if object.name.is_empty() { "?" } else { &object.name };
    format!("{:?} {}/{}", object.kind, plain(namespace), plain(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ERA3: &str = include_str!("../../vif/testdata/era3_pod.json");
    const ERA4_EMPTY: &str = include_str!("../../vif/testdata/era4_kuryrport_empty.json");
    const DOCS: &str = include_str!("../../docs/vif.md");

    fn shown(text: &str) -> String {
        decode(text).unwrap().iter().map(render).collect::<Vec<_>>().join("\n")
    }

    fn pod(annotation: &str) -> String {
        let metadata =
            serde_json::json!({"name": "web-0", "annotations": {"vif.ferrule.dev/v1": annotation}});
        serde_json::json!({"kind": "Pod", "metadata": metadata}).to_string()
    }

    #[test]
    fn output_is_as_documented() {
        let yaml = DOCS.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
        let (_, printed) = DOCS.split_once("ferrulectl vif decode -f -\n").unwrap();
        assert_eq!(shown(yaml), printed.split("\n```").next().unwrap());
    }

    #[test]
    fn kuryr_vif_is_shown_with_its_details() {
        let expected = "\
Pod default/era3-podstate  UID 6fbb3a3c-8f7a-4a9e-9d51-1d7d3e7f3a10
  openstack.org/kuryr-vif  (kuryr-pod-state)
    eth0  VIFVlanNested  active  mtu 1450  mac fa:16:3e:bf:84:ff
      addresses  10.11.9.5/24 fd35:7db5:e3fc:0:f816:3eff:fe80:d421/64
      gateways   10.11.9.1 fd35:7db5:e3fc::1
      routes     10.0.0.0/24 via 10.11.9.254
      details    id=18f968a5-c420-4318-92d7-941eb5f9e60e plugin=noop vif_name=tap18f968a5-c4 vlan_id=1346
    eth1  VIFMacvlanNested  active  mtu 1450  mac fa:16:3e:bf:84:ff
      addresses  10.11.9.5/24
      gateways   10.11.9.1
      details    id=18f968a5-c420-4318-92d7-941eb5f9e60e plugin=noop vif_name=tap18f968a5-c4";
        assert_eq!(shown(ERA3), expected);
    }

    #[test]
    fn yaml_input_may_have_several_documents() {
        let yaml = "---\nkind: Pod\nmetadata: {name: a}\n---\n\n---\nkind: Pod\nmetadata: {name: b}\n";
        let expected = "\
Pod default/a
  no VIF: the agent's IPAM allocates addresses
Pod default/b
  no VIF: the agent's IPAM allocates addresses";
        assert_eq!(shown(yaml), expected);
        assert!(shown(ERA4_EMPTY).contains("\n  KuryrPort  no VIF yet: "));
    }

    #[test]
    fn invalid_vif_is_a_failure_with_path_and_reason() {
        let objects = decode(&pod(r#"{"interfaces":[{"addresses":["10.1.2.3"],"mtu":67}]}"#)).unwrap();
        let [failure] = objects.iter().flat_map(failures).collect::<Vec<_>>().try_into().unwrap();
        let expected = "Pod default/web-0: annotation vif.ferrule.dev/v1: interfaces[0].mtu: 67 is out of range, \
                        expected a number of bytes from 68 to 65535";
        assert_eq!(failure, expected);
    }

    #[test]
    fn a_misspelt_annotation_and_an_unsupported_kind_are_failures() {
        let objects = decode(
            "kind: Pod\nmetadata: {name: web-0, annotations: {vif.ferule.dev/v1: x, vif.ferrule.dev/v1: \
             '{\"interfaces\":[{\"kind\":\"macvlan\",\"addresses\":[\"10.1.2.3\"]}]}'}}\n",
        );
        let failures: Vec<_> = objects.unwrap().iter().flat_map(failures).collect();
        let expected = [
            "Pod default/web-0: ADD refuses interface eth0: the kind macvlan is not supported yet; expected veth",
            "Pod default/web-0: the agent ignores the annotation \"vif.ferule.dev/v1\"; a VIF is read from \
             vif.ferrule.dev/v1 or openstack.org/kuryr-vif",
        ];
        assert_eq!(failures, expected);
    }

    #[test]
    fn input_without_a_manifest_is_an_error() {
        for text in ["", "---\n", "[", "7", "- a", "{", "kind: Service", "kind: Pod\nkind: Pod\nmetadata: {}"]
        {
            assert!(decode(text).is_err(), "{text:?}");
        }
        let error = format!("{:#}", decode(": : :").unwrap_err());
        assert!(error.starts_with("the input is not YAML: "), "{error}");
    }

    #[test]
    fn yaml_alias_bombs_are_refused() {
        let pod = "kind: Pod\nmetadata: {name: &name a, namespace: *name}\n";
        assert!(shown(pod).starts_with("Pod a/a\n"));
        let mut bomb = format!("{pod}a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for i in 1..10 {
            let alias = format!("*a{}, ", i - 1).repeat(10);
            writeln!(bomb, "a{i}: &a{i} [{alias}]").unwrap();
        }
        assert!(decode(&bomb).is_err());
        let long = format!("{pod}a: &a {}\nb: [{}]\n", "x".repeat(1 << 20), "*a, ".repeat(90));
        assert!(decode(&long).is_err());
    }

    #[test]
    fn control_characters_of_names_are_escaped() {
        let text = shown("kind: Pod\nmetadata: {name: \"a\\e[31m\\n\"}\n");
        assert!(text.starts_with("Pod default/a\\u{1b}[31m\\n\n"), "{text:?}");
    }
}
