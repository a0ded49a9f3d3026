//! The measured policies.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

/// The label `role` of the pods whose traffic is measured.
pub(super) const PAIR: &str = "pair";
/// That of a pod which reaches the pair while the large policies are in force, but only then.
pub(super) const WITNESS: &str = "witness";
/// So many ports occur in the rules of a large policy.
pub(super) const PORTS: usize = 100;
pub(super) const FIRST_PORT: usize = 1_000;
/// An object of the API server must not exceed 1.5 MiB.
const RULES_OF_A_POLICY: usize = 1_000;
/// Shared addresses (RFC 6598), which no pod has.
const FIRST_BLOCK: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 0);

/// What a careful user writes: nothing is allowed, but for the pair's one port, at both ends.
pub(super) fn few(port: u16) -> Vec<(String, Value)> {
    let peer = json!([{ "podSelector": { "matchLabels": { "role": PAIR } } }]);
    let ports = json!([{ "port": port }]);
    let deny = json!({ "podSelector": {}, "policyTypes": ["Ingress", "Egress"] });
    // Witness and stranger may ask; the pair decides.
    let others = json!([{ "key": "role", "operator": "NotIn", "values": [PAIR] }]);
    let ask = json!({ "podSelector": { "matchExpressions": others }, "policyTypes": ["Ingress", "Egress"],
        "egress": [{}] });
    let ingress = json!([{ "from": peer, "ports": ports }]);
    let allow = of_pair(&ingress, &json!([{ "to": peer, "ports": ports }]));
    [("deny", deny), ("ask", ask), ("allow", allow)].map(|(name, spec)| (name.to_owned(), spec)).into()
}

/// So many rules for each direction of the pair, none of which concerns the pair's traffic. The last policy
/// lets the witness in.
pub(super) fn many(count: usize) -> Vec<(String, Value)> {
    let numbers: Vec<usize> = (0..count).collect();
    let policy = |(number, part): (usize, &[usize])| {
        let [ingress, egress] =
            ["from", "to"].map(|side| part.iter().map(|it| rule(*it, side)).collect::<Vec<_>>());
        (format!("many-{number}"), of_pair(&json!(ingress), &json!(egress)))
    };
    let last = json!([{ "from": [{ "podSelector": { "matchLabels": { "role": WITNESS } } }] }]);
    let parts = numbers.chunks(RULES_OF_A_POLICY).enumerate().map(policy);
    parts.chain([("many-witness".to_owned(), of_pair(&last, &json!([])))]).collect()
}

/// One policy for the ingress of pods with a role: so many rules, and a last one for the pods with another.
pub(super) fn large(count: usize, role: &str, from: &str) -> Value {
    let last = json!({ "from": [{ "podSelector": { "matchLabels": { "role": from } } }] });
    let rules: Vec<Value> = (0..count).map(|it| rule(it, "from")).chain([last]).collect();
    json!({ "podSelector": { "matchLabels": { "role": role } }, "ingress": rules })
}

/// The block of a rule with a number.
pub(super) fn block(number: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(FIRST_BLOCK.to_bits() + u32::try_from(number).unwrap_or_default())
}

fn of_pair(ingress: &Value, egress: &Value) -> Value {
    json!({ "podSelector": { "matchLabels": { "role": PAIR } }, "policyTypes": ["Ingress", "Egress"],
        "ingress": ingress, "egress": egress })
}

/// Every eighth rule names pods, the others a block each.
fn rule(number: usize, side: &str) -> Value {
    let peer = if number % 8 == 7 {
        json!({ "podSelector": { "matchLabels": { "app": format!("app-{number}") } } })
    } else {
        json!({ "ipBlock": { "cidr": format!("{}/32", block(number)) } })
    };
    json!({ side: [peer], "ports": [{ "port": FIRST_PORT + number % PORTS }] })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(policies: &[(String, Value)], direction: &str) -> usize {
        let rules =
            |(_, spec): &(String, Value)| spec.get(direction).and_then(Value::as_array).map_or(0, Vec::len);
        policies.iter().map(rules).sum()
    }

    #[test]
    fn many_rules_are_in_each_direction_and_one_is_for_the_witness() {
        let policies = many(2_500);
        assert_eq!([count(&policies, "ingress"), count(&policies, "egress")], [2_501, 2_500]);
        assert_eq!(policies.len(), 4);
    }

    #[test]
    fn a_policy_fits_into_the_api() {
        assert!(many(1_000).iter().all(|(_, spec)| spec.to_string().len() < 3 << 19));
        assert!(large(10_000, "a", "b").to_string().len() < 3 << 19);
    }

    #[test]
    fn blocks_are_distinct() {
        assert_eq!(block(0).to_string(), "100.64.0.0");
        assert_eq!(block(9_999).to_string(), "100.64.39.15");
    }
}
