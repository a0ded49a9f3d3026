//! Errors of the decoders: which field, what was found, what was expected.

use std::fmt::{self, Display};

use serde::{Serialize, Serializer};

use crate::{ANNOTATION, KURYR_ANNOTATION};

/// A VIF that cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{origin}: {field}")]
pub struct VifError {
    /// Where the VIF was read from.
    pub origin: Source,
    field: FieldError,
}

/// Where a VIF is read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// The pod's [`ANNOTATION`].
    Annotation,
    /// The pod's [`KURYR_ANNOTATION`].
    KuryrAnnotation,
    /// The KuryrPort with the pod's name.
    KuryrPort,
}

/// An invalid field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize)]
pub(crate) struct FieldError {
    /// For instance `interfaces[1].routes[0].gw`; empty for the whole document.
    pub(crate) path: String,
    #[serde(rename = "why")]
    pub(crate) reason: String,
}

// === impl VifError ===

impl VifError {
    /// The path of the invalid field, for instance `interfaces[1].routes[0].gw`; empty for the whole
    /// document.
    pub fn path(&self) -> &str {
        &self.field.path
    }

    /// What was found and what was expected.
    pub fn reason(&self) -> &str {
        &self.field.reason
    }
}

impl Serialize for VifError {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.field.serialize(serializer)
    }
}

// === impl Source ===

impl Source {
    /// The name in the Kubernetes API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Annotation => ANNOTATION,
            Self::KuryrAnnotation => KURYR_ANNOTATION,
            Self::KuryrPort => "KuryrPort",
        }
    }
}

impl Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Annotation | Self::KuryrAnnotation => write!(f, "annotation {}", self.as_str()),
            Self::KuryrPort => f.write_str(self.as_str()),
        }
    }
}

impl Serialize for Source {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

// === impl FieldError ===

impl FieldError {
    pub(crate) fn new(path: impl Display, reason: impl Display) -> Self {
        Self { path: path.to_string(), reason: reason.to_string() }
    }

    pub(crate) fn in_source(self, origin: Source) -> VifError {
        VifError { origin, field: self }
    }
}

impl Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => f.write_str(&self.reason),
            path => write!(f, "{path}: {}", self.reason),
        }
    }
}
