//! The peer: pods of the plugin `ptp`, and the same rules as a list in the host's nftables, which a new
//! connection passes one after the other.

use std::{fmt::Write as _, fs, net::IpAddr};

use ferrule_tests::{node::Node, pod::Pod, sys};

use super::{
    bed::v4,
    rules::{FIRST_PORT, PORTS, block},
};
use crate::{
    rates::path::Path,
    target::{Name, Target},
};

pub(super) struct Linear {
    pub(super) path: Path,
    ends: [IpAddr; 2],
}

/// Of all pods of `ptp` here.
const RANGE: &str = "10.246.0.0/16";
const FILE: &str = "/run/linear.nft";

// === impl Linear ===

impl Linear {
    pub(super) fn new(node: &Node) -> anyhow::Result<Self> {
        let target = Target::new(Name::Ptp)?;
        let mut pods = [node.pod("ptp-client")?, node.pod("ptp-server")?];
        pods.iter_mut().try_for_each(|pod| target.add(pod).map(drop))?;
        let [client, server]: &[Pod; 2] = &pods;
        let ends = [v4(client)?, v4(server)?];
        Ok(Self { path: Path::new("ptp", client, server, ends[1]), ends })
    }

    /// Replaces the list: established connections, so many other rules, and that of the pair.
    pub(super) fn set(&self, count: usize) -> anyhow::Result<()> {
        let ([client, server], port) = (self.ends, self.path.listen.port());
        let mut text = format!(
            "table ip linear {{}}\ndelete table ip linear\ntable ip linear {{\n\
             chain forward {{ type filter hook forward priority filter; policy accept;\n\
             ip saddr != {RANGE} accept\n\
             ct state established,related accept\n"
        );
        for number in 0..count {
            let (block, port) = (block(number), FIRST_PORT + number % PORTS);
            // Writing to a String cannot fail.
            let _ = writeln!(text, "ip saddr {block} tcp dport {port} accept");
        }
        text += &format!("ip saddr {client} ip daddr {server} tcp dport {port} accept\ndrop\n}}\n}}\n");
        fs::write(FILE, text)?;
        sys::run(&format!("nft -f {FILE}")).map(drop)
    }
}
