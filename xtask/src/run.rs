//! Running other programs: say what for, run, check.

use std::{
    env,
    ffi::{OsStr, OsString},
    fmt::Write as _,
    io::{self, BufRead as _, BufReader},
    path::Path,
    process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;

pub(crate) use crate::progress::say;
use crate::{failure::Failure, progress};

/// How long a program that has ended may leave its output open: a process that it started may hold it.
const SILENCE: Duration = Duration::from_secs(1);
/// How often a program is asked whether it has ended.
const LOOK: Duration = Duration::from_millis(50);
/// Lines of a program's output that wait to be shown.
const LINES: usize = 1024;

/// One program to run, and what to tell people about it.
#[derive(Debug)]
pub(crate) struct Step {
    doing: String,
    remedy: String,
    command: Command,
    /// Before each line of the output that [`Step::run_reading`] shows.
    label: &'static str,
}

/// Where programs are looked for: PATH, and where Debian keeps those for root, which `su` leaves out of it.
pub(crate) fn search_path() -> OsString {
    let mut path = env::var_os("PATH").unwrap_or_default();
    for folder in ["/usr/sbin", "/usr/bin", "/sbin", "/bin"] {
        if !env::split_paths(&path).any(|known| known == Path::new(folder)) {
            path.push(":");
            path.push(folder);
        }
    }
    path
}

// === impl Step ===

impl Step {
    /// `doing` completes "==> "; `remedy` is what its reader should do if it fails.
    pub(crate) fn new(
        program: impl AsRef<OsStr>,
        doing: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        let mut command = Command::new(program);
        // A program that prompts must fail, not hang.
        command.stdin(Stdio::null());
        command.env("PATH", search_path());
        Self { doing: doing.into(), remedy: remedy.into(), command, label: "" }
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    pub(crate) fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.command.args(args);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub(crate) fn env_remove(mut self, name: &str) -> Self {
        self.command.env_remove(name);
        self
    }

    pub(crate) fn current_dir(mut self, dir: &Path) -> Self {
        self.command.current_dir(dir);
        self
    }

    /// Tells the lines of [`Self::run_reading`] from those of steps beside it.
    #[must_use]
    pub(crate) fn labelled(mut self, label: &'static str) -> Self {
        self.label = label;
        self
    }

    /// Leaves the processors to steps beside it.
    #[must_use]
    pub(crate) fn nice(mut self) -> Self {
        let mut command = Command::new("nice");
        command.arg("-n10").arg(self.command.get_program()).args(self.command.get_args());
        for (name, value) in self.command.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        if let Some(dir) = self.command.get_current_dir() {
            command.current_dir(dir);
        }
        command.stdin(Stdio::null());
        self.command = command;
        self
    }

    /// Runs the step and shows its output.
    ///
    /// # Errors
    /// If the program does not start or fails.
    pub(crate) fn run(mut self) -> Result<()> {
        say(&self.doing);
        match self.start()? {
            status if status.success() => Ok(()),
            status => Err(self.failure(format!("{status}; its messages are above")).into()),
        }
    }

    /// Runs the step and shows its output. Calls `check` once in each period `every`, and ends the step early
    /// if it fails.
    ///
    /// # Errors
    /// That of `check`, or if the program does not start or fails.
    pub(crate) fn run_while(mut self, every: Duration, mut check: impl FnMut() -> Result<()>) -> Result<()> {
        say(&self.doing);
        let mut child = self.command.spawn().map_err(|error| self.not_started(&error))?;
        let status = progress::during(&self.doing, || -> Result<ExitStatus> {
            let mut last = Instant::now();
            loop {
                if let Some(status) = child.try_wait()? {
                    return Ok(status);
                }
                if last.elapsed() >= every {
                    check().inspect_err(|_| end(&mut child))?;
                    last = Instant::now();
                }
                thread::sleep(LOOK);
            }
        })?;
        if status.success() {
            return Ok(());
        }
        Err(self.failure(format!("{status}; its messages are above")).into())
    }

    /// Runs the step, shows its output, and returns its exit status.
    ///
    /// # Errors
    /// If the program does not start.
    pub(crate) fn status(mut self) -> Result<ExitStatus> {
        say(&self.doing);
        self.start()
    }

    /// Runs the step, shows its output, and gives each line of its standard output to `read`.
    ///
    /// # Errors
    /// If the program does not start or fails.
    pub(crate) fn run_reading(mut self, mut read: impl FnMut(&str)) -> Result<()> {
        say(&self.doing);
        let command = self.command.stdout(Stdio::piped());
        let status = progress::during(&self.doing, || show(command.spawn()?, self.label, &mut read));
        match status.map_err(|error| self.not_started(&error))? {
            status if status.success() => Ok(()),
            status => Err(self.failure(format!("{status}; its messages are above")).into()),
        }
    }

    /// Runs the step without showing its output, and returns the output.
    ///
    /// # Errors
    /// If the program does not start or fails.
    pub(crate) fn ask(mut self) -> Result<String> {
        let output = self.command.output();
        let Output { status, stdout, stderr } = output.map_err(|error| self.not_started(&error))?;
        if status.success() {
            return Ok(String::from_utf8_lossy(&stdout).into_owned());
        }
        let stderr = String::from_utf8_lossy(&stderr);
        Err(self.failure(format!("{status}: {}", stderr.trim())).into())
    }

    fn start(&mut self) -> Result<ExitStatus> {
        let command = &mut self.command;
        let status = progress::during(&self.doing, || command.status());
        Ok(status.map_err(|error| self.not_started(&error))?)
    }

    fn not_started(&self, error: &io::Error) -> Failure {
        let program = self.command.get_program().to_string_lossy();
        match error.kind() {
            io::ErrorKind::NotFound => Failure {
                attempted: self.attempted(),
                why: format!("{program} is not in PATH"),
                remedy: format!("install {program}, or put its folder into PATH"),
            },
            _ => self.failure(format!("{program} did not start: {error}")),
        }
    }

    fn failure(&self, why: String) -> Failure {
        Failure { attempted: self.attempted(), why, remedy: self.remedy.clone() }
    }

    fn attempted(&self) -> String {
        format!("{} (`{}`)", self.doing, command_line(&self.command))
    }
}

/// The error that ends the program is the one to report.
fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// Shows a program's standard output, line by line, until the program ends.
fn show(mut child: Child, label: &str, read: &mut impl FnMut(&str)) -> io::Result<ExitStatus> {
    let Some(output) = child.stdout.take() else { return child.wait() };
    let lines = lines(output)?;
    loop {
        match lines.recv_timeout(SILENCE) {
            Ok(line) => {
                let line = String::from_utf8_lossy(&line);
                print!("{label}{line}");
                read(line.trim_end());
            }
            Err(RecvTimeoutError::Disconnected) => return child.wait(),
            Err(RecvTimeoutError::Timeout) => {
                if let Some(status) = child.try_wait()? {
                    return Ok(status);
                }
            }
        }
    }
}

fn lines(output: ChildStdout) -> io::Result<Receiver<Vec<u8>>> {
    let (send, lines) = mpsc::sync_channel(LINES);
    let mut output = BufReader::new(output);
    thread::Builder::new().name("output".to_owned()).spawn(move || {
        let mut line = Vec::new();
        while output.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            if send.send(std::mem::take(&mut line)).is_err() {
                return;
            }
        }
    })?;
    Ok(lines)
}

/// The command line for a shell: changed environment variables except PATH, program and arguments.
fn command_line(command: &Command) -> String {
    let mut line = String::new();
    for (name, value) in command.get_envs().filter(|(name, _)| *name != "PATH") {
        let Some(value) = value else { continue };
        let value = value.to_string_lossy().replace('\u{1f}', "\\x1f");
        // Writing to a String cannot fail.
        let _ = write!(line, "{}={} ", name.to_string_lossy(), quote(&value));
    }
    line.push_str(&quote(&command.get_program().to_string_lossy()));
    for arg in command.get_args() {
        line.push(' ');
        line.push_str(&quote(&arg.to_string_lossy()));
    }
    line
}

/// Enough quoting to paste it into a shell again.
fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=+./:,@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else if word.contains('\\') {
        format!("$'{}'", word.replace('\'', "\\'"))
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_has_attempt_reason_and_remedy() {
        let step = Step::new("sh", "trying a thing", "try another").args(["-c", "echo no luck >&2; exit 3"]);
        let text = step.ask().unwrap_err().to_string();
        assert_eq!(
            text,
            "trying a thing (`sh -c 'echo no luck >&2; exit 3'`): failed\n  \
             why:   exit status: 3: no luck\n  \
             to do: try another"
        );
    }

    #[test]
    fn a_missing_program_is_named() {
        let text = Step::new("no-such-program", "asking it", "give up").ask().unwrap_err().to_string();
        assert!(text.starts_with("asking it (`no-such-program`): failed"), "{text}");
        assert!(text.contains("install no-such-program"), "{text}");
    }

    #[test]
    fn lines_are_read_until_the_program_ends_although_its_child_lives() {
        let mut lines = Vec::new();
        let script = "echo one; echo two; sleep 30 & exit 3";
        let step = Step::new("sh", "counting", "").args(["-c", script]);
        let start = std::time::Instant::now();
        let text = step.run_reading(|line| lines.push(line.to_owned())).unwrap_err().to_string();
        assert!(text.contains("exit status: 3") && start.elapsed() < Duration::from_secs(25), "{text}");
        assert_eq!(lines, ["one", "two"]);
    }

    #[test]
    fn a_program_runs_while_a_check_succeeds() {
        let every = Duration::from_millis(10);
        let long = || Step::new("sh", "waiting", "").args(["-c", "exec sleep 30"]);
        let (start, mut checks) = (Instant::now(), 0);
        let failed = long().run_while(every, || {
            checks += 1;
            if checks < 3 { Ok(()) } else { Err(anyhow::anyhow!("third check")) }
        });
        assert_eq!((failed.unwrap_err().to_string().as_str(), checks), ("third check", 3));
        assert!(start.elapsed() < Duration::from_secs(25), "the program was waited for");
        let step = Step::new("sh", "ending", "").args(["-c", "exit 3"]);
        assert!(step.run_while(every, || Ok(())).unwrap_err().to_string().contains("exit status: 3"));
    }

    #[test]
    fn prompts_read_end_of_file() {
        let read = Step::new("sh", "reading", "").args(["-c", "cat; echo end"]).ask().unwrap();
        assert_eq!(read, "end\n");
    }

    #[test]
    fn command_lines_can_be_pasted() {
        let mut command = Command::new("cargo");
        command.args(["a b", "it's", "--plain=1"]).env("FLAGS", "-C\u{1f}x=/y");
        assert_eq!(command_line(&command), r"FLAGS=$'-C\x1fx=/y' cargo 'a b' 'it'\''s' --plain=1");
    }
}
