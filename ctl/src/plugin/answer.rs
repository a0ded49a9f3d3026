//! What a command in a pod answers, as it comes.

use std::{
    io::{self, Cursor, ErrorKind, Read, Write as _},
    os::unix::process::ExitStatusExt as _,
    process::Child,
    sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender},
    thread,
    time::{Duration, Instant},
};

/// Reading it reads the command's output, and passes its standard error on. kubectl ends with it.
pub(super) struct Answer {
    kubectl: Child,
    parts: Receiver<Part>,
    unread: Cursor<Vec<u8>>,
    errors: Errors,
    /// How long it may be silent; `None`: as long as it likes.
    patience: Option<Duration>,
    heard: Instant,
    is_silent: bool,
}

/// How a command in a pod has ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum End {
    Code(u8),
    /// It has written nothing for too long.
    Silent,
    /// kubectl itself has failed, in its own words on standard error.
    Failed,
}

enum Part {
    Output(Vec<u8>),
    Error(Vec<u8>),
}

/// The end of standard error.
#[derive(Default)]
struct Errors(Vec<u8>);

/// What kubectl says of a command that has ended with another code than 0 (`k8s.io/kubectl/pkg/cmd/exec`).
const TERMINATED: &str = "command terminated with exit code ";
/// Bytes that are kept of standard error: more than that line.
const LAST: usize = 1024;
/// Bytes of a part at most, and parts that wait to be read: then kubectl waits, too, whose connection breaks
/// after a minute of that (`pingReadDeadline` in `k8s.io/client-go/tools/remotecommand`).
const PART: usize = 8 << 10;
const PARTS: usize = 512;
/// What ends kubectl, as any program in Go, once its output has no reader any more (package `os/signal`).
const SIGPIPE: i32 = 13;

// === impl Answer ===

impl Answer {
    /// Takes those of kubectl's outputs that are pipes.
    pub(super) fn of(mut kubectl: Child, patience: Option<Duration>) -> Self {
        let (sender, parts) = mpsc::sync_channel(PARTS);
        if let Some(output) = kubectl.stdout.take() {
            let sender = sender.clone();
            thread::spawn(move || send(output, Part::Output, &sender));
        }
        if let Some(errors) = kubectl.stderr.take() {
            thread::spawn(move || send(errors, Part::Error, &sender));
        }
        let (unread, errors, heard) = (Cursor::default(), Errors::default(), Instant::now());
        Self { kubectl, parts, unread, errors, patience, heard, is_silent: false }
    }

    /// After the output is read, or reading has failed because of the silence. A reader of kubectl's own
    /// output that has read enough (`| head -1`) is no failure.
    ///
    /// # Errors
    /// If kubectl cannot be waited for.
    pub(super) fn end(mut self) -> io::Result<End> {
        if self.is_silent {
            return Ok(End::Silent);
        }
        let status = self.kubectl.wait()?;
        if status.signal() == Some(SIGPIPE) {
            return Ok(End::Code(0));
        }
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        let code = code.filter(|code| *code == 0 || self.errors.tell_a_code());
        Ok(code.map_or(End::Failed, End::Code))
    }

    pub(super) fn is_silent(&self) -> bool {
        self.is_silent
    }

    /// `None` at the end.
    fn part(&mut self) -> io::Result<Option<Part>> {
        let part = match self.patience {
            Some(patience) => self.parts.recv_timeout(patience.saturating_sub(self.heard.elapsed())),
            None => self.parts.recv().map_err(Into::into),
        };
        match part {
            Ok(part) => {
                self.heard = Instant::now();
                Ok(Some(part))
            }
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => {
                self.is_silent = true;
                Err(ErrorKind::TimedOut.into())
            }
        }
    }
}

impl Read for Answer {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        loop {
            let length = self.unread.read(to)?;
            if length > 0 || to.is_empty() {
                return Ok(length);
            }
            match self.part()? {
                Some(Part::Output(bytes)) => self.unread = Cursor::new(bytes),
                Some(Part::Error(bytes)) => {
                    // A closed standard error is no reason to end the command.
                    let _ = io::stderr().write_all(&bytes);
                    self.errors.push(&bytes);
                }
                None => return Ok(0),
            }
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = self.kubectl.kill();
        let _ = self.kubectl.wait();
    }
}

// === impl Errors ===

impl Errors {
    fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
        let excess = self.0.len().saturating_sub(LAST);
        self.0.drain(..excess);
    }

    /// Whether the last line tells the command's exit code: after a failure of its own, kubectl also ends
    /// with 1, and says something else.
    fn tell_a_code(&self) -> bool {
        let last = String::from_utf8_lossy(&self.0);
        last.trim_end().lines().next_back().is_some_and(|it| it.starts_with(TERMINATED))
    }
}

/// Until the end, or until nothing receives.
fn send(mut from: impl Read, part: fn(Vec<u8>) -> Part, to: &SyncSender<Part>) {
    let mut bytes = [0; PART];
    loop {
        let length = match from.read(&mut bytes) {
            Ok(0) => break,
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        let Some(bytes) = bytes.get(..length) else { break };
        if to.send(part(bytes.to_vec())).is_err() {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn answer(script: &str, patience: Option<Duration>) -> Answer {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdout(Stdio::piped()).stderr(Stdio::piped());
        Answer::of(command.spawn().unwrap(), patience)
    }

    #[test]
    fn the_last_line_tells_a_failed_command_from_a_failed_kubectl() {
        for (text, expected) in [
            ("command terminated with exit code 1\n", true),
            ("note\ncommand terminated with exit code 3", true),
            ("", false),
            ("Error from server (Forbidden): no\n", false),
            ("command terminated with exit code 1\nerror: lost connection to pod\n", false),
        ] {
            let mut errors = Errors::default();
            let (before, after) = text.split_at(text.len() / 2);
            errors.push(before.as_bytes());
            errors.push(after.as_bytes());
            assert_eq!(errors.tell_a_code(), expected, "{text}");
        }
        let mut errors = Errors::default();
        errors.push("x".repeat(100_000).as_bytes());
        errors.push(b"\ncommand terminated with exit code 2\n");
        assert!(errors.tell_a_code() && errors.0.len() == LAST);
    }

    #[test]
    fn an_answer_that_waits_to_be_read_is_whole_and_not_silent() {
        let mut answer = answer("yes | head -c 9000000", Some(Duration::from_millis(1500)));
        thread::sleep(Duration::from_secs(2));
        let mut text = String::new();
        answer.read_to_string(&mut text).unwrap();
        assert_eq!((text.len(), answer.end().unwrap()), (9_000_000, End::Code(0)));
    }

    #[test]
    fn a_silent_answer_ends_with_what_it_has_said_and_a_patient_reader_waits() {
        let mut silent = answer("echo begun; exec sleep 60", Some(Duration::from_millis(1500)));
        let mut text = String::new();
        let began = Instant::now();
        assert_eq!(silent.read_to_string(&mut text).unwrap_err().kind(), ErrorKind::TimedOut);
        assert!(silent.is_silent() && text == "begun\n");
        assert_eq!(silent.end().unwrap(), End::Silent);
        assert!(began.elapsed() < Duration::from_secs(30), "the process is ended");
        let mut slow = answer("sleep 1; echo late", None);
        slow.read_to_string(&mut text).unwrap();
        assert_eq!((text.as_str(), slow.end().unwrap()), ("begun\nlate\n", End::Code(0)));
    }
}
