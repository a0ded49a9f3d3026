//! What is wrong with a VIF: where, and what was expected there.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::{ANNOTATION, KURYR_ANNOTATION};

/// A VIF that cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{origin}: {wrong}")]
pub struct VifError {
    /// Where it was written.
    pub origin: Source,
    wrong: Wrong,
}

/// Where a VIF is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// [`ANNOTATION`] of the pod.
    Annotation,
    /// [`KURYR_ANNOTATION`] of the pod.
    KuryrAnnotation,
    /// The KuryrPort of the pod's name.
    KuryrPort,
}

/// A value that is not what it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize)]
pub(crate) struct Wrong {
    /// Such as `interfaces[1].routes[0].gw`; empty for the whole.
    pub(crate) path: String,
    pub(crate) why: String,
}

/// A text from outside, made fit for a message: quoted, escaped, and cut to a length that cannot flood a log.
pub(crate) struct Shown<'a>(pub(crate) &'a str);

/// How many characters [`Shown`] shows.
const SHOWN: usize = 64;

// === impl VifError ===

impl VifError {
    /// The field that is wrong, such as `interfaces[1].routes[0].gw`; empty if it is the whole.
    pub fn path(&self) -> &str {
        &self.wrong.path
    }

    /// What is wrong with it.
    pub fn why(&self) -> &str {
        &self.wrong.why
    }
}

impl Serialize for VifError {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.wrong.serialize(serializer)
    }
}

// === impl Source ===

impl Source {
    /// As it is called in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Annotation => ANNOTATION,
            Self::KuryrAnnotation => KURYR_ANNOTATION,
            Self::KuryrPort => "KuryrPort",
        }
    }
}

impl fmt::Display for Source {
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

// === impl Wrong ===

impl Wrong {
    pub(crate) fn of(self, origin: Source) -> VifError {
        VifError { origin, wrong: self }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => f.write_str(&self.why),
            path => write!(f, "{path}: {}", self.why),
        }
    }
}

// === impl Shown ===

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.char_indices().nth(SHOWN) {
            Some((end, _)) => write!(f, "{:?}...", self.0.get(..end).unwrap_or_default()),
            None => write!(f, "{:?}", self.0),
        }
    }
}
