//! The annotation `vif.ferrule.dev/v1`. The format is [`format`], its rules are in `docs/vif.md`.

mod format;
mod validate;

use crate::{Source, VifError, VifRequest, error::FieldError};

/// Decodes the value of the annotation [`crate::ANNOTATION`].
///
/// # Errors
/// If the text breaks a rule of `docs/vif.md`. The error reports the first violation.
pub fn from_annotation(text: &str) -> Result<VifRequest, VifError> {
    let decode = |text| -> Result<VifRequest, FieldError> { validate::validate(format::parse(text)?) };
    decode(text).map_err(|error| error.in_source(Source::Annotation))
}

#[cfg(test)]
mod tests;
