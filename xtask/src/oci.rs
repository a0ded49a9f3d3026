//! Container images, packed without a container engine.
//!
//! The archive is an OCI image layout and what `docker save` writes, both at once: `podman load`, `docker
//! load` and `ctr images import` accept it. Times, users and order are fixed, so that the same files make the
//! same bytes.

use std::{collections::BTreeMap, fmt::Write as _};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

use crate::toolchain::Arch;

/// The content of an image.
#[derive(Debug)]
pub(crate) struct Image {
    /// Repository name without tag, such as `ferrule`.
    pub(crate) name: String,
    /// The tag.
    pub(crate) version: String,
    /// Absolute path of the program.
    pub(crate) entrypoint: String,
    /// What the image says of itself and its origin: labels of the configuration, annotations of the
    /// manifest.
    pub(crate) labels: BTreeMap<String, String>,
    /// The file system of each platform.
    pub(crate) roots: Vec<(Arch, Tree)>,
}

/// A file system, sorted by path. Paths have no `/` in front.
pub(crate) type Tree = BTreeMap<String, Node>;

/// A file of an image. Directories come by themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Node {
    File(Vec<u8>),
    Executable(Vec<u8>),
    /// A symbolic link, and where it leads.
    Link(&'static str),
}

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// The label with the time of the commit, not of the build.
pub(crate) const CREATED: &str = "org.opencontainers.image.created";

/// A packed image.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Packed {
    pub(crate) archive: Vec<u8>,
    /// The digest of the manifest, by which registries and runtimes identify the image.
    pub(crate) digest: String,
}

/// A part of an image, as others refer to it.
struct Blob {
    media_type: &'static str,
    digest: String,
    content: Vec<u8>,
}

// === impl Node ===

impl Node {
    /// The content of a file; nothing for a link.
    pub(crate) fn content(&self) -> &[u8] {
        match self {
            Self::File(content) | Self::Executable(content) => content,
            Self::Link(_) => &[],
        }
    }
}

// === impl Image ===

impl Image {
    /// Packs it. With several platforms, the name leads to an index of them.
    ///
    /// # Errors
    /// If a path is too long for an archive, or there is no platform.
    pub(crate) fn pack(&self) -> Result<Packed> {
        ensure!(!self.roots.is_empty(), "the image has no platform");
        let (mut files, mut manifests, mut saved) = (Tree::new(), Vec::new(), Value::Null);
        let mut keep = |blob: Blob| files.insert(blob.path(), Node::File(blob.content));
        for (arch, root) in &self.roots {
            let layer = Blob::new("application/vnd.oci.image.layer.v1.tar", archive(root)?);
            let config = Blob::json("application/vnd.oci.image.config.v1+json", &self.config(*arch, &layer));
            let manifest =
                Blob::json("application/vnd.oci.image.manifest.v1+json", &self.manifest(&config, &layer));
            let platform = json!({ "architecture": arch.oci(), "os": "linux" });
            manifests.push(manifest.descriptor_with(json!({ "platform": platform })));
            saved = json!([{
                "Config": config.path(),
                "Layers": [layer.path()],
                "RepoTags": [format!("{}:{}", self.name, self.version)],
            }]);
            for blob in [layer, config, manifest] {
                keep(blob);
            }
        }
        let mut top = match <[Value; 1]>::try_from(manifests) {
            Ok([only]) => {
                // What `docker save` writes has one platform only.
                files.insert("manifest.json".to_owned(), text(&saved));
                only
            }
            Err(manifests) => {
                let index = Blob::json(INDEX, &index(manifests));
                let descriptor = index.descriptor_with(json!({}));
                files.insert(index.path(), Node::File(index.content));
                descriptor
            }
        };
        let digest =
            top.get("digest").and_then(Value::as_str).context("a descriptor has no digest")?.to_owned();
        merge(&mut top, json!({ "annotations": self.names() }));
        files.insert("oci-layout".to_owned(), text(&json!({ "imageLayoutVersion": "1.0.0" })));
        files.insert("index.json".to_owned(), text(&index(vec![top])));
        Ok(Packed { archive: archive(&files)?, digest })
    }

    fn config(&self, arch: Arch, layer: &Blob) -> Value {
        json!({
            "architecture": arch.oci(),
            "os": "linux",
            "created": self.labels.get(CREATED),
            "config": { "Entrypoint": [self.entrypoint], "Env": ["PATH=/usr/bin"], "Labels": self.labels },
            "rootfs": { "type": "layers", "diff_ids": [layer.digest] },
        })
    }

