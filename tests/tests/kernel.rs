//! What the eBPF object asks of the kernel, compared with the documents.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use anyhow::{Context as _, bail};
use aya_obj::{EbpfSectionKind, Object, generated::bpf_map_type};
use ferrule_tests::dist;

/// `BPF_JMP | BPF_CALL`.
const CALL: u8 = 0x85;
/// Numbers of helpers in `linux/bpf.h`.
const HELPERS: [(i32, &str); 21] = [
    (1, "bpf_map_lookup_elem"),
    (2, "bpf_map_update_elem"),
    (3, "bpf_map_delete_elem"),
    (20, "bpf_skb_get_tunnel_key"),
    (21, "bpf_skb_set_tunnel_key"),
    (23, "bpf_redirect"),
    (26, "bpf_skb_load_bytes"),
    (32, "bpf_skb_change_type"),
    (39, "bpf_skb_pull_data"),
    (34, "bpf_get_hash_recalc"),
    (40, "bpf_csum_update"),
    (50, "bpf_skb_adjust_room"),
    (69, "bpf_fib_lookup"),
    (113, "bpf_probe_read_kernel"),
    (118, "bpf_jiffies64"),
    (125, "bpf_ktime_get_boot_ns"),
    (131, "bpf_ringbuf_reserve"),
    (132, "bpf_ringbuf_submit"),
    (133, "bpf_ringbuf_discard"),
    (152, "bpf_redirect_neigh"),
    (155, "bpf_redirect_peer"),
];

/// Features and the releases that brought them, from the table in the documents.
fn documented() -> anyhow::Result<BTreeMap<String, String>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/dataplane.md");
    let text = std::fs::read_to_string(path)?;
    let (_, table) = text.split_once("## Kernel features").context("no such heading")?;
    let (table, _) = table.split_once("\n## ").context("no heading behind")?;
    let mut features = BTreeMap::new();
    for line in table.lines().filter(|line| line.starts_with("| `")) {
        let mut cells = line.split('|').map(|cell| cell.trim().trim_matches('`').to_owned()).skip(1);
        let (Some(name), Some(since)) = (cells.next(), cells.next()) else { bail!("{line}") };
        features.insert(name, since);
    }
    Ok(features)
}

/// The helpers that the object's code calls, and the types of its maps.
fn used() -> anyhow::Result<BTreeSet<String>> {
    let bytes = dist::ebpf_object()?;
    let object = Object::parse(&bytes)?;
    let mut used = BTreeSet::new();
    for function in object.functions.values() {
        // A call with a source register is one of another function.
        for call in function.instructions.iter().filter(|it| it.code == CALL && it.src_reg() == 0) {
            let helper = HELPERS.iter().find(|(number, _)| *number == call.imm);
            let (_, name) = helper.with_context(|| format!("a call of an unlisted helper, {}", call.imm))?;
            used.insert((*name).to_owned());
        }
    }
    for (name, map) in &object.maps {
        // Read-only data.
        if map.section_kind() == EbpfSectionKind::Rodata {
            used.insert("BPF_MAP_TYPE_ARRAY".to_owned());
            continue;
        }
        let kind = bpf_map_type::try_from(map.map_type());
        used.insert(format!("{:?}", kind.map_err(|_| anyhow::anyhow!("unknown type of {name}"))?));
    }
    Ok(used)
}

#[test]
fn every_helper_and_map_type_of_the_object_is_in_the_table_of_kernel_features() {
    let (documented, used) = (documented().unwrap(), used().unwrap());
    let documented: BTreeSet<_> = documented.into_keys().collect();
    assert_eq!(used, documented);
}

#[test]
fn no_feature_is_younger_than_the_oldest_supported_kernel() {
    let number = |release: &str| -> Vec<u32> { release.split('.').map(|it| it.parse().unwrap()).collect() };
    for (feature, since) in documented().unwrap() {
        assert!(number(&since) <= number("5.10"), "{feature} is of Linux {since}");
    }
}
