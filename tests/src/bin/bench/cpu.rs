//! CPU time of the plugins and the agent.

use std::{os::unix::net::UnixStream, time::Duration};

use ferrule_tests::node;
use nix::{
    sys::{
        resource::{UsageWho, getrusage},
        socket::{getsockopt, sockopt::PeerCredentials},
        time::TimeVal,
    },
    time::{ClockId, clock_getcpuclockid, clock_gettime},
    unistd::Pid,
};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Agent(ClockId);

// === impl Agent ===

impl Agent {
    /// Identifies the process that listens on the node's socket.
    pub(crate) fn find() -> anyhow::Result<Self> {
        let peer = getsockopt(&UnixStream::connect(node::SOCKET)?, PeerCredentials)?;
        Ok(Self(clock_getcpuclockid(Pid::from_raw(peer.pid()))?))
    }

    /// The agent's CPU time so far.
    pub(crate) fn used(self) -> anyhow::Result<Duration> {
        Ok(Duration::from(clock_gettime(self.0)?))
    }

    /// The CPU time so far of the agent and of this process's waited-for children.
    pub(crate) fn and_children(self) -> anyhow::Result<Duration> {
        Ok(self.used()? + children()?)
    }
}

/// The CPU time so far of this process's waited-for children and their descendants.
pub(crate) fn children() -> anyhow::Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    Ok(duration(usage.user_time()) + duration(usage.system_time()))
}

fn duration(time: TimeVal) -> Duration {
    let micros = time.tv_sec().saturating_mul(1_000_000).saturating_add(time.tv_usec());
    Duration::from_micros(u64::try_from(micros).unwrap_or_default())
}
