//! The supported versions of the CNI specification.

use std::fmt;

/// A version of the CNI specification, ordered by age.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CniVersion {
    V0_3_0,
    V0_3_1,
    V0_4_0,
    V1_0_0,
    V1_1_0,
}

/// Displays all supported versions.
pub(crate) struct Supported;

impl CniVersion {
    /// Oldest first.
    pub(crate) const ALL: [Self; 5] = [Self::V0_3_0, Self::V0_3_1, Self::V0_4_0, Self::V1_0_0, Self::V1_1_0];
    /// The version of errors if the requested version is unknown or unsupported.
    pub(crate) const NEWEST: Self = Self::V1_1_0;

    /// Parses a supported version.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.as_str() == text)
    }

    /// The value of `cniVersion`.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::V0_3_0 => "0.3.0",
            Self::V0_3_1 => "0.3.1",
            Self::V0_4_0 => "0.4.0",
            Self::V1_0_0 => "1.0.0",
            Self::V1_1_0 => "1.1.0",
        }
    }
}

impl fmt::Display for Supported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&CniVersion::ALL.map(CniVersion::as_str).join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_round_trip() {
        for version in CniVersion::ALL {
            assert_eq!(CniVersion::parse(version.as_str()), Some(version));
        }
        for text in ["", "0.1.0", "0.2.0", "1.0", "v1.0.0", "1.0.0 ", "1.2.0", "2.0.0"] {
            assert_eq!(CniVersion::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn versions_are_ordered_by_age() {
        assert!(CniVersion::ALL.is_sorted());
        assert_eq!(CniVersion::ALL.last(), Some(&CniVersion::NEWEST));
    }
}
