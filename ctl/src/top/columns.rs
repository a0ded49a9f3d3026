//! The columns, of the printed table and of the live view.

use super::rates::{Rate, shown};
use crate::table::{columns, pod};

pub(super) const HEADER: [&str; 7] = ["POD", "IF", "OUT PKTS/s", "OUT B/s", "IN PKTS/s", "IN B/s", "DROPS/s"];

/// All rows as text.
pub(super) fn table(rates: &[Rate]) -> String {
    columns(&HEADER, rates.iter().map(|it| row(it).into()))
}

/// A row below [`HEADER`].
pub(super) fn row(it: &Rate) -> [String; 7] {
    let [out_packets, out_bytes, in_packets, in_bytes, drops] =
        [it.egress_packets, it.egress_bytes, it.ingress_packets, it.ingress_bytes, it.drops].map(shown);
    [pod(&it.namespace, &it.pod), it.ifname.clone(), out_packets, out_bytes, in_packets, in_bytes, drops]
}
