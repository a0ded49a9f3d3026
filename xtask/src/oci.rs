//! Container images, packed without a container engine.
//!
//! The archive is an OCI image layout and what `docker save` writes, both at once: `podman load`, `docker
//! load` and `ctr images import` accept it. Times, users and order are fixed, so that the same files make the
//! same bytes.

use std::{collections::BTreeMap, fmt::Write as _};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

/// The content of an image.
#[derive(Debug)]
pub(crate) struct Image {
    /// Repository name without tag, such as `ferrule`.
    pub(crate) name: String,
    /// The tag.
    pub(crate) version: String,
    /// The commit that it was built from.
    pub(crate) revision: String,
    /// Absolute path of the program.
    pub(crate) entrypoint: String,
    /// Its file system.
    pub(crate) root: Tree,
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

// === impl Image ===

impl Image {
    /// Packs it.
    ///
    /// # Errors
    /// If a path is too long for an archive.
    pub(crate) fn pack(&self) -> Result<Packed> {
        let layer = Blob::new("application/vnd.oci.image.layer.v1.tar", archive(&self.root)?);
        let config = Blob::json("application/vnd.oci.image.config.v1+json", &self.config(&layer));
        let manifest =
            Blob::json("application/vnd.oci.image.manifest.v1+json", &self.manifest(&config, &layer));

        let mut files = Tree::new();
        let mut json = |path: &str, content: Value| files.insert(path.to_owned(), text(&content));
        json("oci-layout", json!({ "imageLayoutVersion": "1.0.0" }));
        json("index.json", self.index(&manifest));
        json(
            "manifest.json",
            json!([{
                "Config": config.path(),
                "Layers": [layer.path()],
                "RepoTags": [format!("{}:{}", self.name, self.version)],
            }]),
        );
        let digest = manifest.digest.clone();
        for blob in [layer, config, manifest] {
            files.insert(blob.path(), Node::File(blob.content));
        }
        Ok(Packed { archive: archive(&files)?, digest })
    }

    fn config(&self, layer: &Blob) -> Value {
        json!({
            "architecture": architecture(),
            "os": "linux",
            "config": { "Entrypoint": [self.entrypoint], "Env": ["PATH=/usr/bin"] },
            "rootfs": { "type": "layers", "diff_ids": [layer.digest] },
        })
    }

    fn manifest(&self, config: &Blob, layer: &Blob) -> Value {
        json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": config.descriptor(),
            "layers": [layer.descriptor()],
            "annotations": {
                "org.opencontainers.image.ref.name": self.version,
                "org.opencontainers.image.revision": self.revision,
                "org.opencontainers.image.version": self.version,
            },
        })
    }

    fn index(&self, manifest: &Blob) -> Value {
        let mut descriptor = manifest.descriptor();
        if let Some(descriptor) = descriptor.as_object_mut() {
            let annotations = json!({
                // The whole name, as a kubelet makes it of `ferrule:0.1.0`: containerd and podman take it
                // from here.
                "io.containerd.image.name": format!("docker.io/library/{}:{}", self.name, self.version),
                "org.opencontainers.image.ref.name": self.version,
            });
            descriptor.insert("annotations".to_owned(), annotations);
            let platform = json!({ "architecture": architecture(), "os": "linux" });
            descriptor.insert("platform".to_owned(), platform);
        }
        json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [descriptor],
        })
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
fn archive(files: &Tree) -> Result<Vec<u8>> {
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

/// What images call the architecture that we build for.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use tar::Archive;

    use super::*;

    fn image() -> Image {
        let mut root = Tree::new();
        root.insert("usr/bin/b".to_owned(), Node::Executable(b"agent".to_vec()));
        root.insert("usr/bin/a".to_owned(), Node::Executable(b"ctl".to_vec()));
        root.insert("var/run".to_owned(), Node::Link("/run"));
        Image {
            name: "ferrule".to_owned(),
            version: "1.2.3".to_owned(),
            revision: "abc".to_owned(),
            entrypoint: "/usr/bin/b".to_owned(),
            root,
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
    fn the_same_files_make_the_same_bytes() {
        assert_eq!(image().pack().unwrap(), image().pack().unwrap());
    }

    #[test]
    fn entries_are_sorted_and_tell_nothing_of_the_machine() {
        let bytes = archive(&image().root).unwrap();
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
