//! Finds the eBPF object that `cargo xtask build-ebpf` has built, for the binary to embed.

use std::{env, path::Path};

fn main() {
    println!("cargo::rustc-check-cfg=cfg(ebpf_object)");
    let Some(package) = env::var_os("CARGO_MANIFEST_DIR") else { return };
    let object = Path::new(&package).join("../target/bpf/ferrule.o");
    println!("cargo::rerun-if-changed={}", object.display());
    if object.exists() {
        println!("cargo::rustc-cfg=ebpf_object");
        println!("cargo::rustc-env=FERRULE_EBPF_OBJECT={}", object.display());
    }
}
