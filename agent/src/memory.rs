//! Keeps the agent's resident memory small, mostly by returning what a start or a burst of work took.
//!
//! The allocator returns freed memory only on later allocations, and an idle agent makes few. Three quarters
//! of the code run at start only: parsers of settings, YAML and BTF, and the loader. Of the rest, the kernel
//! maps 64 KiB around each function that runs, and never unmaps them while the node has free memory.

use std::{
    cell::Cell,
    ffi::{c_long, c_void},
    fs, io,
    num::NonZero,
    ptr::NonNull,
    time::{Duration, Instant},
};

use nix::sys::mman::{MmapAdvise, madvise};

/// A start, with the first lists of the watches, is over after this time.
const START: Duration = Duration::from_secs(10);

/// The least time between two releases of a thread.
const IDLE: Duration = Duration::from_secs(5);

/// The time between two unmappings of the executable. What runs next has some hundred page faults; an ADD
/// takes as long as any other after a pause.
const UNMAP: Duration = Duration::from_secs(60);

/// `mi_option_purge_delay` of mimalloc 3 (`enum mi_option_e` in `mimalloc.h`), which the crate does not name.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

/// `mi_option_page_full_retain`.
const PAGE_FULL_RETAIN: libmimalloc_sys::mi_option_t = 36;

/// A part of the address space, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Region {
    start: NonZero<usize>,
    length: usize,
}

/// Lets threads that start later share the allocator's pages. By default a thread keeps two full pages of
/// each size, and only that thread takes what is freed there: after 500 ADDs, two megabytes.
pub fn share_pages() {
    set(PAGE_FULL_RETAIN, 0);
}

/// Makes the allocator return free pages at once. By default the kernel gets them a second later, on another
/// allocation: after 500 ADDs, nine megabytes were left. Not before the end of a start, which soon needs what
/// it frees.
pub fn release_at_once() {
    // Before the delay is zero: with zero, the allocator no longer looks at purges that it has scheduled.
    release();
    set(PURGE_DELAY, 0);
}

/// Returns memory once the start is over, and unmaps the executable then and once in each [`UNMAP`]. Never
/// ends.
pub async fn release_in_background() {
    tokio::time::sleep(START).await;
    release();
    let unchanged = unchanged().unwrap_or_else(|error| {
        tracing::debug!(%error, "cannot find the code of the start, which stays in memory");
        Vec::new()
    });
    loop {
        unchanged.iter().copied().for_each(Region::unmap);
        tokio::time::sleep(UNMAP).await;
    }
}

/// Returns free memory of this thread to the kernel, at most once in each [`IDLE`]. Call from a thread that
/// has nothing to do: the allocator keeps what each thread has freed, and a large list leaves megabytes.
pub fn release_when_idle() {
    thread_local! {
        static RELEASED: Cell<Option<Instant>> = const { Cell::new(None) };
    }
    if RELEASED.get().is_none_or(|last| last.elapsed() >= IDLE) {
        release();
        RELEASED.set(Some(Instant::now()));
    }
}

/// Returns free memory of this thread to the kernel.
#[expect(unsafe_code, reason = "the allocator's own function, for which there is no wrapper")]
pub fn release() {
    // SAFETY: takes no pointer, may be called at any time from any thread, and changes no memory in use.
    unsafe { libmimalloc_sys::mi_collect(true) };
}

#[expect(unsafe_code, reason = "the allocator's own function, for which there is no wrapper")]
fn set(option: libmimalloc_sys::mi_option_t, value: c_long) {
    // SAFETY: sets a number, at any time and from any thread.
    unsafe { libmimalloc_sys::mi_option_set(option, value) };
}

/// The mappings of the executable that nothing has written: its code and its constants, without those that
/// the linker relocated.
fn unchanged() -> io::Result<Vec<Region>> {
    let executable = fs::read_link("/proc/self/exe")?;
    Ok(unchanged_in(&fs::read_to_string("/proc/self/smaps")?, &executable.to_string_lossy()))
}

