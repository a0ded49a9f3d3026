//! The precedence of the sources of a VIF. Pure: decides over facts, and names the first missing one.

use std::collections::BTreeMap;

use ferrule_vif::{InterfaceRequest, VifError, VifRequest, kuryr};

use crate::cluster::{Annotations, Port};

/// The configured source of VIFs (`--vif-source`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VifSource {
    /// The annotation `vif.ferrule.dev/v1` if the pod has one; else the agent's own IPAM
    #[default]
    Auto,
    /// The annotation `vif.ferrule.dev/v1`; an ADD waits for it
    Annotation,
    /// Kuryr: a KuryrPort, or Kuryr's annotation on the pod
    Kuryr,
    /// The agent's own IPAM, over the node's pod CIDRs
    Ipam,
}

/// Where a pod's addresses come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The next free addresses of the agent's own IPAM.
    FromIpam,
    /// A VIF decided outside the agent.
    Fixed(VifRequest),
}

/// What is known about a pod and the node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts<'a> {
    /// Whether the watch can deliver the pod: not without Kubernetes, nor for a container of podman.
    pub is_watched: bool,
    pub from_call: Option<&'a Annotations>,
    pub from_watch: Option<&'a Annotations>,
    pub port: Option<&'a Port>,
    /// Whether the IPAM has pod CIDRs.
    pub has_ranges: bool,
    /// Whether `--vif-cidr` is set.
    pub has_vif_cidrs: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Decided(Decision),
    /// Names the fact to wait for.
    Missing(&'static str),
    /// Names a fact that cannot come any more.
    Never(&'static str),
    /// As [`Self::Missing`], about the node's ranges.
    MissingRange(&'static str),
}

const POD: &str = "pod of this name and UID at the API server";
const POD_CIDR: &str = "pod CIDR in the node's spec.podCIDRs";
const ALLOWED_RANGE: &str =
    "range to validate the pod's VIF against: the node's spec.podCIDRs, or --vif-cidr";
const ANNOTATION: &str = "annotation vif.ferrule.dev/v1 on the pod";
const KURYR_PORT: &str = "KuryrPort of the pod, nor a Kuryr annotation on it";
const KURYR_VIF: &str = "VIF in the pod's KuryrPort";

// === impl VifSource ===

impl VifSource {
    /// Decides, or names what is missing.
    ///
    /// # Errors
    /// If the VIF of the preferred source cannot be decoded.
    pub(super) fn evaluate(self, facts: &Facts<'_>) -> Result<Outcome, VifError> {
        match self {
            Self::Ipam => Ok(facts.ipam()),
            Self::Annotation => Ok(match facts.annotated()? {
                Some(outcome) => outcome,
                None if facts.is_watched => Outcome::Missing(ANNOTATION),
                None => Outcome::Never(ANNOTATION),
            }),
            Self::Auto => match facts.annotated()? {
                Some(outcome) => Ok(outcome),
                None if facts.knows_annotations() => Ok(facts.ipam()),
                None => Ok(Outcome::Missing(POD)),
            },
            Self::Kuryr => facts.kuryr_vif(),
        }
    }
}

// === impl Facts ===

impl Facts<'_> {
    fn knows_annotations(&self) -> bool {
        self.from_call.is_some() || self.from_watch.is_some() || !self.is_watched
    }

    fn ipam(&self) -> Outcome {
        if self.has_ranges { Outcome::Decided(Decision::FromIpam) } else { Outcome::MissingRange(POD_CIDR) }
    }

    /// The call's annotations are current when the call begins, while the watch may lag behind.
    fn annotated(&self) -> Result<Option<Outcome>, VifError> {
        let text = |it: &'_ Annotations| it.ferrule.clone();
        let text = self.from_call.and_then(text).or_else(|| self.from_watch.and_then(text));
        let vif = text.as_deref().map(ferrule_vif::from_annotation).transpose()?;
        Ok(vif.map(|vif| self.validatable(vif)))
    }

    fn kuryr_vif(&self) -> Result<Outcome, VifError> {
        if let Some(port) = self.port {
            let vif = kuryr::from_vifs(port.spec_vifs.as_deref(), port.status_vifs.as_deref())?;
            // Pods' users cannot write KuryrPorts, so that these VIFs need no ranges.
            return Ok(vif.map_or(Outcome::Missing(KURYR_VIF), |vif| Outcome::Decided(Decision::Fixed(vif))));
        }
        // Kuryr rewrites its annotation, so that the watch's copy is the newer one.
        let text = |it: &'_ Annotations| it.kuryr.clone();
        let text = self.from_watch.and_then(text).or_else(|| self.from_call.and_then(text));
        let vif = text.as_deref().map(kuryr::from_annotation).transpose()?;
        Ok(vif.map_or(Outcome::Missing(KURYR_PORT), |vif| self.validatable(vif)))
    }

    /// An annotated VIF is validated against ranges, and waits until some are known.
    fn validatable(&self, vif: VifRequest) -> Outcome {
        if self.has_ranges || self.has_vif_cidrs {
            Outcome::Decided(Decision::Fixed(vif))
        } else {
            Outcome::MissingRange(ALLOWED_RANGE)
        }
    }
}

/// Whether two VIFs are equal apart from the fields that change while a VIF becomes active.
pub(super) fn is_same(now: &VifRequest, before: &VifRequest) -> bool {
    let normalized = |vif: &VifRequest| -> Vec<_> {
        let interfaces = vif.interfaces.iter().cloned();
        interfaces.map(|it| InterfaceRequest { active: true, details: BTreeMap::new(), ..it }).collect()
    };
    normalized(now) == normalized(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VIF: &str = r#"{"interfaces":[{"addresses":["10.0.0.9"]}]}"#;
    const OTHER: &str = r#"{"interfaces":[{"addresses":["10.0.0.7"]}]}"#;
    const NOTHING: Facts<'_> = Facts {
        is_watched: true,
        from_call: None,
        from_watch: None,
        port: None,
        has_ranges: true,
        has_vif_cidrs: false,
    };

    fn annotated(text: Option<&str>) -> Annotations {
        Annotations { ferrule: text.map(str::to_owned), ..Annotations::default() }
    }

    fn first_address(outcome: Outcome) -> String {
        let Outcome::Decided(Decision::Fixed(vif)) = outcome else { panic!("{outcome:?}") };
        vif.interfaces[0].addresses[0].addr().to_string()
    }

    #[test]
    fn auto_takes_the_annotation_else_the_ipam_and_waits_until_the_annotations_are_known() {
        assert_eq!(VifSource::Auto.evaluate(&NOTHING).unwrap(), Outcome::Missing(POD));
        let without = annotated(None);
        let known = Facts { from_watch: Some(&without), ..NOTHING };
        assert_eq!(VifSource::Auto.evaluate(&known).unwrap(), Outcome::Decided(Decision::FromIpam));
        let standalone = Facts { is_watched: false, ..NOTHING };
        assert_eq!(VifSource::Auto.evaluate(&standalone).unwrap(), Outcome::Decided(Decision::FromIpam));
        let with = annotated(Some(VIF));
        let handed_over = Facts { from_call: Some(&with), ..standalone };
        assert_eq!(first_address(VifSource::Auto.evaluate(&handed_over).unwrap()), "10.0.0.9");
        assert_eq!(VifSource::Annotation.evaluate(&NOTHING).unwrap(), Outcome::Missing(ANNOTATION));
        assert_eq!(VifSource::Annotation.evaluate(&standalone).unwrap(), Outcome::Never(ANNOTATION));
        let decided = Facts { from_watch: Some(&with), ..NOTHING };
        assert_eq!(first_address(VifSource::Auto.evaluate(&decided).unwrap()), "10.0.0.9");
    }

    #[test]
    fn the_annotation_of_the_call_wins_over_that_of_the_watch() {
        let (call, watch) = (annotated(Some(OTHER)), annotated(Some(VIF)));
        let both = Facts { from_call: Some(&call), from_watch: Some(&watch), ..NOTHING };
        assert_eq!(first_address(VifSource::Annotation.evaluate(&both).unwrap()), "10.0.0.7");
        let without = annotated(None);
        let only_watch = Facts { from_call: Some(&without), ..both };
        assert_eq!(first_address(VifSource::Annotation.evaluate(&only_watch).unwrap()), "10.0.0.9");
    }

    #[test]
    fn kuryr_takes_its_port_else_the_newer_annotation_of_the_watch() {
        let pod: serde_json::Value =
            serde_json::from_str(include_str!("../../../vif/testdata/era2_pod_real_doc.json")).unwrap();
        let text = pod["metadata"]["annotations"]["openstack.org/kuryr-vif"].as_str().unwrap();
        let of = |text: &str| Annotations { kuryr: Some(text.to_owned()), ..Annotations::default() };
        let (watch, call) = (of(text), of("{"));
        let facts = Facts { from_call: Some(&call), from_watch: Some(&watch), ..NOTHING };
        let decided = VifSource::Kuryr.evaluate(&facts).unwrap();
        assert!(matches!(decided, Outcome::Decided(Decision::Fixed(_))), "the call's copy is older");
        let port = Port::default();
        let with_port = Facts { port: Some(&port), ..facts };
        assert_eq!(VifSource::Kuryr.evaluate(&with_port).unwrap(), Outcome::Missing(KURYR_VIF));
        assert_eq!(VifSource::Kuryr.evaluate(&NOTHING).unwrap(), Outcome::Missing(KURYR_PORT));
    }

    #[test]
    fn an_annotated_vif_waits_for_ranges_to_be_validated_against() {
        let with = annotated(Some(VIF));
        let facts = Facts { from_call: Some(&with), has_ranges: false, ..NOTHING };
        assert_eq!(VifSource::Annotation.evaluate(&facts).unwrap(), Outcome::MissingRange(ALLOWED_RANGE));
        let configured = Facts { has_vif_cidrs: true, ..facts };
        assert_eq!(first_address(VifSource::Annotation.evaluate(&configured).unwrap()), "10.0.0.9");
    }

    #[test]
    fn an_undecodable_annotation_is_an_error_and_no_reason_to_fall_back_to_the_ipam() {
        let broken = annotated(Some("{"));
        assert!(VifSource::Auto.evaluate(&Facts { from_call: Some(&broken), ..NOTHING }).is_err());
    }

    #[test]
    fn a_vif_that_only_becomes_active_is_the_same_vif() {
        let decode = |text| ferrule_vif::from_annotation(text).unwrap();
        let mut inactive = decode(VIF);
        inactive.interfaces[0].active = false;
        inactive.interfaces[0].details.insert("vlan_id", "7".to_owned());
        assert!(is_same(&decode(VIF), &inactive), "details are for display only");
        assert!(is_same(&inactive, &decode(VIF)));
        assert!(!is_same(&decode(OTHER), &inactive));
    }
}
