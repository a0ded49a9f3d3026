//! Label selectors.

use std::collections::BTreeMap;

use ferrule_proto::quoted::Quoted;
use serde::Deserialize;

use crate::{Condition, Requirement, Selector};

/// A `metav1.LabelSelector`.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "Raw")]
pub(super) struct LabelSelector(pub(super) Selector);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Raw {
    match_labels: Option<BTreeMap<String, String>>,
    match_expressions: Option<Vec<Expression>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expression {
    key: String,
    operator: String,
    values: Option<Vec<String>>,
}

impl TryFrom<Raw> for LabelSelector {
    type Error = String;

    fn try_from(raw: Raw) -> Result<Self, String> {
        let labels = raw.match_labels.unwrap_or_default().into_iter();
        let labels = labels.map(|(key, value)| Ok(Requirement { key, is: Condition::In(vec![value]) }));
        let expressions = raw.match_expressions.unwrap_or_default().into_iter().map(requirement);
        let mut requirements = labels.chain(expressions).collect::<Result<Vec<_>, String>>()?;
        requirements.sort();
        requirements.dedup();
        Ok(Self(Selector(requirements)))
    }
}

fn requirement(expression: Expression) -> Result<Requirement, String> {
    let Expression { key, operator, values } = expression;
    let mut values = values.unwrap_or_default();
    values.sort();
    values.dedup();
    let some = |values: Vec<String>| match values.is_empty() {
        true => Err(format!("found no values, expected some with the operator {}", Quoted(&operator))),
        false => Ok(values),
    };
    let none = |is| match values.len() {
        0 => Ok(is),
        n => Err(format!("found {n} values, expected none with the operator {}", Quoted(&operator))),
    };
    let is = match operator.as_str() {
        "In" => Condition::In(some(values)?),
        "NotIn" => Condition::NotIn(some(values)?),
        "Exists" => none(Condition::Exists)?,
        "DoesNotExist" => none(Condition::DoesNotExist)?,
        other => {
            return Err(format!(
                "found the operator {}, expected In, NotIn, Exists or DoesNotExist",
                Quoted(other)
            ));
        }
    };
    Ok(Requirement { key, is })
}
