//! The bill of materials: what is linked into the binaries, in SPDX 2.3 as JSON.
//!
//! The crates and their licenses are what cargo resolves; the sums are those of Cargo.lock. The agent
//! contains the eBPF programs. Rust's standard library and musl come with the toolchain.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use anyhow::{Context as _, Result};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    dist, ebpf,
    failure::OrFail as _,
    files,
    toolchain::{self, Arch},
    workspace::Workspace,
};

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

/// What the bill is of.
struct Linked {
    /// The packages that are shipped.
    binaries: Vec<&'static str>,
    /// What the toolchain adds to each of them.
    toolchain: Vec<Value>,
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
    let linked = Linked { binaries: dist::packages().collect(), toolchain: of_toolchain(ws)? };
    let bill = bill(&metadata, &lock, &linked, (version, revision, time));
    Ok(format!("{:#}\n", bill.or_fail("writing the bill of materials", remedy)?))
}

fn bill(
    metadata: &Metadata,
    lock: &Lock,
    Linked { binaries, toolchain }: &Linked,
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
    let own = |name: &str| {
        let found = metadata.packages.iter().find(|it| it.source.is_none() && it.name == name);
        found.with_context(|| format!("the workspace has no package {name}"))
    };
    let mut queue = binaries.iter().map(|name| own(name)).collect::<Result<VecDeque<&Package>>>()?;
    let mut relations: BTreeSet<(String, &str, String)> =
        queue.iter().map(|it| ("SPDXRef-DOCUMENT".to_owned(), "DESCRIBES", it.reference())).collect();
    for binary in &queue {
        for part in toolchain.iter().filter_map(|it| it.get("SPDXID")?.as_str()) {
            relations.insert((binary.reference(), "STATIC_LINK", part.to_owned()));
        }
    }
    let programs = own(ebpf::PACKAGE)?;
    relations.insert((own(dist::AGENT)?.reference(), "CONTAINS", programs.reference()));
    queue.push_back(programs);
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
        .chain(toolchain.iter().cloned())
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
        // The form of early crates: `MIT/Apache-2.0`, also with spaces.
        let license = self.license.as_deref().unwrap_or("NOASSERTION").split('/').map(str::trim);
        let license = license.collect::<Vec<_>>().join(" OR ");
        let sums: Vec<Value> =
            sum.iter().map(|sum| json!({ "algorithm": "SHA256", "checksumValue": sum })).collect();
        let mut entry = entry(self.reference(), "cargo", &self.name, &self.version, &license);
        if let Some(entry) = entry.as_object_mut() {
            entry.insert("checksums".to_owned(), sums.into());
        }
        entry
    }
}

/// Rust's standard library, which the eBPF programs use a part of, and the C library of static binaries.
fn of_toolchain(ws: &Workspace) -> Result<Vec<Value>> {
    let release = toolchain::release(ws)?;
    // `rustc 1.99.1 (58cf8f9c3 2026-10-13)`
    let rust = release.split_whitespace().nth(1).unwrap_or("unknown");
    let musl = toolchain::musl_version(ws, Arch::native().unwrap_or(Arch::Amd64))?;
    let entry = |name, version, license| {
        entry(format!("SPDXRef-toolchain-{name}"), "generic", name, version, license)
    };
    Ok(vec![entry("rust-std", rust, "MIT OR Apache-2.0"), entry("musl", &musl, "MIT")])
}

fn entry(reference: String, kind: &str, name: &str, version: &str, license: &str) -> Value {
    json!({
        "SPDXID": reference,
        "name": name,
        "versionInfo": version,
        "licenseDeclared": license,
        "licenseConcluded": "NOASSERTION",
        "copyrightText": "NOASSERTION",
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": false,
        "externalRefs": [{
            "referenceCategory": "PACKAGE-MANAGER",
            "referenceType": "purl",
            "referenceLocator": format!("pkg:{kind}/{name}@{version}"),
        }],
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

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
        for name in [
            "ferrule-agent",
            "ferrulectl",
            "ferrule-shim",
            "aya",
            "ring",
            "tokio",
            "agent-ebpf",
            "aya-ebpf",
            "rust-std",
            "musl",
        ] {
            assert!(find(name).is_some(), "{name}");
        }
        for name in ["proptest", "xtask", "protox", "etherparse"] {
            assert!(find(name).is_none(), "{name} is not linked");
        }
        let aya = find("aya").unwrap();
        assert_eq!(aya["checksums"][0]["checksumValue"].as_str().unwrap().len(), 64);
        assert!(!aya["licenseDeclared"].as_str().unwrap().contains("NOASSERTION"), "{aya}");
        let licenses = packages.iter().map(|it| it["licenseDeclared"].as_str().unwrap());
        let odd: Vec<&str> = licenses.filter(|it| it.contains('/') || it.contains("  ")).collect();
        assert_eq!(odd, [""; 0], "licenses that are no SPDX expressions, or oddly spaced");
        let relations = bill["relationships"].as_array().unwrap();
        let has = |from: &str, kind: &str, to: &str| {
            let [from, to] = [from, to].map(|name| find(name).unwrap()["SPDXID"].clone());
            let mut of_kind = relations.iter().filter(|it| it["relationshipType"] == kind);
            of_kind.any(|it| it["spdxElementId"] == from && it["relatedSpdxElement"] == to)
        };
        assert!(
            has("ferrule-agent", "CONTAINS", "agent-ebpf") && has("agent-ebpf", "DEPENDS_ON", "aya-ebpf")
        );
        assert!(has("ferrule-shim", "STATIC_LINK", "musl") && has("ferrule-shim", "STATIC_LINK", "rust-std"));
        let version = |name: &str| find(name).unwrap()["versionInfo"].as_str().unwrap().to_owned();
        let channel = fs::read_to_string(ws.root.join("rust-toolchain.toml")).unwrap();
        assert!(channel.contains(&format!("\"{}\"", version("rust-std"))), "{}", version("rust-std"));
        // Packed relocations need 1.2.4.
        assert!(version("musl").starts_with("1.2."), "{}", version("musl"));
        let ids: BTreeSet<&str> = packages.iter().map(|it| it["SPDXID"].as_str().unwrap()).collect();
        assert_eq!(ids.len(), packages.len(), "identifiers are unique");
        for relation in relations {
            assert!(ids.contains(relation["relatedSpdxElement"].as_str().unwrap()), "{relation}");
        }
    }
}
