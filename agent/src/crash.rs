//! The steps after which a test may let the agent die, as `kill -9` would: nothing is undone, nobody is told.
//!
//! Whatever changes the kernel or a file says so right after it has, by [`point`]; and between these, the ways of the
//! agent are marked at their stations. The tests walk along all of them (`tests/tests/crashes`), and one beside this
//! file reads the sources for changes that no point follows.
//!
//! Only an agent that was built with the feature `crash-points` looks for orders. It finds them in the directory that
//! `FERRULE_CRASH_POINTS` names:
//!
//! | file | what is in it |
//! |---|---|
//! | `steps` | the names of all steps, a line each, written when the first one is passed |
//! | `passed` | the names of those that were passed, a line each, since the test has emptied it |
//! | `at` | where to die: `add.reserved:1`, the first time that this step is passed |

#[cfg(test)]
mod tests;

use std::{
    env, fs,
    io::Write as _,
    path::PathBuf,
    sync::{Mutex, OnceLock, PoisonError},
};

use nix::sys::signal::{Signal, raise};

/// Makes the enum and the list of what is in it from one text, so that no step can be left out.
macro_rules! steps {
    ($($(#[doc = $doc:literal])* $step:ident = $name:literal,)*) => {
        /// What has just been done. By their names, the ways they are on come first.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Step {
            $($(#[doc = $doc])* $step,)*
        }

        impl Step {
            /// All there are.
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
    /// The kernel has worked on a batch of route netlink that changes something.
    NetlinkChanged = "kernel.netlink",
    /// A setting below `/proc/sys` is written.
    SysctlSet = "kernel.sysctl",
    /// An entry is in a map.
    MapWritten = "kernel.map_written",
    /// An entry is gone from a map.
    MapRemoved = "kernel.map_removed",
    /// There is a directory for pins.
    PinsMade = "kernel.pins_made",
    /// The directory of pins has another name, because a map capacity was changed.
    PinsSetAside = "kernel.pins_set_aside",
    /// A pin of a replaced map, or the directory of such pins, is removed.
    PinRemoved = "kernel.pin_removed",
    /// The maps are pinned, or those taken over that were.
    MapsPinned = "kernel.maps_pinned",
    /// The registry's store is there, and may be new.
    StoreOpened = "store.opened",
    /// What an earlier crash left in a new store's way is gone.
    StoreWayMade = "store.way_made",
    /// A damaged store has another name too.
    StoreSetAside = "store.set_aside",
    /// A new store is in the place of the registry's.
    StorePlaced = "store.placed",
    /// One of the damaged stores that were kept is gone.
    StoreForgotten = "store.forgotten",
    /// A transaction has all that it is about, and is not durable.
    StoreWritten = "store.written",
    /// A transaction is durable.
    StoreCommitted = "store.committed",
    /// There is a state directory.
    StateMade = "file.state_made",
    /// There is a directory for the socket.
    SocketDirectoryMade = "file.socket_directory_made",
    /// It is closed to others.
    SocketDirectoryClosed = "file.socket_directory_closed",
    /// What an earlier crash left in the new socket's way is gone.
    SocketWayMade = "file.socket_way_made",
    /// The new socket is there under another name.
    SocketBound = "file.socket_bound",
    /// It is closed to others.
    SocketClosed = "file.socket_closed",
    /// The new socket is in the place of the old one.
    SocketPlaced = "file.socket_placed",
    /// A shim's note is removed.
    NoteRemoved = "file.note_removed",

    /// The key is locked, and it is known what the pod gets.
    AddBegun = "add.begun",
    /// An address is set aside.
    AddReserved = "add.reserved",
    /// The pair is there, and passes nothing.
    AddMade = "add.made",
    /// The maps have its entries.
    AddEntered = "add.entered",
    /// Packets flow.
    AddUp = "add.up",
    /// All interfaces of the ADD are there, and none is durable.
    AddPlugged = "add.plugged",
    /// All are durable.
    AddCommitted = "add.committed",
    /// The answer is on its way.
    AddAnswering = "add.answering",
    /// What an ADD that failed had done is undone.
    AddUndone = "add.undone",
    /// Nothing is removed yet.
    DelBegun = "del.begun",
    /// Nothing passes any more.
    DelEntriesRemoved = "del.entries_removed",
    /// The interface is among the dead.
    DelBuried = "del.buried",
    /// Its addresses rest.
    DelReleased = "del.released",
    /// The answer is on its way.
    DelAnswering = "del.answering",
    /// One of those that a runtime no longer knows is removed, and others may not be.
    GcRemoved = "gc.removed",
    /// The dead interfaces are deleted.
    Reaped = "reaper.reaped",
    /// It is certain that an attachment dangles, and it is about to be removed.
    Dangles = "reconcile.dangles",
    /// The registry is read.
    StartRegistryRead = "start.registry_read",
    /// The new programs are loaded and attached to nothing; the maps are those of the agent before.
    StartMapsTakenOver = "start.maps_taken_over",
    /// The node forwards, and the IPAM has its ranges.
    StartRanges = "start.ranges",
    /// The shims' notes are read, and no other can be left.
    StartNotesRead = "start.notes_read",
    /// The maps have the entries of all that live.
    StartEntries = "start.entries",
    /// The maps have what only those of another version knew.
    StartInherited = "start.inherited",
    /// The new programs are on one more interface.
    StartFilterReplaced = "start.filter_replaced",
    /// One more of those is removed that were left half done or deleted meanwhile.
    StartDeadRemoved = "start.dead_removed",
    /// An interface of no attachment is among the dead.
    StartStrayBuried = "start.stray_buried",
    /// The maps have nothing else any more.
    StartMapsRetained = "start.maps_retained",
    /// The kernel has nothing else any more.
    StartReaped = "start.reaped",
    /// A lost interface of a pod that lives is made anew, if it could be.
    StartRestored = "start.restored",
    /// The notes are seen to.
    StartNotesSettled = "start.notes_settled",
    /// Calls are taken, and shims cannot leave notes yet.
    StartServing = "start.serving",
    /// The agent is up.
    StartDone = "start.done",
    /// A signal has come.
    StopBegun = "stop.begun",
    /// No call is in work.
    StopDrained = "stop.drained",
    /// The dead interfaces are deleted.
    StopReaped = "stop.reaped",
}

/// Where the orders are.
const DIRECTORY: &str = "FERRULE_CRASH_POINTS";

/// The end of the agent, if a test wants it to be here. Without the feature there is nothing to it.
#[inline(always)]
pub fn point(step: Step) {
    if cfg!(feature = "crash-points") {
        pass(step);
    }
}

fn pass(step: Step) {
    static ORDERS: OnceLock<Option<PathBuf>> = OnceLock::new();
    /// One at a time, so that nobody passes another step while one of them is the end.
    static GATE: Mutex<()> = Mutex::new(());

    let _gate = GATE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(directory) = ORDERS.get_or_init(|| {
        let directory = PathBuf::from(env::var_os(DIRECTORY)?);
        let names: Vec<_> = Step::ALL.iter().map(|step| step.name()).collect();
        // A test that finds no list says so.
        let _ = fs::write(directory.join("steps"), names.join("\n"));
        Some(directory)
    }) else {
        return;
    };
    let path = directory.join("passed");
    let kept = fs::File::options().create(true).append(true).open(&path);
    // So does one that finds a step missing here.
    let _ = kept.and_then(|mut passed| writeln!(passed, "{}", step.name()));
    let passed = fs::read_to_string(&path).unwrap_or_default();
    let times = passed.lines().filter(|name| *name == step.name()).count();
    let here = format!("{}:{times}", step.name());
    if fs::read_to_string(directory.join("at")).is_ok_and(|at| at.trim_end() == here) {
        // Not by `abort`, which writes a core.
        let _ = raise(Signal::SIGKILL);
    }
}
