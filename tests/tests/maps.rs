//! Capacities and layouts of the pinned maps.

use std::{fs, path::Path};

use anyhow::{Context as _, ensure};
use aya::EbpfLoader;
use ferrule_tests::{
    dist,
    node::{Node, PINS, with_agent},
    sys,
};

const AGENT: &str = "ferrule-agent";

/// Restarts the agent with settings from the environment.
fn restart(node: &mut Node, settings: &[(&str, &str)]) -> anyhow::Result<()> {
    node.stop_agent()?;
    node.use_agent(AGENT, settings);
    node.start_again()
}

fn max_entries(map: &str) -> anyhow::Result<u64> {
    let shown = sys::run(&format!("bpftool -j map show pinned {PINS}/{map}"))?;
    let shown: serde_json::Value = serde_json::from_str(&shown)?;
    shown.get("max_entries").and_then(serde_json::Value::as_u64).context("no max_entries")
}

fn error_of<T>(result: anyhow::Result<T>) -> String {
    result.map_or_else(|error| format!("{error:#}"), |_| "no error".to_owned())
}

fn expect(text: &str, parts: &[&str]) -> anyhow::Result<()> {
    parts.iter().try_for_each(|part| {
        ensure!(text.contains(part), "{part:?} is missing in: {text}");
        Ok(())
    })
}

#[test]
fn a_capacity_below_the_entries_in_use_is_refused_and_changes_nothing() {
    with_agent(|node| {
        let (a, b) = (node.attach("a")?, node.attach("b")?);
        let ids = || sys::run(&format!("bpftool -j map show pinned {PINS}/ENDPOINTS"));
        let before = ids()?;
        // Two dual-stack pods have four addresses.
        let error = error_of(restart(node, &[("FERRULE_MAX_ENDPOINTS", "3")]));
        expect(&error, &["ENDPOINTS", "capacity", " 3", "4 entries", "--max-endpoints"])?;
        a.ping(&b.addresses[0].to_string()).context("while no agent runs")?;
        ensure!(ids()? == before, "the map was replaced");
        let error = error_of(restart(node, &[("FERRULE_MAX_VIFS", "1")]));
        expect(&error, &["VIFS", "2 entries", "--max-vifs"])?;
        // Exactly the entries in use are enough.
        restart(node, &[("FERRULE_MAX_ENDPOINTS", "4"), ("FERRULE_MAX_VIFS", "2")])?;
        ensure!((max_entries("ENDPOINTS")?, max_entries("VIFS")?) == (4, 2));
        a.ping(&b.addresses[0].to_string())?;
        node.runtime()?.check(&b)
    })
    .unwrap();
}

#[test]
fn an_add_to_a_full_map_names_map_use_capacity_and_setting_and_is_rolled_back() {
    with_agent(|node| {
        let a = node.attach("a")?;
        for (setting, capacity, parts) in [
            ("FERRULE_MAX_VIFS", "1", ["VIFS", "1 of 1 entries", "--max-vifs"]),
            ("FERRULE_MAX_ENDPOINTS", "3", ["ENDPOINTS", "3 of 3 entries", "--max-endpoints"]),
        ] {
            restart(node, &[(setting, capacity)])?;
            // New maps list their entries in another order.
            let before = node.kernel_state()?;
            let pod = node.pod("refused")?;
            let error = node.runtime()?.call("ADD", &pod)?.into_error()?;
            expect(&format!("{error}"), &parts)?;
            node.wait_for_kernel_state(&before)?;
            node.runtime()?.check(&a)?;
            pod.remove()?;
        }
        restart(node, &[])?;
        node.attach("accepted").map(drop)
    })
    .unwrap();
}

