//! Tables in Markdown.

/// A table; the first column is aligned to the left, the others to the right.
pub(crate) fn table(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let rule = (0..head.len()).map(|column| if column == 0 { "---" } else { "---:" }.to_owned()).collect();
    let escape = |cell: &str| cell.replace('|', "\\|").replace('\n', " ");
    let head = head.iter().map(|cell| escape(cell)).collect();
    let rows = rows.into_iter().map(|row| row.iter().map(|cell| escape(cell)).collect());
    [head, rule].into_iter().chain(rows).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_cannot_break_a_table() {
        let text = table(&["what", "figure"], [vec!["a|b\nc".to_owned(), "1".to_owned()]]);
        assert_eq!(text, "| what | figure |\n| --- | ---: |\n| a\\|b c | 1 |\n");
    }
}
