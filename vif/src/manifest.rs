//! What a whole manifest, of a Pod or of a KuryrPort or a list of them, says of VIFs: for people.

use ferrule_proto::annotations::CONFIG_SOURCE;
use serde::Serialize;

use crate::{
    ANNOTATION, KURYR_ANNOTATION, Source, VifError, VifRequest,
    at::{At, Object},
    error::{Shown, Wrong},
    from_annotation,
    json::Json,
    kuryr,
};

/// The longest manifest, in bytes.
pub const MAX_BYTES: usize = 16 * 1024 * 1024;

/// What one object says of a pod's VIF.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Decoded {
    /// Of the object.
    pub kind: ObjectKind,
    /// Of the pod, and of its KuryrPort.
    pub namespace: String,
    /// Of the pod, and of its KuryrPort.
    pub name: String,
    /// The pod's, also where a KuryrPort tells it.
    pub pod_uid: String,
    /// Whether the kubelet has the pod from elsewhere than the API, where its UID is another one.
    pub static_pod: bool,
    /// In the order in which the agent looks. Nothing at all means that the agent's IPAM decides.
    pub found: Vec<Found>,
}

/// The kinds of objects that tell of VIFs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum ObjectKind {
    /// With its annotations.
    Pod,
    /// Kuryr's custom resource.
    KuryrPort,
}

/// What one source of an object says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Found {
    /// Where.
    pub source: Source,
    /// What.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// What came of decoding a source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// A VIF.
    Decoded(VifRequest),
    /// Its writer has not written the VIF yet.
    NotYet,
    /// It is no VIF.
    Refused(VifError),
}

/// A manifest that is none of a Pod or a KuryrPort.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct ManifestError(#[from] Wrong);

/// Decodes a manifest in JSON: a Pod, a KuryrPort, or a list of them.
///
/// # Errors
/// If it is longer than [`MAX_BYTES`], or not such a manifest. A VIF in it that cannot be decoded is an
/// [`Outcome::Refused`].
pub fn from_manifest(json: &str) -> Result<Vec<Decoded>, ManifestError> {
    let json = Json::parse(json, MAX_BYTES, "")?;
    let root = At::root(&json, "").object()?;
    let kind = root.need("kind")?;
    let Some(of_items) = kind.text()?.strip_suffix("List") else { return Ok(vec![decode(&root, None)?]) };
    let items = root.items("items")?;
    // In a list of one kind, the API server leaves the kind of the items out.
    let decoded = items.iter().map(|at| decode(&at.object()?, Some(of_items)));
    Ok(decoded.collect::<Result<_, Wrong>>()?)
}

fn decode(object: &Object<'_>, default_kind: Option<&str>) -> Result<Decoded, Wrong> {
    let kind = match (object.get("kind"), default_kind) {
        (None, Some(kind)) if !kind.is_empty() => kind,
        _ => object.need("kind")?.text()?,
    };
    match kind {
        "Pod" => pod(object),
        "KuryrPort" => kuryr_port(object),
        _ => Err(object.wrong(format_args!("is a {}: expected a Pod or a KuryrPort", Shown(kind)))),
    }
}

fn pod(object: &Object<'_>) -> Result<Decoded, Wrong> {
    let metadata = object.need("metadata")?.object()?;
    let annotations = metadata.get("annotations").map(|at| at.object()).transpose()?;
    let annotation = |key: &str| {
        annotations.as_ref().and_then(|annotations| annotations.get(key)).map(|at| at.text()).transpose()
    };
    let mut found = Vec::new();
    if let Some(text) = annotation(ANNOTATION)? {
        found.push(Found::new(Source::Annotation, from_annotation(text).map(Some)));
    }
    if let Some(text) = annotation(KURYR_ANNOTATION)? {
        found.push(Found::new(Source::KuryrAnnotation, kuryr::from_annotation(text).map(Some)));
    }
    Ok(Decoded {
        kind: ObjectKind::Pod,
        namespace: text(Some(&metadata), "namespace")?,
        name: text(Some(&metadata), "name")?,
        pod_uid: text(Some(&metadata), "uid")?,
        static_pod: annotation(CONFIG_SOURCE)?.is_some_and(|source| source != "api"),
        found,
    })
}

fn kuryr_port(object: &Object<'_>) -> Result<Decoded, Wrong> {
    let metadata = object.need("metadata")?.object()?;
    let part = |key: &str| object.get(key).map(|at| at.object()).transpose();
    let (spec, status) = (part("spec")?, part("status")?);
    let vifs = |part: &Option<Object<'_>>| {
        let vifs = part.as_ref()?.get("vifs")?;
        // As JSON again, and so within the bounds that the agent keeps.
        serde_json::to_string(vifs.json()).ok()
    };
    let decoded = kuryr::from_vifs(vifs(&spec).as_deref(), vifs(&status).as_deref());
    let static_pod = spec.as_ref().and_then(|spec| spec.get("podStatic"));
    Ok(Decoded {
        kind: ObjectKind::KuryrPort,
        namespace: text(Some(&metadata), "namespace")?,
        name: text(Some(&metadata), "name")?,
        pod_uid: text(spec.as_ref(), "podUid")?,
        static_pod: static_pod.map_or(Ok(false), |at| at.bool())?,
        found: vec![Found::new(Source::KuryrPort, decoded)],
    })
}

fn text(object: Option<&Object<'_>>, key: &str) -> Result<String, Wrong> {
    let at = object.and_then(|object| object.get(key));
    at.map_or_else(|| Ok(String::new()), |at| at.text().map(str::to_owned))
}

// === impl Found ===

impl Found {
    fn new(source: Source, decoded: Result<Option<VifRequest>, VifError>) -> Self {
        let outcome = match decoded {
            Ok(Some(vif)) => Outcome::Decoded(vif),
            Ok(None) => Outcome::NotYet,
            Err(error) => Outcome::Refused(error),
        };
        Self { source, outcome }
    }
}

#[cfg(test)]
mod tests;
