//! Crash points: steps at which a test kills the agent with SIGKILL, so that no rollback runs.
//!
//! Code calls [`point`] right after each change of the kernel or of a file, and at the stages of each
//! operation. The tests in `tests/tests/crashes` crash the agent at every step; a unit test finds changes
//! without a crash point.
//!
//! Crash points are compiled in only with the feature `crash-points`. The directory that
//! `FERRULE_CRASH_POINTS` names holds the commands:
//!
//! | file | content |
//! |---|---|
//! | `steps` | the names of all steps, one per line; written at the first step |
//! | `passed` | the steps passed, one per line, since the test emptied the file |
//! | `at` | the step to crash at, and which occurrence: `add.reserved:1` |

#[cfg(test)]
mod tests;

use std::{
    env, fs,
    io::Write as _,
    path::PathBuf,
    sync::{Mutex, OnceLock, PoisonError},
};

use nix::sys::signal::{Signal, raise};

/// Defines the enum and the list of its variants from one text, so that the list is complete.
macro_rules! steps {
    ($($(#[doc = $doc:literal])* $step:ident = $name:literal,)*) => {
        /// A completed step. Names start with the operation.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Step {
            $($(#[doc = $doc])* $step,)*
        }

        impl Step {
            const ALL: &'static [Self] = &[$(Self::$step,)*];

            fn name(self) -> &'static str {
                match self {
                    $(Self::$step => $name,)*
                }
            }
        }
    };
}

steps! {
    /// The kernel has processed a batch of rtnetlink changes.
    NetlinkChanged = "kernel.netlink",
    /// A sysctl is written.
    SysctlSet = "kernel.sysctl",
    /// A map entry is written.
    MapWritten = "kernel.map_written",
    /// A map entry is removed.
    MapRemoved = "kernel.map_removed",
    /// The directory of pins exists.
    PinsCreated = "kernel.pins_created",
    /// The network namespace that owns the pinned maps is recorded.
    OwnerRecorded = "kernel.owner_recorded",
    /// The directory of pins has another name, because a map capacity was changed.
    PinsSetAside = "kernel.pins_set_aside",
    /// A pin of a replaced map, or the directory of such pins, is removed.
    PinRemoved = "kernel.pin_removed",
    /// The maps are pinned, or reused from their pins.
    MapsPinned = "kernel.maps_pinned",
    /// A program of an earlier agent has no pin.
    ProgramUnpinned = "kernel.program_unpinned",
    /// A program has a pin that the next agent does not use yet.
    ProgramPinned = "kernel.program_pinned",
    /// The next agent may use the pinned programs.
    ProgramsNamed = "kernel.programs_named",
    /// The directory of a store exists, and may be new.
    StoreDirectoryCreated = "store.directory_created",
    /// An unfinished file has all its content, or was not written.
    StoreWritten = "store.written",
    /// A file has its new content, or could not be replaced.
    StorePlaced = "store.placed",
    /// An unfinished file is removed.
    StoreCleared = "store.cleared",
    /// A file is removed.
    StoreRemoved = "store.removed",
    /// A damaged file is quarantined.
    StoreQuarantined = "store.quarantined",
    /// An old quarantined file is removed.
    StoreForgotten = "store.forgotten",
    /// The store of a build with a database is removed.
    StoreEarlierRemoved = "store.earlier_removed",
    /// The state directory exists.
    StateCreated = "file.state_created",
    /// The socket's directory exists.
    SocketDirectoryCreated = "file.socket_directory_created",
    /// The socket's directory has mode 0700.
    SocketDirectoryClosed = "file.socket_directory_closed",
    /// The unfinished socket of an earlier crash is removed.
    SocketPathCleared = "file.socket_path_cleared",
    /// The new socket is bound under a temporary name.
    SocketBound = "file.socket_bound",
    /// The new socket has mode 0600.
    SocketClosed = "file.socket_closed",
    /// The new socket has replaced the old one.
    SocketPlaced = "file.socket_placed",
    /// A deferred DEL is removed.
    DeferredRemoved = "file.deferred_removed",

    /// The key is locked, and the VIF is decided.
    AddBegun = "add.begun",
    /// An address is reserved.
    AddReserved = "add.reserved",
    /// The veth pair exists, and passes no packets.
    AddLinkCreated = "add.link_created",
    /// The map entries are written.
    AddEntriesWritten = "add.entries_written",
    /// The rows that judge the interface are written.
    AddAdmitted = "add.admitted",
    /// Ports of the node lead to the pod's addresses.
    AddPortsAdded = "add.ports_added",
    /// Packets flow.
    AddUp = "add.up",
    /// All interfaces of the ADD are plugged, and none is committed.
    AddPlugged = "add.plugged",
    /// All interfaces of the ADD are committed.
    AddCommitted = "add.committed",
    /// The reply is being sent.
    AddAnswering = "add.answering",
    /// A failed ADD is rolled back.
    AddRolledBack = "add.rolled_back",
    /// No part of the attachment is removed yet.
    DelBegun = "del.begun",
    /// No port of the node leads to the pod.
    DelPortsRemoved = "del.ports_removed",
    /// The map entries are removed, and no packet passes.
    DelEntriesRemoved = "del.entries_removed",
    /// The interface is retired.
    DelRetired = "del.retired",
    /// The addresses are released, and in cooldown.
    DelReleased = "del.released",
    /// The reply is being sent.
    DelAnswering = "del.answering",
    /// A GC call has removed one stale attachment, and may have more to remove.
    GcRemoved = "gc.removed",
    /// The retired interfaces are deleted.
    Reaped = "reaper.reaped",
    /// An attachment is proven orphaned, and not removed yet.
    OrphanFound = "reconcile.orphan_found",
    /// Subjects that read the table to be written pass nothing.
    PolicyClosed = "policy.closed",
    /// The table to be written is empty.
    PolicyCleared = "policy.cleared",
    /// All rows of the new table are written, and its subjects switched.
    PolicySwitched = "policy.switched",
    /// Interfaces without a pod pass nothing.
    PolicyGoneClosed = "policy.gone_closed",
    /// The old table is empty.
    PolicyInstalled = "policy.installed",
    /// The rows of a change are written.
    PolicyChanged = "policy.changed",
    /// The ports of the node lead to the pods of the registry.
    StartPorts = "start.ports",
    /// The registry is read.
    StartRegistryRead = "start.registry_read",
    /// The new programs are loaded and not attached; the maps are the previous agent's.
    StartMapsTakenOver = "start.maps_taken_over",
    /// Forwarding is on, and the IPAM has its ranges.
    StartRanges = "start.ranges",
    /// The deferred DELs are read, and shims cannot add more.
    StartDeferredRead = "start.deferred_read",
    /// The maps have the entries of all live attachments.
    StartEntries = "start.entries",
    /// State of maps of another ABI version is copied.
    StartHandedOver = "start.handed_over",
    /// One more interface has the new programs.
    StartFilterReplaced = "start.filter_replaced",
    /// One more incomplete or deleted attachment is removed.
    StartDeadRemoved = "start.dead_removed",
    /// An interface without an attachment is retired.
    StartStrayRetired = "start.stray_retired",
    /// Stale map entries are pruned.
    StartMapsRetained = "start.maps_retained",
    /// Stale interfaces are deleted.
    StartReaped = "start.reaped",
    /// The missing interface of a live pod is restored, if possible.
    StartRestored = "start.restored",
    /// The deferred DELs are applied.
    StartDeferredApplied = "start.deferred_applied",
    /// The server accepts calls, and shims cannot defer a DEL yet.
    StartServing = "start.serving",
    /// Start-up is complete.
    StartDone = "start.done",
    /// A signal to stop has arrived.
    StopBegun = "stop.begun",
    /// No call is in flight.
    StopDrained = "stop.drained",
    /// The retired interfaces are deleted.
    StopReaped = "stop.reaped",
}

/// Names the directory of commands.
const DIRECTORY: &str = "FERRULE_CRASH_POINTS";

/// Kills the agent if a test asks for a crash at this step. Compiles to nothing without the feature.
#[inline(always)]
pub fn point(step: Step) {
    if cfg!(feature = "crash-points") {
        pass(step);
    }
}

fn pass(step: Step) {
    static COMMANDS: OnceLock<Option<PathBuf>> = OnceLock::new();
    /// Serialises steps, so that no thread passes another step while the agent crashes.
    static GATE: Mutex<()> = Mutex::new(());

    let _gate = GATE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(directory) = COMMANDS.get_or_init(|| {
        let directory = PathBuf::from(env::var_os(DIRECTORY)?);
        let names: Vec<_> = Step::ALL.iter().map(|step| step.name()).collect();
        // A test fails if the list is missing.
        let _ = fs::write(directory.join("steps"), names.join("\n"));
        Some(directory)
    }) else {
        return;
    };
    let path = directory.join("passed");
    let kept = fs::File::options().create(true).append(true).open(&path);
    // A test fails if a step is missing.
    let _ = kept.and_then(|mut passed| writeln!(passed, "{}", step.name()));
    let passed = fs::read_to_string(&path).unwrap_or_default();
    let times = passed.lines().filter(|name| *name == step.name()).count();
    let here = format!("{}:{times}", step.name());
    if fs::read_to_string(directory.join("at")).is_ok_and(|at| at.trim_end() == here) {
        // `abort` would write a core dump.
        let _ = raise(Signal::SIGKILL);
    }
}
