//! The bill of materials: what is linked into the binaries, in SPDX 2.3 as JSON.
//!
//! The crates and their licenses are what cargo resolves; the sums are those of Cargo.lock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use anyhow::{Context as _, Result};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{dist, failure::OrFail as _, files, workspace::Workspace};

/// The part of `cargo metadata` that a bill needs.
#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Debug, Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    source: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dep>,
}

#[derive(Debug, Deserialize)]
struct Dep {
    pkg: String,
    dep_kinds: Vec<Kind>,
}

#[derive(Debug, Deserialize)]
struct Kind {
    /// `None` for what is linked; `dev` and `build` otherwise.
    kind: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Lock {
    package: Vec<Locked>,
}

#[derive(Debug, Deserialize)]
struct Locked {
    name: String,
    version: String,
    checksum: Option<String>,
}

/// Writes the bill of the shipped binaries.
///
/// # Errors
/// If cargo cannot resolve the workspace as Cargo.lock says.
pub(crate) fn generate(ws: &Workspace, version: &str, revision: &str, time: &str) -> Result<String> {
    let remedy = "run `cargo metadata --locked` and repair what it names";
    let doing = "asking cargo for the dependencies";
    let printed = ws.cargo("metadata", doing, remedy).args(["--format-version", "1", "--locked"]).ask()?;
    let metadata: Metadata = serde_json::from_str(&printed).or_fail(doing, remedy)?;
    let lock = String::from_utf8_lossy(&files::read(&ws.root.join("Cargo.lock"), "restore it")?).into_owned();
    let lock: Lock = toml::from_str(&lock).or_fail("reading Cargo.lock", "restore it")?;
    let roots: Vec<&str> = dist::packages().collect();
    let bill = bill(&metadata, &lock, &roots, (version, revision, time));
    Ok(format!("{:#}\n", bill.or_fail("writing the bill of materials", remedy)?))
}

fn bill(
    metadata: &Metadata,
    lock: &Lock,
    roots: &[&str],
    (version, revision, time): (&str, &str, &str),
) -> Result<Value> {
    let packages: BTreeMap<&str, &Package> =
        metadata.packages.iter().map(|it| (it.id.as_str(), it)).collect();
    let nodes: BTreeMap<&str, &Node> = metadata.resolve.nodes.iter().map(|it| (it.id.as_str(), it)).collect();
    let sums: BTreeMap<(&str, &str), &str> = lock
        .package
        .iter()
        .filter_map(|it| Some(((it.name.as_str(), it.version.as_str()), it.checksum.as_deref()?)))
        .collect();
    let mut queue: VecDeque<&Package> = metadata
        .packages
        .iter()
        .filter(|it| it.source.is_none() && roots.contains(&it.name.as_str()))
        .collect();
    anyhow::ensure!(queue.len() == roots.len(), "a package of {roots:?} is not in the workspace");
    let mut relations: BTreeSet<(String, &str, String)> =
        queue.iter().map(|it| ("SPDXRef-DOCUMENT".to_owned(), "DESCRIBES", it.reference())).collect();
    let mut linked = BTreeMap::new();
    while let Some(package) = queue.pop_front() {
        if linked.insert(package.reference(), package).is_some() {
            continue;
        }
        let node =
            nodes.get(package.id.as_str()).with_context(|| format!("{} is not resolved", package.id))?;
        for dep in node.deps.iter().filter(|dep| dep.dep_kinds.iter().any(|it| it.kind.is_none())) {
            let on = packages.get(dep.pkg.as_str()).with_context(|| format!("{} is unknown", dep.pkg))?;
            relations.insert((package.reference(), "DEPENDS_ON", on.reference()));
            queue.push_back(on);
        }
    }
    let packages: Vec<Value> = linked
        .values()
        .map(|it| it.entry(sums.get(&(it.name.as_str(), it.version.as_str())).copied()))
        .collect();
    let relationships: Vec<Value> = relations
        .iter()
        .map(|(from, kind, to)| json!({ "spdxElementId": from, "relationshipType": kind, "relatedSpdxElement": to }))
        .collect();
    Ok(json!({
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": format!("ferrule-{version}"),
        "documentNamespace": format!("urn:spdx:ferrule-{version}-{revision}"),
        "creationInfo": { "created": time, "creators": ["Tool: cargo xtask image"] },
        "packages": packages,
        "relationships": relationships,
    }))
}

// === impl Package ===

impl Package {
    /// Its identifier in the bill: letters, digits, dots and hyphens only.
    fn reference(&self) -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' || c == '-' { c } else { '-' };
        format!(
            "SPDXRef-{}",
            format!("{}-{}", self.name, self.version).chars().map(plain).collect::<String>()
        )
    }

    fn entry(&self, sum: Option<&str>) -> Value {
        let license = self.license.as_deref().unwrap_or("NOASSERTION").replace('/', " OR ");
        let sums: Vec<Value> =
            sum.iter().map(|sum| json!({ "algorithm": "SHA256", "checksumValue": sum })).collect();
        json!({
            "SPDXID": self.reference(),
            "name": self.name,
            "versionInfo": self.version,
            "licenseDeclared": license,
            "licenseConcluded": "NOASSERTION",
            "copyrightText": "NOASSERTION",
            "downloadLocation": "NOASSERTION",
            "filesAnalyzed": false,
            "checksums": sums,
            "externalRefs": [{
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": format!("pkg:cargo/{}@{}", self.name, self.version),
            }],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_linked_is_in_the_bill_and_what_only_tests_is_not() {
        let ws = Workspace::find().unwrap();
        let text = generate(&ws, "1.2.3", "abc", "2026-01-02T03:04:05Z").unwrap();
        assert_eq!(text, generate(&ws, "1.2.3", "abc", "2026-01-02T03:04:05Z").unwrap());
        let bill: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(bill["creationInfo"]["created"], "2026-01-02T03:04:05Z");
        let packages = bill["packages"].as_array().unwrap();
        let find = |name: &str| packages.iter().find(|it| it["name"] == name);
        for name in ["ferrule-agent", "ferrulectl", "ferrule-shim", "aya", "ring", "tokio"] {
            assert!(find(name).is_some(), "{name}");
        }
        for name in ["proptest", "xtask", "protox", "etherparse"] {
            assert!(find(name).is_none(), "{name} is not linked");
        }
        let aya = find("aya").unwrap();
        assert_eq!(aya["checksums"][0]["checksumValue"].as_str().unwrap().len(), 64);
        assert!(!aya["licenseDeclared"].as_str().unwrap().contains("NOASSERTION"), "{aya}");
        let ids: BTreeSet<&str> = packages.iter().map(|it| it["SPDXID"].as_str().unwrap()).collect();
        assert_eq!(ids.len(), packages.len(), "identifiers are unique");
        for relation in bill["relationships"].as_array().unwrap() {
            assert!(ids.contains(relation["relatedSpdxElement"].as_str().unwrap()), "{relation}");
        }
    }
}
