//! The agent's tables as the kernel has them, for bug reports.

use std::{
    fmt::Write as _,
    io,
    net::{Ipv4Addr, Ipv6Addr},
};

use super::{
    super::message::{Attribute, attributes_of, find},
    host_ports_table, masquerade_table,
    nfnetlink::{dump, number, text},
    numbers::{
        CHAIN_HOOK, CHAIN_NAME, CHAIN_POLICY, EXPRESSION_DATA, EXPRESSION_NAME, GET_CHAIN, GET_RULE, GET_SET,
        HOOK_NUMBER, HOOK_PRIORITY, INET, OF_TABLE, RULE_CHAIN, RULE_EXPRESSIONS, SET_KEY_TYPE, SET_NAME,
    },
    sets::{self, Element, IPV4_ADDRESS, IPV6_ADDRESS},
    table,
};

/// Sets with their elements, chains with their rules. A rule's expressions have their attributes by number,
/// as in `linux/netfilter/nf_tables.h`, in hexadecimal.
pub fn listing() -> String {
    let mut all = String::new();
    for name in [masquerade_table::NAME, host_ports_table::NAME] {
        match of_table(name) {
            Ok(text) => all += &text,
            Err(error) => {
                let _ = writeln!(all, "table inet {name}: cannot be read: {error}");
            }
        }
    }
    all
}

fn of_table(name: &str) -> io::Result<String> {
    if !table::exists(name)? {
        return Ok(format!("table inet {name}: does not exist\n"));
    }
    let of_table = [Attribute::text(OF_TABLE, name)];
    // The kernel may show objects of other tables, too.
    let read = |kind| -> io::Result<Vec<Vec<u8>>> {
        let found = dump(kind, INET, &of_table)?.into_iter().map(|it| it.1);
        Ok(found.filter(|it| of_table.iter().all(|name| name.is_in(it))).collect())
    };
    let mut all = format!("table inet {name}\n");
    for set in read(GET_SET)? {
        let set_name = find(&set, &[SET_NAME]).map(text).unwrap_or_default();
        let key_type = find(&set, &[SET_KEY_TYPE]).and_then(number).unwrap_or_default();
        let mut elements = sets::read(name, &set_name)?;
        elements.sort();
        let elements: Vec<_> = elements.iter().map(|it| element(it, key_type)).collect();
        let _ = writeln!(all, "  set {set_name}: {}", elements.join(", "));
    }
    let rules = read(GET_RULE)?;
    for of_chain in read(GET_CHAIN)? {
        let (line, chain_name) = chain(&of_chain);
        let _ = writeln!(all, "  {line}");
        let of_chain = Attribute::text(RULE_CHAIN, &chain_name);
        for of_chain in rules.iter().filter(|it| of_chain.is_in(it)) {
            let _ = writeln!(all, "    {}", rule(of_chain));
        }
    }
    Ok(all)
}

/// A line, and the chain's name.
fn chain(attributes: &[u8]) -> (String, String) {
    let name = find(attributes, &[CHAIN_NAME]).map(text).unwrap_or_default();
    let of_hook = |kind| find(attributes, &[CHAIN_HOOK, kind]).and_then(number);
    let mut line = format!("chain {name}");
    if let (Some(hook), Some(priority)) = (of_hook(HOOK_NUMBER), of_hook(HOOK_PRIORITY)) {
        let policy = find(attributes, &[CHAIN_POLICY]).and_then(number).unwrap_or_default();
        let _ = write!(line, " hook {hook} priority {} policy {policy}", priority.cast_signed());
    }
    (line, name)
}

fn rule(attributes: &[u8]) -> String {
    let list = find(attributes, &[RULE_EXPRESSIONS]).unwrap_or_default();
    let expressions = attributes_of(list).map(|it| {
        let name = find(it.value(), &[EXPRESSION_NAME]).map(text).unwrap_or_default();
        let data = find(it.value(), &[EXPRESSION_DATA]).unwrap_or_default();
        format!("{name}{}", tree(data))
    });
    expressions.collect::<Vec<_>>().join("; ")
}

/// ` 1=00000002 3(1=0a000000)`
fn tree(bytes: &[u8]) -> String {
    let mut all = String::new();
    for it in attributes_of(bytes) {
        let _ = match it.nested_flag() {
            true => write!(all, " {}({})", it.kind(), tree(it.value()).trim_start()),
            false => write!(all, " {}={}", it.kind(), hex(it.value())),
        };
    }
    all
}

fn element(Element { key, data, is_end }: &Element, key_type: u32) -> String {
    let key = match (key_type, <[u8; 4]>::try_from(key.as_slice()), <[u8; 16]>::try_from(key.as_slice())) {
        (of, Ok(v4), _) if of == IPV4_ADDRESS.number => Ipv4Addr::from(v4).to_string(),
        (of, _, Ok(v6)) if of == IPV6_ADDRESS.number => Ipv6Addr::from(v6).to_string(),
        _ => hex(key),
    };
    let end = if *is_end { "before " } else { "" };
    let data = data.as_ref().map(|it| format!(" → {}", hex(it))).unwrap_or_default();
    format!("{end}{key}{data}")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|it| format!("{it:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::{super::super::message::encode_all, *};

    #[test]
    fn elements_are_addresses_where_the_set_has_such_and_otherwise_hexadecimal() {
        let of = |key: &[u8], data: Option<Vec<u8>>, key_type| {
            element(&Element { key: key.to_vec(), data, is_end: false }, key_type)
        };
        assert_eq!(of(&[10, 244, 0, 0], None, IPV4_ADDRESS.number), "10.244.0.0");
        assert_eq!(of(&[10, 244, 0, 0], Some(vec![0x1f, 0x90]), 13), "0af40000 → 1f90");
        assert_eq!(of(&[0; 16], None, IPV6_ADDRESS.number), "::");
        let end = Element { key: vec![10, 245, 0, 0], data: None, is_end: true };
        assert_eq!(element(&end, IPV4_ADDRESS.number), "before 10.245.0.0");
    }

    #[test]
    fn a_rule_shows_the_names_of_its_expressions_with_their_attributes() {
        let text = |kind, value: &str| Attribute::text(kind, value);
        let data = vec![Attribute::number(1, 7), Attribute::Nest(3, vec![Attribute::Value(1, vec![10, 0])])];
        let cmp =
            Attribute::Nest(1, vec![text(EXPRESSION_NAME, "cmp"), Attribute::Nest(EXPRESSION_DATA, data)]);
        let counter = Attribute::Nest(1, vec![text(EXPRESSION_NAME, "counter")]);
        let found = encode_all(&[Attribute::Nest(RULE_EXPRESSIONS, vec![counter, cmp])]);
        assert_eq!(rule(&found), "counter; cmp 1=00000007 3(1=0a00)");
    }
}
