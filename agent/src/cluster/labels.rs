//! The labels of a Node in few bytes: each agent keeps those of the whole cluster.

/// Labels as the JSON of an object, in which characters stand for frequent parts. Equal ones are equal bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Labels(Box<str>);

/// What the kubelet, controllers of clouds and kubeadm set on every node; longer parts before parts of these.
/// No more than there are characters for them.
const PARTS: [&str; 17] = [
    r#""failure-domain.beta.kubernetes.io/region":""#,
    r#""failure-domain.beta.kubernetes.io/zone":""#,
    r#""beta.kubernetes.io/instance-type":""#,
    r#""node.kubernetes.io/instance-type":""#,
    r#""topology.kubernetes.io/region":""#,
    r#""topology.kubernetes.io/zone":""#,
    r#""beta.kubernetes.io/arch":"amd64","#,
    r#""beta.kubernetes.io/arch":""#,
    r#""beta.kubernetes.io/os":"linux","#,
    r#""kubernetes.io/arch":"amd64","#,
    r#""kubernetes.io/arch":""#,
    r#""kubernetes.io/hostname":""#,
    r#""kubernetes.io/os":"linux","#,
    r#""feature.node.kubernetes.io/"#,
    ".kubernetes.io/",
    r#"":"true",""#,
    r#"","#,
];
/// The first of the characters that stand for parts. JSON has no control characters from here on.
const FIRST: char = '\u{e}';
/// Stands for the label that has the name of the Node.
const NAME: char = '\u{1f}';

// === impl Labels ===

impl Labels {
    /// `json`: an object. `node`: the name of the Node.
    pub fn new(json: &str, node: &str) -> Self {
        // The name first: only the text of JSON has no character that stands for a part.
        let text = json.replace(&hostname(node), NAME.encode_utf8(&mut [0; 4]));
        let pack = |text: String, (character, part): (char, &str)| {
            text.replace(part, character.encode_utf8(&mut [0; 4]))
        };
        Self(parts().fold(text, pack).into())
    }

    /// The text that was packed, with the same name. Empty without labels.
    pub fn json(&self, node: &str) -> String {
        let unpack = |text: String, (character, part): (char, &str)| text.replace(character, part);
        parts().fold(self.0.to_string(), unpack).replace(NAME, &hostname(node))
    }

    /// Bytes.
    #[cfg(test)]
    pub fn size(&self) -> usize {
        self.0.len()
    }
}

/// The label that is the name of the Node, most often.
fn hostname(node: &str) -> String {
    format!(r#""kubernetes.io/hostname":"{node}""#)
}

fn parts() -> impl Iterator<Item = (char, &'static str)> {
    (FIRST..).zip(PARTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_take_less_and_come_back_as_they_were() {
        for (json, size) in [
            ("", 0),
            ("{}", 2),
            (r#"{"kubernetes.io/hostname":"node-1"}"#, 3),
            (r#"{"kubernetes.io/hostname":"node-10"}"#, 11),
            (r#"{"beta.kubernetes.io/os":"linux","kubernetes.io/os":"linux","pool":"a"}"#, 14),
            // An escaped control character, and two between the tokens.
            ("{\t\"a\":\"\\u000e\",\n\"b\":\"c\"}", 23),
        ] {
            let labels = Labels::new(json, "node-1");
            assert_eq!((labels.json("node-1").as_str(), labels.size()), (json, size));
        }
    }

    #[test]
    fn names_that_no_node_can_have_garble_no_labels() {
        let json = r#"{"kubernetes.io/hostname":"","kubernetes.io/os":"linux","a":"b"}"#;
        for name in ["", "\u{e}", "\u{1f}", "\"", "\",\"a"] {
            assert_eq!(Labels::new(json, name).json(name), json, "{name:?}");
        }
    }

    #[test]
    fn each_part_has_a_character_that_no_json_has() {
        assert!(parts().all(|(character, _)| character < NAME));
        let text = PARTS.concat();
        assert_eq!(Labels::new(&text, "a").json("a"), text);
        for (at, part) in PARTS.iter().enumerate() {
            assert!(PARTS.iter().take(at).all(|earlier| !part.contains(earlier)), "{part} is never found");
        }
    }
}