    fn manifest(&self, config: &Blob, layer: &Blob) -> Value {
        let mut annotations = self.labels.clone();
        annotations.insert(REF_NAME.to_owned(), self.version.clone());
        json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": config.descriptor(),
            "layers": [layer.descriptor()],
            "annotations": annotations,
        })
    }

    fn names(&self) -> Value {
        json!({
            // The whole name, as a kubelet makes it of `ferrule:0.1.0`: containerd and podman take it from
            // here.
            "io.containerd.image.name": format!("docker.io/library/{}:{}", self.name, self.version),
            REF_NAME: self.version,
        })
    }
}

fn index(manifests: Vec<Value>) -> Value {
    json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": manifests })
}

/// Adds the fields of one object to another.
fn merge(object: &mut Value, fields: Value) {
    if let (Value::Object(object), Value::Object(fields)) = (object, fields) {
        object.extend(fields);
    }
}

// === impl Blob ===

impl Blob {
    fn new(media_type: &'static str, content: Vec<u8>) -> Self {
        Self { media_type, digest: digest(&content), content }
    }

    fn json(media_type: &'static str, content: &Value) -> Self {
        Self::new(media_type, content.to_string().into_bytes())
    }

    fn descriptor(&self) -> Value {
        json!({ "mediaType": self.media_type, "digest": self.digest, "size": self.content.len() })
    }

    fn descriptor_with(&self, fields: Value) -> Value {
        let mut descriptor = self.descriptor();
        merge(&mut descriptor, fields);
        descriptor
    }

    fn path(&self) -> String {
        format!("blobs/{}", self.digest.replace(':', "/"))
    }
}

