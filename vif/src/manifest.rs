//! Decodes the VIFs in a whole manifest: a Pod, a KuryrPort, or a list of them. For `ferrulectl vif decode`.

use ferrule_proto::{annotations::CONFIG_SOURCE, misspelt::is_misspelt, quoted::Quoted};
use serde::Serialize;

use crate::{
    ANNOTATION, KURYR_ANNOTATION, Source, VifError, VifRequest,
    cursor::{Cursor, Object},
    error::FieldError,
    from_annotation,
    json::Json,
    kuryr,
};

/// Longest manifest.
pub const MAX_BYTES: usize = 16 * 1024 * 1024;

/// The VIFs in one object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Decoded {
    /// The object's kind.
    pub kind: ObjectKind,
    /// The namespace of the object, which is the pod's.
    pub namespace: String,
    /// The name of the object, which is the pod's.
    pub name: String,
    /// The pod's UID, also in a KuryrPort.
    pub pod_uid: String,
    /// Whether the pod is static. The UID of a static pod differs between kubelet and API.
    pub static_pod: bool,
    /// In the agent's order of precedence. If empty, the agent's IPAM allocates addresses.
    pub found: Vec<Found>,
    /// Annotations that the agent ignores, and whose keys look like the ones that hold a VIF.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub misspelt: Vec<String>,
}

/// The kinds of objects that can have VIFs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum ObjectKind {
    /// A pod, with annotations.
    Pod,
    /// Kuryr's custom resource.
    KuryrPort,
}

/// The VIF in one source of an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Found {
    /// Where the VIF was read from.
    pub source: Source,
    /// The decoded VIF or the error.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// The result of decoding a source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// A valid VIF.
    Decoded(VifRequest),
    /// Kuryr's controller has not written the VIF yet.
    NotYet,
    /// An invalid VIF.
    Refused(VifError),
}

/// A manifest that is neither a Pod nor a KuryrPort nor a list of them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct ManifestError(#[from] FieldError);

/// Decodes a manifest in JSON: a Pod, a KuryrPort, or a list of them.
///
/// # Errors
/// If the manifest is longer than [`MAX_BYTES`] or malformed. An invalid VIF in the manifest is no error but
/// an [`Outcome::Refused`].
pub fn from_manifest(json: &str) -> Result<Vec<Decoded>, ManifestError> {
    let json = Json::parse(json, MAX_BYTES, "")?;
    let root = Cursor::root(&json, "").object()?;
    let kind = root.require("kind")?;
    let Some(of_items) = kind.text()?.strip_suffix("List") else { return Ok(vec![decode(&root, None)?]) };
    let items = root.items("items")?;
    // In a list of one kind, the API server omits the kind of the items.
    let decoded = items.iter().map(|at| decode(&at.object()?, Some(of_items)));
    Ok(decoded.collect::<Result<_, FieldError>>()?)
}

fn decode(object: &Object<'_>, default_kind: Option<&str>) -> Result<Decoded, FieldError> {
    let kind = match (object.get("kind"), default_kind) {
        (None, Some(kind)) if !kind.is_empty() => kind,
        _ => object.require("kind")?.text()?,
    };
    match kind {
        "Pod" => pod(object),
        "KuryrPort" => kuryr_port(object),
        _ => Err(object.error(format_args!("found kind {}, expected a Pod or a KuryrPort", Quoted(kind)))),
    }
}

fn pod(object: &Object<'_>) -> Result<Decoded, FieldError> {
    let metadata = object.require("metadata")?.object()?;
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
    let keys = annotations.iter().flat_map(Object::entries).map(|(key, _)| key);
    let misspelt = keys.filter(|key| looks_like_a_vif(key)).map(str::to_owned).collect();
    Ok(Decoded {
        kind: ObjectKind::Pod,
        namespace: text(Some(&metadata), "namespace")?,
        name: text(Some(&metadata), "name")?,
        pod_uid: text(Some(&metadata), "uid")?,
        static_pod: annotation(CONFIG_SOURCE)?.is_some_and(|source| source != "api"),
        found,
        misspelt,
    })
}

fn kuryr_port(object: &Object<'_>) -> Result<Decoded, FieldError> {
    let metadata = object.require("metadata")?.object()?;
    let part = |key: &str| object.get(key).map(|at| at.object()).transpose();
    let (spec, status) = (part("spec")?, part("status")?);
    let vifs = |part: &Option<Object<'_>>| {
        let vifs = part.as_ref()?.get("vifs")?;
        // Serialized again, so that the agent's length limit applies.
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
        misspelt: Vec::new(),
    })
}

fn looks_like_a_vif(key: &str) -> bool {
    let ours = [ANNOTATION, KURYR_ANNOTATION];
    !ours.contains(&key)
        && (ours.into_iter().any(|it| is_misspelt(key, it))
            || key.contains("ferrule.dev")
            || key.contains("kuryr-vif"))
}

fn text(object: Option<&Object<'_>>, key: &str) -> Result<String, FieldError> {
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
