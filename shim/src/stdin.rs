//! Reading standard input up to its end, with a deadline and a size limit.

use std::{
    io::{ErrorKind, Read},
    os::fd::AsFd,
    time::{Duration, Instant},
};

use ferrule_proto::cni::error::Code;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};

use crate::error::CniError;

/// Longest network configuration of every verb but DEL. The largest part is the pod's annotations, which
/// Kubernetes limits to 256 KiB: 1.5 MiB of JSON, because Go writes each `<`, `>` and `&` as six bytes
/// (`\u003c`). The rest is for ports, and for the results and attachments that CHECK and GC get.
pub(crate) const MAX_BYTES: usize = 4 << 20;

/// Longest network configuration of a DEL, of which no list is decoded. A runtime repeats a failing DEL for
/// ever, also after an ADD that was refused because of its length. Whatever a pod's author writes fits: etcd
/// takes objects of 1.5 MiB, which is 9 MiB of JSON at most; previous result and operator's part are added.
pub(crate) const MAX_BYTES_OF_DEL: usize = 16 << 20;

/// Time for the runtime to write the network configuration and to close the pipe.
pub(crate) const DEADLINE: Duration = Duration::from_secs(5);

/// Reads up to the end of input.
///
/// # Errors
/// If the input does not end within `timeout` or `max_bytes`, or if reading fails.
pub(crate) fn read(
    mut input: impl Read + AsFd,
    max_bytes: usize,
    timeout: Duration,
) -> Result<Vec<u8>, CniError> {
    let deadline = Instant::now() + timeout;
    let mut bytes = Vec::new();
    // Configurations are rarely longer, and each page of a larger buffer costs a page fault at every start.
    let mut chunk = [0; 4 * 1024];
    loop {
        await_input(&input, deadline, timeout)?;
        match input.read(&mut chunk) {
            Ok(0) => return Ok(bytes),
            Ok(n) => bytes.extend_from_slice(chunk.get(..n).unwrap_or_default()),
            Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
            Err(e) => return Err(unreadable(&e.to_string())),
        }
        if bytes.len() > max_bytes {
            return Err(CniError::new(
                Code::DecodingFailure,
                format!("reading the network configuration: longer than {max_bytes} bytes"),
                "shorten the network configuration or the pod's annotations in it",
            ));
        }
    }
}

/// Waits until input is readable.
fn await_input(input: &impl AsFd, deadline: Instant, timeout: Duration) -> Result<(), CniError> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let poll_timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(input.as_fd(), PollFlags::POLLIN)], poll_timeout) {
            Ok(0) if left.is_zero() => {
                return Err(CniError::new(
                    Code::IoFailure,
                    format!("reading the network configuration: standard input not closed after {timeout:?}"),
                    "the runtime must write the configuration and then close standard input",
                ));
            }
            // poll(2) has whole milliseconds: the loop waits for the remaining fraction.
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => return Ok(()),
            Err(e) => return Err(unreadable(e.desc())),
        }
    }
}

fn unreadable(reason: &str) -> CniError {
    let msg = format!("reading the network configuration from standard input: {reason}");
    CniError::new(Code::IoFailure, msg, "the runtime must write the configuration to standard input")
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::{Write, pipe},
        thread,
    };

    use super::*;

    #[test]
    fn input_is_read_up_to_its_end() {
        let (reader, mut writer) = pipe().unwrap();
        let sent: Vec<u8> = (0..MAX_BYTES).map(|i| i.to_le_bytes()[0]).collect();
        let expected = sent.clone();
        let writing = thread::spawn(move || writer.write_all(&sent).unwrap());
        assert_eq!(read(reader, MAX_BYTES, DEADLINE).unwrap(), expected);
        writing.join().unwrap();
    }

    #[test]
    fn files_and_empty_input_are_read() {
        assert_eq!(read(File::open("/dev/null").unwrap(), MAX_BYTES, DEADLINE).unwrap(), b"");
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        assert!(!read(File::open(manifest).unwrap(), MAX_BYTES, DEADLINE).unwrap().is_empty());
    }

    #[test]
    fn open_input_fails_at_the_deadline() {
        let (reader, mut writer) = pipe().unwrap();
        writer.write_all(b"{").unwrap();
        let start = Instant::now();
        let error = read(reader, MAX_BYTES, Duration::from_millis(30)).unwrap_err();
        assert_eq!(error.code, 5);
        assert!(error.msg.contains("not closed after 30ms"), "{}", error.msg);
        assert!(start.elapsed() >= Duration::from_millis(30));
        drop(writer);
    }

    #[test]
    fn oversized_input_is_refused() {
        let error = read(File::open("/dev/zero").unwrap(), MAX_BYTES, DEADLINE).unwrap_err();
        assert_eq!(error.code, 6);
    }

    #[test]
    fn unreadable_input_is_an_error() {
        assert_eq!(read(File::open("/").unwrap(), MAX_BYTES, DEADLINE).unwrap_err().code, 5);
    }
}
