//! Generates the messages, clients and servers from `proto/`.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;

const FILES: [&str; 2] = ["ferrule/cni/v1/cni.proto", "ferrule/agent/v1/agent.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(FILES, ["proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        .build_transport(false)
        .build_server(env::var_os("CARGO_FEATURE_SERVER").is_some())
        .compile_fds(descriptors)?;
    Ok(())
}