/// Reads `/proc/self/smaps`, see proc_pid_smaps(5): a line for each mapping, with a line for each of its
/// properties below.
fn unchanged_in(smaps: &str, executable: &str) -> Vec<Region> {
    let mut current = None;
    let mut found = Vec::new();
    for line in smaps.lines() {
        match line.split_once(':') {
            Some(("Anonymous" | "Swap", size)) if size.trim() != "0 kB" => current = None,
            Some(("VmFlags", _)) => found.extend(current.take()),
            // The first word of a mapping's own line has no colon, unlike the device after it.
            Some((name, _)) if !name.contains(' ') => {}
            _ => current = Region::read_only(line, executable),
        }
    }
    found
}

// === impl Region ===

impl Region {
    /// From the line of a mapping, if it is of an executable and not writable.
    fn read_only(line: &str, executable: &str) -> Option<Self> {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        if !matches!(fields.next()?, "r-xp" | "r--p") || fields.next_back() != Some(executable) {
            return None;
        }
        let [start, end] = [start, end].map(|it| usize::from_str_radix(it, 16).ok());
        let (start, end) = (NonZero::new(start?)?, end?);
        Some(Self { start, length: end.checked_sub(start.get())? })
    }

    /// What is used again is mapped again, 64 KiB at a time, from the page cache; the kernel may now drop the
    /// rest of it there, too.
    #[expect(unsafe_code, reason = "madvise")]
    fn unmap(self) {
        let start = NonNull::<c_void>::with_exposed_provenance(self.start);
        // SAFETY: the mapping is the executable's, not writable, and had no page of its own when it was
        // found: each page is an unchanged copy of the file, which the kernel maps again on the next access.
        if let Err(error) = unsafe { madvise(start, self.length, MmapAdvise::MADV_DONTNEED) } {
            tracing::debug!(%error, "cannot unmap code");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_are_the_delay_of_a_second_and_the_two_full_pages() {
        #[expect(unsafe_code, reason = "as above")]
        // SAFETY: reads a number.
        let get = |option| unsafe { libmimalloc_sys::mi_option_get(option) };
        assert_eq!((get(PURGE_DELAY), get(PAGE_FULL_RETAIN)), (1000, 2));
        release_at_once();
        share_pages();
        assert_eq!((get(PURGE_DELAY), get(PAGE_FULL_RETAIN)), (0, 0));
    }

    #[test]
    fn only_what_the_executable_has_unchanged_is_unmapped() {
        let of = |line: &str, anonymous: &str, swap: &str| {
            let smaps =
                format!("{line}\nSize:  12 kB\nAnonymous:  {anonymous}\nSwap:  {swap}\nVmFlags: rd mr\n");
            unchanged_in(&smaps, "/opt/agent")
        };
        let region = Region { start: NonZero::new(0x1000).unwrap(), length: 0x3000 };
        for line in
            ["1000-4000 r-xp 00002000 00:29 3   /opt/agent", "1000-4000 r--p 00000000 00:29 3 /opt/agent"]
        {
            assert_eq!(of(line, "0 kB", "0 kB"), [region]);
            assert_eq!(of(line, "4 kB", "0 kB"), [], "relocated");
            assert_eq!(of(line, "0 kB", "4 kB"), [], "relocated, and swapped out");
        }
        for other in [
            "1000-4000 rw-p 00002000 00:29 3   /opt/agent",
            "1000-4000 rwxp 00002000 00:29 3   /opt/agent",
            "1000-4000 r-xp 00002000 00:29 3   /lib/libc.so.6",
            "1000-4000 r-xp 00000000 00:00 0   [vdso]",
            "1000-4000 r-xp 00000000 00:00 0",
            "",
        ] {
            assert_eq!(of(other, "0 kB", "0 kB"), [], "{other}");
        }
        let own = unchanged().unwrap();
        assert!(!own.is_empty());
        own.into_iter().for_each(Region::unmap);
    }
}
