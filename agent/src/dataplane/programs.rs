//! The programs in the kernel, and what the kernel tells of them: their size, and their runs while it counts
//! those.

use std::{
    fs, io,
    os::fd::{AsFd as _, AsRawFd as _},
};

use aya::programs::{ProgramError, ProgramFd, SchedClassifier};

use super::bpf;
use crate::{
    metrics::ProgramInfo,
    plug::filter::{FROM_TUNNEL, FROM_UPLINK, LinkFilter, TO_LINK, TO_TUNNEL},
};

/// A program in the kernel.
pub(super) struct Loaded {
    pub(super) name: &'static str,
    pub(super) fd: ProgramFd,
    pub(super) id: u32,
    /// The kernel's digest of the instructions.
    pub(super) tag: u64,
}

/// The programs of the filters.
pub(super) struct Programs {
    pub(super) from_pod: Loaded,
    pub(super) to_pod: Loaded,
    pub(super) from_tunnel: Loaded,
    pub(super) from_uplink: Loaded,
    pub(super) to_tunnel: Loaded,
    pub(super) to_link: Loaded,
}

pub(super) const FROM_POD: &str = "from_pod";
const TO_POD: &str = "to_pod";
/// The program without a filter, which the agent runs.
pub(super) const SET_SUBJECT: &str = "set_subject";
/// The programs of the filters.
pub(super) const FILTERS: [&str; 6] = [FROM_POD, TO_POD, FROM_TUNNEL, FROM_UPLINK, TO_TUNNEL, TO_LINK];

// === impl Programs ===

impl Programs {
    /// Takes each program.
    ///
    /// # Errors
    /// The first error.
    pub(super) fn each<E>(mut take: impl FnMut(&'static str) -> Result<Loaded, E>) -> Result<Self, E> {
        Ok(Self {
            from_pod: take(FROM_POD)?,
            to_pod: take(TO_POD)?,
            from_tunnel: take(FROM_TUNNEL)?,
            from_uplink: take(FROM_UPLINK)?,
            to_tunnel: take(TO_TUNNEL)?,
            to_link: take(TO_LINK)?,
        })
    }

    /// What the kernel tells, without the programs that it does not tell about.
    pub(super) fn info(&self) -> Vec<ProgramInfo> {
        let Self { from_pod, to_pod, from_tunnel, from_uplink, to_tunnel, to_link } = self;
        let read = |program: &Loaded| {
            let warn = |error: &io::Error| {
                tracing::warn!(name = program.name, %error, "cannot read about an eBPF program");
            };
            program.info().inspect_err(warn).ok()
        };
        [from_pod, to_pod, from_tunnel, from_uplink, to_tunnel, to_link]
            .into_iter()
            .filter_map(read)
            .collect()
    }
}

// === impl Loaded ===

impl Loaded {
    /// Opens another descriptor of a loaded program.
    ///
    /// # Errors
    /// If the program is not in the kernel, or the kernel tells nothing about it.
    pub(super) fn of(name: &'static str, program: &SchedClassifier) -> Result<Self, ProgramError> {
        let info = program.info()?;
        Ok(Self { name, fd: program.fd()?.try_clone()?, id: info.id(), tag: info.tag() })
    }

    /// The program as a filter of a link.
    pub(super) fn as_filter(&self) -> LinkFilter<'_> {
        LinkFilter { name: self.name, program: self.fd.as_fd(), id: self.id }
    }

    fn info(&self) -> io::Result<ProgramInfo> {
        let info = bpf::program_info(self.fd.as_fd())?;
        let facts = fs::read_to_string(format!("/proc/self/fdinfo/{}", self.fd.as_fd().as_raw_fd()))?;
        Ok(ProgramInfo {
            name: self.name,
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
