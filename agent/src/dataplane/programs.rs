//! What the kernel tells of the programs: their size, and their runs while it counts them.

use std::{
    fs, io,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
};

use aya::sys::{Stats, SyscallError, enable_stats};

use super::{Dataplane, bpf, loading::Loaded};
use crate::{
    metrics::ProgramInfo,
    plug::filter::{FROM_TUNNEL, FROM_UPLINK, TO_LINK, TO_TUNNEL},
};

// === impl Dataplane ===

impl Dataplane {
    /// The programs, without those that the kernel does not tell about.
    pub fn programs(&self) -> Vec<ProgramInfo> {
        let all = [
            ("from_pod", &self.from_pod),
            ("to_pod", &self.to_pod),
            (FROM_TUNNEL, &self.from_tunnel),
            (FROM_UPLINK, &self.from_uplink),
            (TO_TUNNEL, &self.to_tunnel),
            (TO_LINK, &self.to_link),
        ];
        let read = |(name, program): (&'static str, &Loaded)| {
            let read = program.info(name);
            read.inspect_err(|error| tracing::warn!(name, %error, "cannot read about an eBPF program")).ok()
        };
        all.into_iter().filter_map(read).collect()
    }

    /// Lets the kernel count the runs of all programs, and their time, while the result is open (Linux 5.8).
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn count_runs(&self) -> Result<OwnedFd, SyscallError> {
        enable_stats(Stats::RunTime)
    }
}

// === impl Loaded ===

impl Loaded {
    fn info(&self, name: &'static str) -> io::Result<ProgramInfo> {
        let info = bpf::program_info(self.fd.as_fd())?;
        let facts = fs::read_to_string(format!("/proc/self/fdinfo/{}", self.fd.as_fd().as_raw_fd()))?;
        Ok(ProgramInfo {
            name,
            id: self.id,
            tag: format!("{:016x}", self.tag),
            instructions: info.verified_insns,
            memory: memory(&facts).unwrap_or_default(),
            runs: info.run_cnt,
            run_ns: info.run_time_ns,
        })
    }
}

/// Bytes, from the `fdinfo` of a program.
fn memory(facts: &str) -> Option<u64> {
    facts.lines().find_map(|line| line.strip_prefix("memlock:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_a_line_of_fdinfo() {
        assert_eq!(memory("pos:\t0\nprog_type:\t3\nmemlock:\t8192\nprog_id:\t7\n"), Some(8192));
        assert_eq!(memory("pos:\t0\nmemlock:\tmany\n"), None);
        assert_eq!(memory(""), None);
    }
}
