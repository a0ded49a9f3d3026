//! How far a command is: its stages, their times, and a sign of life of programs that are silent for long.

use std::{
    cell::RefCell,
    io::{self, IsTerminal as _},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow};

/// The numbered stages of a command, one after another.
#[derive(Debug)]
pub(crate) struct Stages {
    of: usize,
    done: usize,
}

/// A linker that optimises a whole program prints nothing for minutes.
const BEAT: Duration = Duration::from_secs(30);
/// Shorter times tell nothing.
const WORTH_TELLING: Duration = Duration::from_secs(1);

thread_local! {
    /// The stages around the present one, such as `2/4, `.
    static AROUND: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Prints one line about what happens.
pub(crate) fn say(what: impl AsRef<str>) {
    // On a terminal, cargo leaves its bar on the line.
    let clear = if io::stderr().is_terminal() { "\r\u{1b}[K" } else { "" };
    eprintln!("{clear}==> {}", what.as_ref());
}

/// Does two things at once: one in a thread of its own, which is named.
///
/// # Errors
/// If one of them fails, or both.
pub(crate) fn beside(
    name: &str,
    one: impl FnOnce() -> Result<()> + Send,
    other: impl FnOnce() -> Result<()>,
) -> Result<()> {
    thread::scope(|scope| {
        let one = thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, one)?;
        let other = other();
        let one = one.join().map_err(|_| anyhow!("{name}: panicked, see above"))?;
        both(other, one)
    })
}

/// Both errors are worth knowing.
pub(crate) fn both(one: Result<()>, other: Result<()>) -> Result<()> {
    match (one, other) {
        (Err(one), Err(other)) => Err(anyhow!("{one:#}\nerror: {other:#}")),
        (one, other) => one.and(other),
    }
}

/// Waits for a program, and says from time to time, and at the end, how long it has taken.
pub(crate) fn during<T>(doing: &str, wait: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let waited = beating(BEAT, || say(format!("{} so far: {doing}", shown(start.elapsed()))), wait);
    if start.elapsed() >= WORTH_TELLING {
        say(format!("{}: {doing}", shown(start.elapsed())));
    }
    waited
}

/// Calls `beat` each `every` until `wait` returns.
fn beating<T>(every: Duration, beat: impl Fn() + Send, wait: impl FnOnce() -> T) -> T {
    thread::scope(|scope| {
        let (end, ended) = mpsc::channel::<()>();
        let beats = thread::Builder::new().name("progress".to_owned()).spawn_scoped(scope, move || {
            while ended.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                beat();
            }
        });
        let waited = wait();
        // Without a thread, there are no signs of life, and the work is done all the same.
        drop((beats, end));
        waited
    })
}

// === impl Stages ===

impl Stages {
    /// `of`: how often [`Self::run`] will be called.
    pub(crate) fn of(of: usize) -> Self {
        Self { of, done: 0 }
    }

    /// Does the next stage, and says its number and its time.
    ///
    /// # Errors
    /// If it fails.
    pub(crate) fn run<T>(&mut self, doing: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.done += 1;
        let around = AROUND.with_borrow(Clone::clone);
        let place = format!("{around}{}/{}", self.done, self.of);
        say(format!("[{place}] {doing}"));
        let start = Instant::now();
        AROUND.set(format!("{place}, "));
        let outcome = work();
        AROUND.set(around);
        let outcome = outcome?;
        say(format!("[{place}] took {}", shown(start.elapsed())));
        Ok(outcome)
    }
}

/// A time for people.
fn shown(time: Duration) -> String {
    match time.as_secs() {
        0..10 => format!("{:.1} s", time.as_secs_f64()),
        seconds @ 10..60 => format!("{seconds} s"),
        seconds => format!("{} min {:02} s", seconds / 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_program_gets_signs_of_life_until_its_end() {
        let (beat, beats) = mpsc::channel();
        let start = move || beat.send(()).unwrap();
        let waited = beating(Duration::from_millis(1), start, || {
            beats.recv().unwrap();
            beats.recv().unwrap();
            7
        });
        assert_eq!(waited, 7);
    }

    #[test]
    fn stages_within_a_stage_know_their_place() {
        let place = || AROUND.with_borrow(Clone::clone);
        let mut outer = Stages::of(2);
        outer.run("first", || Ok(())).unwrap();
        let within = outer.run("second", || {
            let mut inner = Stages::of(3);
            inner.run("failing", || Err::<(), _>(anyhow!("no luck"))).unwrap_err();
            inner.run("next", || Ok(place()))
        });
        assert_eq!([within.unwrap(), place()], ["2/2, 2/3, ", ""]);
    }

    #[test]
    fn two_things_at_once_report_both_failures() {
        let failed = beside("one", || Err(anyhow!("left")), || Err(anyhow!("right"))).unwrap_err();
        assert_eq!(failed.to_string(), "right\nerror: left");
        beside("one", || Ok(()), || Ok(())).unwrap();
    }

    #[test]
    fn times_are_for_people() {
        let times = [300, 9_940, 59_900, 185_000, 4_000_000].map(|it| shown(Duration::from_millis(it)));
        assert_eq!(times, ["0.3 s", "9.9 s", "59 s", "3 min 05 s", "66 min 40 s"]);
    }
}