/// `sha256:` and the sum in hexadecimal digits.
pub(crate) fn digest(content: &[u8]) -> String {
    Sha256::digest(content).iter().fold("sha256:".to_owned(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Packs files and the directories that they need, in the order of their paths.
pub(crate) fn archive(files: &Tree) -> Result<Vec<u8>> {
    let mut entries: BTreeMap<String, Option<&Node>> = BTreeMap::new();
    for (path, node) in files {
        entries
            .extend(path.match_indices('/').filter_map(|(at, _)| Some((path.get(..=at)?.to_owned(), None))));
        entries.insert(path.clone(), Some(node));
    }
    let mut archive = Builder::new(Vec::new());
    for (path, node) in entries {
        let (kind, mode, content): (_, _, &[u8]) = match node {
            None => (EntryType::Directory, 0o755, &[]),
            Some(Node::Link(_)) => (EntryType::Symlink, 0o777, &[]),
            Some(Node::File(content)) => (EntryType::Regular, 0o644, content),
            Some(Node::Executable(content)) => (EntryType::Regular, 0o755, content),
        };
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(u64::try_from(content.len())?);
        if let Some(Node::Link(to)) = node {
            header.set_link_name(to)?;
        }
        archive.append_data(&mut header, &path, content).with_context(|| format!("packing {path}"))?;
    }
    Ok(archive.into_inner()?)
}

fn text(content: &Value) -> Node {
    Node::File(content.to_string().into_bytes())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use tar::Archive;

    use super::*;

    fn image() -> Image {
        image_for(&[Arch::Arm64])
    }

    fn image_for(platforms: &[Arch]) -> Image {
        let mut root = Tree::new();
        root.insert("usr/bin/b".to_owned(), Node::Executable(b"agent".to_vec()));
        root.insert("usr/bin/a".to_owned(), Node::Executable(b"ctl".to_vec()));
        root.insert("var/run".to_owned(), Node::Link("/run"));
        Image {
            name: "ferrule".to_owned(),
            version: "1.2.3".to_owned(),
            entrypoint: "/usr/bin/b".to_owned(),
            labels: [("org.opencontainers.image.revision".to_owned(), "abc".to_owned())].into(),
            roots: platforms.iter().map(|arch| (*arch, root.clone())).collect(),
        }
    }

    fn unpack(bytes: &[u8]) -> BTreeMap<String, Vec<u8>> {
        let mut files = BTreeMap::new();
        for entry in Archive::new(bytes).entries().unwrap() {
            let mut entry = entry.unwrap();
            let path = entry.path().unwrap().display().to_string();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            files.insert(path, content);
        }
        files
    }

    fn json(files: &BTreeMap<String, Vec<u8>>, path: &str) -> Value {
        serde_json::from_slice(&files[path]).unwrap()
    }

    /// What a descriptor leads to, its size and digest being right.
    fn follow<'a>(files: &'a BTreeMap<String, Vec<u8>>, descriptor: &Value) -> &'a [u8] {
        let digest = descriptor["digest"].as_str().unwrap();
        let content = &files[&format!("blobs/{}", digest.replace(':', "/"))];
        assert_eq!(super::digest(content), digest);
        assert_eq!(descriptor["size"], content.len());
        content
    }

    #[test]
    fn every_digest_leads_to_what_it_is_of() {
        let packed = image().pack().unwrap();
        let files = unpack(&packed.archive);
        assert_eq!(json(&files, "oci-layout"), json!({ "imageLayoutVersion": "1.0.0" }));
        let descriptor = &json(&files, "index.json")["manifests"][0];
        assert_eq!(descriptor["digest"], packed.digest);
        let manifest: Value = serde_json::from_slice(follow(&files, descriptor)).unwrap();
        let config: Value = serde_json::from_slice(follow(&files, &manifest["config"])).unwrap();
        let layer = follow(&files, &manifest["layers"][0]);
        assert_eq!(config["rootfs"]["diff_ids"], json!([digest(layer)]), "the layer is not compressed");
        assert_eq!(config["config"]["Entrypoint"], json!(["/usr/bin/b"]));
        assert_eq!(unpack(layer)["usr/bin/b"], b"agent");
    }

    #[test]
    fn engines_of_either_kind_find_name_and_parts() {
        let files = unpack(&image().pack().unwrap().archive);
        let name = &json(&files, "index.json")["manifests"][0]["annotations"]["io.containerd.image.name"];
        assert_eq!(name, "docker.io/library/ferrule:1.2.3");
        let saved = &json(&files, "manifest.json")[0];
        assert_eq!(saved["RepoTags"], json!(["ferrule:1.2.3"]));
        for path in [&saved["Config"], &saved["Layers"][0]] {
            assert!(files.contains_key(path.as_str().unwrap()), "{path}");
        }
    }

    #[test]
    fn several_platforms_share_a_name_and_have_labels() {
        let packed = image_for(&Arch::ALL).pack().unwrap();
        let files = unpack(&packed.archive);
        let named = &json(&files, "index.json")["manifests"];
        assert_eq!(named.as_array().unwrap().len(), 1);
        assert_eq!(named[0]["annotations"]["org.opencontainers.image.ref.name"], "1.2.3");
        assert_eq!(named[0]["digest"], packed.digest);
        let index: Value = serde_json::from_slice(follow(&files, &named[0])).unwrap();
        let platforms = index["manifests"].as_array().unwrap().iter().map(|it| {
            let manifest: Value = serde_json::from_slice(follow(&files, it)).unwrap();
            let config: Value = serde_json::from_slice(follow(&files, &manifest["config"])).unwrap();
            assert_eq!(config["architecture"], it["platform"]["architecture"]);
            assert_eq!(config["config"]["Labels"]["org.opencontainers.image.revision"], "abc");
            assert_eq!(manifest["annotations"]["org.opencontainers.image.revision"], "abc");
            config["architecture"].as_str().unwrap().to_owned()
        });
        assert_eq!(platforms.collect::<Vec<_>>(), ["amd64", "arm64"]);
        assert!(!files.contains_key("manifest.json"), "it would hide all platforms but one");
        assert!(image_for(&[]).pack().is_err());
    }

    #[test]
    fn the_same_files_make_the_same_bytes() {
        assert_eq!(image().pack().unwrap(), image().pack().unwrap());
    }

    #[test]
    fn entries_are_sorted_and_tell_nothing_of_the_machine() {
        let bytes = archive(&image().roots[0].1).unwrap();
        let mut seen = Vec::new();
        for entry in Archive::new(bytes.as_slice()).entries().unwrap() {
            let entry = entry.unwrap();
            let header = entry.header();
            let owner = (header.uid().unwrap(), header.gid().unwrap(), header.mtime().unwrap());
            assert_eq!(owner, (0, 0, 0));
            seen.push(format!("{:o} {}", header.mode().unwrap(), entry.path().unwrap().display()));
        }
        let expected =
            ["755 usr/", "755 usr/bin/", "755 usr/bin/a", "755 usr/bin/b", "755 var/", "777 var/run"];
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_digest_is_what_everybody_computes() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(digest(b""), empty);
    }
}
