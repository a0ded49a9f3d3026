//! Generates the CRI client from `proto/`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(["cri.proto"], ["proto"])?;
    tonic_prost_build::configure().build_transport(false).build_server(false).compile_fds(descriptors)?;
    Ok(())
}
