//! Reading what the runtime writes to standard input: all of it, but not for ever and not without end.

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

/// The most that is read. The largest part of a configuration is a pod's annotations, and Kubernetes bounds
/// those to 256 KiB.
pub(crate) const MAX_BYTES: usize = 1 << 20;

/// How long a runtime may take to write its configuration and to close the pipe.
pub(crate) const DEADLINE: Duration = Duration::from_secs(5);

/// Reads up to the end of input.
///
/// # Errors
/// If the end has not come by the deadline or after [`MAX_BYTES`], or if the input cannot be read.
pub(crate) fn read(mut input: impl Read + AsFd, within: Duration) -> Result<Vec<u8>, CniError> {
    let end = Instant::now() + within;
    let mut bytes = Vec::new();
    // A configuration is rarely longer; and each page of it costs a page fault at every start.
    let mut chunk = [0; 4 * 1024];
    loop {
        await_input(&input, end, within)?;
        match input.read(&mut chunk) {
            Ok(0) => return Ok(bytes),
            Ok(n) => bytes.extend_from_slice(chunk.get(..n).unwrap_or_default()),
            Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
            Err(e) => return Err(unreadable(&e.to_string())),
        }
        if bytes.len() > MAX_BYTES {
            return Err(CniError::new(
                Code::DecodingFailure,
                format!("reading the network configuration: it is longer than {MAX_BYTES} bytes"),
                "make the configuration, or the pod's annotations in it, smaller",
            ));
        }
    }
}

/// Blocks until a read would not.
fn await_input(input: &impl AsFd, end: Instant, within: Duration) -> Result<(), CniError> {
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(input.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(0) if left.is_zero() => {
                return Err(CniError::new(
                    Code::IoFailure,
                    format!("reading the network configuration: standard input has no end after {within:?}"),
                    "the runtime must write the configuration and then close standard input",
                ));
            }
            // A timeout is in whole milliseconds: what is left of the last one is waited for anew.
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => return Ok(()),
            Err(e) => return Err(unreadable(e.desc())),
        }
    }
}

fn unreadable(why: &str) -> CniError {
    let msg = format!("reading the network configuration from standard input: {why}");
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
    fn all_is_read_that_comes_before_the_end() {
        let (reader, mut writer) = pipe().unwrap();
        let sent: Vec<u8> = (0..MAX_BYTES).map(|i| i.to_le_bytes()[0]).collect();
        let expected = sent.clone();
        let writing = thread::spawn(move || writer.write_all(&sent).unwrap());
        assert_eq!(read(reader, DEADLINE).unwrap(), expected);
        writing.join().unwrap();
    }

    #[test]
    fn a_file_and_nothing_at_all_are_read_as_well() {
        assert_eq!(read(File::open("/dev/null").unwrap(), DEADLINE).unwrap(), b"");
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        assert!(!read(File::open(manifest).unwrap(), DEADLINE).unwrap().is_empty());
    }

    #[test]
    fn input_without_end_is_given_up() {
        let (reader, mut writer) = pipe().unwrap();
        writer.write_all(b"{").unwrap();
        let start = Instant::now();
        let error = read(reader, Duration::from_millis(30)).unwrap_err();
        assert_eq!(error.code, 5);
        assert!(error.msg.contains("no end after 30ms"), "{}", error.msg);
        assert!(start.elapsed() >= Duration::from_millis(30));
        drop(writer);
    }

    #[test]
    fn input_that_is_too_long_is_not_read_to_its_end() {
        let error = read(File::open("/dev/zero").unwrap(), DEADLINE).unwrap_err();
        assert_eq!(error.code, 6);
    }

    #[test]
    fn input_that_cannot_be_read_is_an_error() {
        assert_eq!(read(File::open("/").unwrap(), DEADLINE).unwrap_err().code, 5);
    }
}
