//! The answers of several nodes as data: each document with the name of its node.

use std::io::{BufRead, Read, Write};

use anyhow::Context as _;
use serde::Serialize;
use serde_json::value::RawValue;

/// What one node has answered.
#[derive(Serialize)]
struct Answer<'a> {
    node: &'a str,
    answer: Box<RawValue>,
}

/// Writes each JSON document as it comes.
///
/// # Errors
/// If the node writes anything else, or the output is closed.
pub(super) fn json(node: &str, from: impl Read, mut to: impl Write) -> anyhow::Result<()> {
    for answer in serde_json::Deserializer::from_reader(from).into_iter() {
        let answer = answer.with_context(|| format!("the answer of the node {node} is no JSON"))?;
        let line = serde_json::to_string(&Answer { node, answer })?;
        writeln!(to, "{line}").and_then(|()| to.flush()).context("cannot write the output")?;
    }
    Ok(())
}

/// The same of YAML documents: a line `---` is never part of one.
///
/// # Errors
/// If the output of the node cannot be read, or the own one is closed.
pub(super) fn yaml(node: &str, from: impl BufRead, mut to: impl Write) -> anyhow::Result<()> {
    let mut is_first = true;
    for line in from.lines() {
        let line = line.with_context(|| format!("cannot read the answer of the node {node}"))?;
        let begins = line == "---";
        if begins || is_first {
            // Quoted as in JSON: a node's name may look like a number.
            writeln!(to, "---\nnode: \"{node}\"\nanswer:")?;
            is_first = false;
        }
        if !begins {
            writeln!(to, "  {line}")?;
        }
        to.flush()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn each_json_document_gets_the_name_of_its_node() {
        let mut written = Vec::new();
        json("a", b"{\n  \"b\": 1,\n  \"a\": \"x\"\n}\n[2]\n".as_slice(), &mut written).unwrap();
        let documents = serde_json::Deserializer::from_slice(&written).into_iter();
        let documents: Vec<Value> = documents.map(Result::unwrap).collect();
        let expected =
            [json!({"node": "a", "answer": {"b": 1, "a": "x"}}), json!({"node": "a", "answer": [2]})];
        assert_eq!(documents, expected);
        let mut nothing = Vec::new();
        json("a", b"".as_slice(), &mut nothing).unwrap();
        assert!(nothing.is_empty(), "no answer, no document");
        let error = json("a", b"no answer\n".as_slice(), Vec::new()).unwrap_err();
        assert!(format!("{error:#}").contains("the answer of the node a is no JSON"), "{error:#}");
    }

    #[test]
    fn each_yaml_document_gets_the_name_of_its_node() {
        let of = |text: &str| {
            let mut written = Vec::new();
            yaml("1e3", text.as_bytes(), &mut written).unwrap();
            let written = String::from_utf8(written).unwrap();
            let documents = written.split("---\n").skip(1);
            documents.map(|it| serde_saphyr::from_str(it).unwrap()).collect::<Vec<Value>>()
        };
        let answer = json!({"text": "one\n\n  two\n", "list": [1, {"a": "b: c"}], "no": null});
        let wrapped = json!({"node": "1e3", "answer": answer});
        let document = crate::output::yaml(&answer).unwrap();
        assert_eq!(of(&document), std::slice::from_ref(&wrapped));
        assert_eq!(of(&format!("---\n{document}\n---\n{document}")), [wrapped.clone(), wrapped]);
        assert!(of("").is_empty());
    }
}
