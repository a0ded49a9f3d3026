//! Tables: aligned columns, and the cells that several tables share.

use crate::paint;

/// A column of container IDs shows this many characters, as `docker ps` does.
const SHORT_ID: usize = 12;

/// Formats a header and rows with aligned columns.
pub(crate) fn table<const N: usize>(header: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    columns(&header, rows.map(Vec::from))
}

/// As [`table`], with columns that the output chooses.
pub(crate) fn columns(header: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let header: Vec<_> = header.iter().map(|it| (*it).to_owned()).collect();
    aligned(std::iter::once(header).chain(rows))
}

/// Rows with aligned columns, without a header.
pub(crate) fn aligned(rows: impl Iterator<Item = Vec<String>>) -> String {
    let rows: Vec<_> = rows.collect();
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|it| paint::width(it)).max();
    let widths: Vec<usize> = (0..count).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| padded(cell, *width));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// A cell with spaces up to a width.
pub(crate) fn padded(cell: &str, width: usize) -> String {
    format!("{cell}{}", " ".repeat(width.saturating_sub(paint::width(cell))))
}

/// `namespace/name`, or `-` without a pod.
pub(crate) fn pod(namespace: &str, name: &str) -> String {
    match (namespace, name) {
        (_, "") => "-".to_owned(),
        ("", name) => name.to_owned(),
        (namespace, name) => format!("{namespace}/{name}"),
    }
}

/// The first characters of a container ID.
pub(crate) fn short_id(container_id: &str) -> String {
    container_id.chars().take(SHORT_ID).collect()
}

/// `name (index)`, or `-` without an interface.
pub(crate) fn interface(name: &str, index: u32) -> String {
    match (name, index) {
        (_, 0) => "-".to_owned(),
        ("", index) => format!("({index})"),
        (name, index) => format!("{name} ({index})"),
    }
}

/// Escapes control characters of untrusted text, which could control the terminal.
pub(crate) fn plain(text: &str) -> String {
    let escaped = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(escaped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_the_header_comes_first() {
        let rows = [["a", "b"], ["long", ""]].map(|row| row.map(str::to_owned));
        assert_eq!(table(["X", "Y"], rows.into_iter()), "X     Y\na     b\nlong");
        assert_eq!(table(["X", "Y"], std::iter::empty()), "X  Y");
    }
}
