//! The built pages: each link leads to a file of the site, and to a place in it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

use super::links;
use crate::finding::Finding;

/// Finds links of the pages in `site` that lead nowhere.
///
/// # Errors
/// If a page cannot be read.
pub(super) fn check(site: &Path) -> io::Result<Vec<Finding>> {
    let mut pages = BTreeMap::new();
    collect(site, site, &mut pages)?;
    let ids: BTreeMap<&Path, BTreeSet<&str>> = pages
        .iter()
        .map(|(path, text)| (path.as_path(), values(text, "id").map(|(_, id)| id).collect()))
        .collect();
    let mut findings = Vec::new();
    for (page, text) in &pages {
        for (line, value) in values(text, "href").chain(values(text, "src")) {
            let Some(link) = links::Link::parse(line, value) else { continue };
            let target = link.target(page).unwrap_or_default();
            let known = match (ids.get(target.as_path()), link.anchor()) {
                (Some(ids), Some(anchor)) => anchor.is_empty() || ids.contains(anchor),
                (Some(_), None) => true,
                (None, _) => site.join(&target).is_file(),
            };
            if !known {
                findings.push(Finding::new(page, line, format!("the link to {value} leads nowhere")));
            }
        }
    }
    Ok(findings)
}

fn collect(site: &Path, folder: &Path, pages: &mut BTreeMap<PathBuf, String>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(site, &path, pages)?;
        } else if path.extension().is_some_and(|it| it == "html") {
            let name = path.strip_prefix(site).unwrap_or(&path).to_owned();
            pages.insert(name, fs::read_to_string(&path)?);
        }
    }
    Ok(())
}

/// The values of an attribute, and their lines.
fn values<'a>(text: &'a str, attribute: &str) -> impl Iterator<Item = (usize, &'a str)> {
    let start = format!(" {attribute}=\"");
    (1..).zip(text.lines()).flat_map(move |(number, line)| {
        let starts = line.match_indices(&start).map(|(at, _)| at + start.len()).collect::<Vec<_>>();
        let value = move |at: usize| Some((number, line.get(at..)?.split('"').next()?));
        starts.into_iter().filter_map(value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_the_site_are_followed() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("docs")).unwrap();
        let page = "<h1 id=\"a\"></h1>\n<a href=\"https://example.org\"></a><a class=\"x\" href=\"../b.css\">\
                    <a href=\"#a\"><a href=\"c.html\"></a><a href=\"#b\"></a>";
        fs::write(dir.path().join("docs/page.html"), page).unwrap();
        fs::write(dir.path().join("b.css"), "").unwrap();
        let found: Vec<String> = check(dir.path()).unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "docs/page.html:2: the link to c.html leads nowhere",
                "docs/page.html:2: the link to #b leads nowhere"
            ]
        );
    }
}
