//! Rows in words, for `ferrulectl explain`.

use agent_common::{Endpoint, VifEntry, VifKey, policy::Subject};
use ferrule_vif::{Addresses, Mac};

use super::{Endpoints, VifCounters, Vifs, endpoints, entries::Entries, table::Table, vifs};

/// A row that an attachment should have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShownRow {
    pub map: &'static str,
    pub key: String,
    /// `None`: the row is missing.
    pub value: Option<String>,
}

/// The field of `VIFS` that says what judges a pod, where the names of maps stand.
pub const SUBJECT: &str = "VIFS.subject";

// === impl Entries ===

impl Entries {
    /// The rows of an attachment with these addresses, whether they are there or not.
    pub fn shown(&self, ifindex: u32, addresses: Addresses) -> Vec<ShownRow> {
        let key = VifKey { ifindex };
        let row = |map, key: String, value| ShownRow { map, key, value };
        let vif = self.vifs.get(&key).map(vif);
        let counters = self.counters.get(&key).map(|()| "counts".to_owned());
        let mut rows = vec![row(Vifs::SPEC.name, ifindex.to_string(), vif)];
        for address in addresses.iter() {
            let value = self.endpoints.get(&endpoints::key(address)).map(endpoint);
            rows.push(row(Endpoints::SPEC.name, address.to_string(), value));
        }
        rows.push(row(VifCounters::SPEC.name, ifindex.to_string(), counters));
        rows
    }
}

/// What judges the pod behind an interface.
pub fn shown_subject(ifindex: u32, subject: Option<Subject>) -> ShownRow {
    let ruleset = |number| match number {
        Subject::OPEN => "open".to_owned(),
        number => format!("ruleset {number}"),
    };
    let value = subject.map(|Subject { ingress, egress, table, epoch, flags }| {
        let audit = if flags & Subject::AUDIT == 0 { "" } else { ", audited" };
        let (ingress, egress) = (ruleset(ingress), ruleset(egress));
        format!("ingress {ingress}, egress {egress}, table {table}, epoch {epoch}{audit}")
    });
    ShownRow { map: SUBJECT, key: ifindex.to_string(), value }
}

fn vif(row: &VifEntry) -> String {
    let addresses: Vec<_> = vifs::addresses(row).iter().map(|it| it.to_string()).collect();
    format!(
        "{} of {}, may use {} with the MAC {}, MTU {}, generation {}",
        shown_text(&row.ifname),
        shown_text(&row.pod),
        addresses.join(" and "),
        Mac(row.mac),
        row.mtu,
        row.generation
    )
}

fn endpoint(row: &Endpoint) -> String {
    format!("interface {}, MAC {}", row.ifindex, Mac(row.mac))
}

/// The content of a text field: up to the first NUL.
pub fn shown_text(field: &[i8]) -> String {
    field.iter().take_while(|byte| **byte != 0).map(|byte| char::from(byte.cast_unsigned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::testing::attachment;

    #[test]
    fn rows_are_in_words_and_a_missing_one_has_none() {
        let web = attachment("eth0", None, 2);
        let entries = Entries::of(2, &web);
        let addresses = web.vif.addresses;
        let shown = entries.shown(2, addresses);
        let maps: Vec<_> = shown.iter().map(|it| (it.map, it.key.as_str())).collect();
        let expected =
            [("VIFS", "2"), ("ENDPOINTS", "10.0.0.2"), ("ENDPOINTS", "fd00::2"), ("VIF_COUNTERS", "2")];
        assert_eq!(maps, expected);
        let value = shown[0].value.clone().unwrap();
        assert!(
            value.contains("may use 10.0.0.2 and fd00::2 with the MAC") && !value.contains('\0'),
            "{value}"
        );
        assert!(shown[1].value.clone().unwrap().starts_with("interface 2, MAC "));
        let without = entries.without(super::super::Entry::Vif(2)).shown(2, addresses);
        assert_eq!((without[0].value.clone(), without.len()), (None, 4));
    }

    #[test]
    fn what_judges_a_pod_is_in_words() {
        let subject =
            Subject { ingress: 3, egress: Subject::OPEN, table: 1, epoch: 9, flags: Subject::AUDIT };
        let value = shown_subject(2, Some(subject)).value.unwrap();
        assert_eq!(value, "ingress ruleset 3, egress open, table 1, epoch 9, audited");
        assert_eq!(shown_subject(2, None).value, None);
    }
}
