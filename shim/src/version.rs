//! The versions of the CNI specification that this plugin speaks.

use std::fmt;

/// A version of the CNI specification; a later one is greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CniVersion {
    V0_3_0,
    V0_3_1,
    V0_4_0,
    V1_0_0,
    V1_1_0,
}

/// The supported versions as one phrase, for messages.
pub(crate) struct Supported;

impl CniVersion {
    /// Every version, the oldest first.
    pub(crate) const ALL: [Self; 5] = [Self::V0_3_0, Self::V0_3_1, Self::V0_4_0, Self::V1_0_0, Self::V1_1_0];
    /// What an answer is written in when no supported version was asked for.
    pub(crate) const NEWEST: Self = Self::V1_1_0;

    /// The version that `text` names, if it is supported.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.as_str() == text)
    }

    /// The version as it stands in `cniVersion`.
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
    fn versions_are_parsed_as_they_are_printed() {
        for version in CniVersion::ALL {
            assert_eq!(CniVersion::parse(version.as_str()), Some(version));
        }
        for text in ["", "0.1.0", "0.2.0", "1.0", "v1.0.0", "1.0.0 ", "1.2.0", "2.0.0"] {
            assert_eq!(CniVersion::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn versions_are_ordered_and_the_newest_is_the_last() {
        assert!(CniVersion::ALL.is_sorted());
        assert_eq!(CniVersion::ALL.last(), Some(&CniVersion::NEWEST));
    }
}