#[test]
fn metrics_show_entries_and_capacity_of_each_map() {
    with_agent(|node| {
        restart(node, &[("FERRULE_MAX_STACK_FLOWS", "5000")])?;
        let entries = |node: &Node, map: &str| node.metric(&format!("ferrule_map_entries{{map=\"{map}\"}}"));
        let a = node.attach("a")?;
        // Interface 0 counts for all interfaces without an attachment.
        for (map, expected) in [("VIFS", 1.0), ("ENDPOINTS", 2.0), ("VIF_COUNTERS", 2.0)] {
            ensure!(entries(node, map)? == expected, "{map}: {}", entries(node, map)?);
            let capacity = node.metric(&format!("ferrule_map_capacity{{map=\"{map}\"}}"))?;
            ensure!(capacity == max_entries(map)? as f64, "{map}: {capacity}");
        }
        ensure!(node.metric("ferrule_map_capacity{map=\"STACK_FLOWS\"}")? == 5000.0);
        restart(node, &[])?;
        ensure!(entries(node, "ENDPOINTS")? == 2.0, "counted after a restart");
        node.runtime()?.del(&a)?;
        ensure!(entries(node, "ENDPOINTS")? == 0.0);
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_pinned_map_with_swapped_fields_of_equal_size_is_refused() {
    with_agent(|node| {
        node.stop_agent()?;
        let (vifs, original) = (Path::new(PINS).join("VIFS"), Path::new("/sys/fs/bpf/original"));
        fs::rename(&vifs, original)?;
        let object = swap_fields(dist::ebpf_object()?, ["ipv4", "flags"])?;
        EbpfLoader::new().map_pin_path("VIFS", &vifs).load(&object)?;
        let error = error_of(node.start_again());
        expect(&error, &["VIFS", "value field \"ipv4\" of 4 bytes at offset 0", "\"flags\" of 4 bytes"])?;
        fs::rename(original, &vifs)?;
        node.start_again()
    })
    .unwrap();
}

/// Swaps the names of two adjacent struct members in the BTF of an object.
fn swap_fields(mut object: Vec<u8>, names: [&str; 2]) -> anyhow::Result<Vec<u8>> {
    // `struct btf_header` in `linux/btf.h`: magic, version, flags, length of the header.
    const HEADER: [u8; 8] = [0x9f, 0xeb, 1, 0, 24, 0, 0, 0];
    let mut swapped = 0;
    let headers: Vec<usize> = find_all(&object, &HEADER);
    for header in headers {
        let word = |at: usize| -> anyhow::Result<usize> {
            let bytes = object.get(at..at + 4).context("a truncated object")?;
            Ok(u32::from_ne_bytes(bytes.try_into()?) as usize)
        };
        let start = header + HEADER.len() + 16;
        let (types, strings) = (start + word(header + 8)?, start + word(header + 16)?);
        let strings = object.get(strings..strings + word(header + 20)?).context("no strings")?;
        let name = |name: &str| -> anyhow::Result<[u8; 4]> {
            let found = find_all(strings, format!("\0{name}\0").as_bytes());
            Ok(u32::try_from(found.first().context("no such name")? + 1)?.to_ne_bytes())
        };
        let [first, second] = [name(names[0])?, name(names[1])?];
        // `struct btf_member`: name, type, offset in bits; the first member is at offset 0.
        let end = types + word(header + 12)?;
        let is_at = |at: usize, bytes: &[u8; 4]| object.get(at..at + 4) == Some(&bytes[..]);
        let member = (types..end)
            .step_by(4)
            .find(|at| is_at(*at, &first) && is_at(at + 8, &[0; 4]) && is_at(at + 12, &second));
        if let Some(at) = member {
            for (at, name) in [(at, &second), (at + 12, &first)] {
                object.get_mut(at..at + 4).context("a truncated object")?.copy_from_slice(name);
            }
            swapped += 1;
        }
    }
    ensure!(swapped > 0, "no struct has {names:?}");
    Ok(object)
}

fn find_all(bytes: &[u8], pattern: &[u8]) -> Vec<usize> {
    bytes.windows(pattern.len()).enumerate().filter(|(_, it)| *it == pattern).map(|(at, _)| at).collect()
}
