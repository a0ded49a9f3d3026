//! The parsers of the eBPF programs, compiled for the host from the same files, against a decoder that shares
//! no code with them. A build for the host also panics at overflows, which the verifier lets pass.
//!
//! [`packet`] and [`skip`] take the place of the programs' modules of these names, which call the
//! kernel.

#![expect(unsafe_code, reason = "the programs' parsers read headers in place")]
#![expect(clippy::indexing_slicing, clippy::unwrap_used, reason = "tests and their helpers fail by a panic")]

macro_rules! of_the_programs {
    ($($name:ident: $path:literal,)+) => {
        $(
            #[path = $path]
            #[allow(dead_code, reason = "the programs use all of it")]
            mod $name;
        )+
    };
}

of_the_programs! {
    address: "../../../agent-ebpf/src/address.rs",
    branchless: "../../../agent-ebpf/src/branchless.rs",
    checksum: "../../../agent-ebpf/src/checksum.rs",
    ends: "../../../agent-ebpf/src/ends.rs",
    extensions: "../../../agent-ebpf/src/extensions.rs",
    flow_key: "../../../agent-ebpf/src/flow_key.rs",
    headers: "../../../agent-ebpf/src/headers.rs",
    icmp: "../../../agent-ebpf/src/icmp.rs",
    meta: "../../../agent-ebpf/src/meta.rs",
    size: "../../../agent-ebpf/src/size.rs",
}

mod checksums;
mod conditions;
mod frames;
mod oracle;
mod packet;
mod random;
mod skip;
