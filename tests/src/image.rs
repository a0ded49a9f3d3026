//! The container image for tests with real runtimes, built without a registry or a container engine.
//!
//! One layer: the program `pod` (`src/bin/pod.rs`) and the shared libraries that this machine links it with.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::sys;

/// Name of the image. The registry does not exist, so a runtime that lacks the image must fail.
pub const NAME: &str = "ferrule.invalid/pod:1";
/// Path of the program in the image.
pub const POD: &str = "/pod";

const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// Writes the image as an OCI image layout in a tar archive, which `ctr images import` and `podman load`
/// read. `pod` is the path of the built program.
///
/// # Errors
/// If the program or one of its libraries cannot be read.
pub fn write(pod: &Path, to: &Path) -> anyhow::Result<()> {
    // Shared by tests on other threads.
    static ARCHIVE: OnceLock<Result<Vec<u8>, String>> = OnceLock::new();
    let archive = ARCHIVE.get_or_init(|| pack(pod).map_err(|error| format!("{error:#}")));
    let archive = archive.as_ref().map_err(|error| anyhow::anyhow!("cannot build the image: {error}"))?;
    fs::write(to, archive).with_context(|| format!("cannot write the image {}", to.display()))
}

fn pack(pod: &Path) -> anyhow::Result<Vec<u8>> {
    let mut root = BTreeMap::from([(PathBuf::from("pod"), fs::read(pod)?)]);
    for library in libraries(pod)? {
        root.insert(library.strip_prefix("/")?.to_owned(), fs::read(&library)?);
    }
    let layer = tar(&root)?;
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let config = json!({
        "architecture": architecture,
        "os": "linux",
        "config": { "Entrypoint": [POD] },
        "rootfs": { "type": "layers", "diff_ids": [digest(&layer)] },
    });
    let config = config.to_string().into_bytes();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": descriptor(CONFIG, &config),
        "layers": [descriptor(LAYER, &layer)],
    });
    let manifest = manifest.to_string().into_bytes();
    let mut named = descriptor(MANIFEST, &manifest);
    if let Some(named) = named.as_object_mut() {
        // containerd reads the first, podman the second.
        let names = json!({ "io.containerd.image.name": NAME, "org.opencontainers.image.ref.name": NAME });
        named.insert("annotations".to_owned(), names);
    }
    let index = json!({ "schemaVersion": 2, "manifests": [named] });
    let mut files = BTreeMap::from([
        (PathBuf::from("index.json"), index.to_string().into_bytes()),
        (PathBuf::from("oci-layout"), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec()),
    ]);
    for blob in [layer, config, manifest] {
        files.insert(format!("blobs/{}", digest(&blob).replace(':', "/")).into(), blob);
    }
    tar(&files)
}

/// The shared libraries of a program and its loader, as listed by `ldd`.
fn libraries(program: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let listed = sys::output(Command::new("ldd").arg(program))?;
    let libraries: Vec<_> =
        listed.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect();
    ensure!(!libraries.is_empty(), "ldd lists no libraries of {}: {listed}", program.display());
    Ok(libraries)
}

fn descriptor(media_type: &str, content: &[u8]) -> Value {
    json!({ "mediaType": media_type, "digest": digest(content), "size": content.len() })
}

fn digest(content: &[u8]) -> String {
    let hex: String = Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

fn tar(files: &BTreeMap<PathBuf, Vec<u8>>) -> anyhow::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    for (path, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o755);
        // The tar builder adds parent directories.
        archive.append_data(&mut header, path, content.as_slice())?;
    }
    Ok(archive.into_inner()?)
}
