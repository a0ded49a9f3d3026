//! Keeps the agent's resident memory small, mostly by returning what a start took.
//!
//! The allocator returns freed memory only on later allocations, and an idle agent makes few. Three quarters
//! of the code run at start only: parsers of settings, YAML and BTF, and the loader.

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

/// `mi_option_purge_delay` of mimalloc 3 (`enum mi_option_e` in `mimalloc.h`), which the crate does not name.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

/// `mi_option_page_full_retain`.
const PAGE_FULL_RETAIN: libmimalloc_sys::mi_option_t = 36;

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

/// Returns memory once the start is over. Never ends.
pub async fn release_after_start() {
    tokio::time::sleep(START).await;
    release();
    if let Err(error) = unmap_code() {
        tracing::debug!(%error, "cannot unmap the code of the start");
    }
    std::future::pending().await
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

/// Unmaps the pages of the executable's code. Code that runs again is mapped again, 64 KiB at a time, from
/// the page cache; the kernel may now drop the rest of it there, too.
#[expect(unsafe_code, reason = "madvise")]
fn unmap_code() -> io::Result<()> {
    let executable = fs::read_link("/proc/self/exe")?;
    for line in fs::read_to_string("/proc/self/maps")?.lines() {
        let Some((start, length)) = code(line, &executable.to_string_lossy()) else { continue };
        // SAFETY: the mapping is the executable's, and not writable: each page is an unchanged copy of the
        // file (the linker relocates data only), which the kernel maps again on the next access.
        unsafe { madvise(start, length, MmapAdvise::MADV_DONTNEED) }?;
    }
    Ok(())
}

/// Start and bytes of a mapping in `/proc/self/maps`, if it has code of an executable.
fn code(line: &str, executable: &str) -> Option<(NonNull<c_void>, usize)> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    if fields.next() != Some("r-xp") || fields.next_back() != Some(executable) {
        return None;
    }
    let [start, end] = [start, end].map(|it| usize::from_str_radix(it, 16).ok());
    let (start, end) = (NonZero::new(start?)?, end?);
    Some((NonNull::with_exposed_provenance(start), end.checked_sub(start.get())?))
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
    fn only_the_executables_code_is_unmapped() {
        let code = |line| code(line, "/opt/agent").map(|(start, length)| (start.as_ptr() as usize, length));
        assert_eq!(code("1000-4000 r-xp 00002000 00:29 3   /opt/agent"), Some((0x1000, 0x3000)));
        for other in [
            "1000-4000 rw-p 00002000 00:29 3   /opt/agent",
            "1000-4000 r--p 00002000 00:29 3   /opt/agent",
            "1000-4000 rwxp 00002000 00:29 3   /opt/agent",
            "1000-4000 r-xp 00002000 00:29 3   /lib/libc.so.6",
            "1000-4000 r-xp 00000000 00:00 0   [vdso]",
            "1000-4000 r-xp 00000000 00:00 0",
            "",
        ] {
            assert_eq!(code(other), None, "{other}");
        }
        unmap_code().unwrap();
    }
}
