//! What `ferrulectl` does if its output cannot be written.

#![expect(clippy::unwrap_used, reason = "test helpers panic on failure, as tests do")]

use std::{
    fs::File,
    io::Write as _,
    process::{Command, Output, Stdio},
};

const POD: &[u8] = b"kind: Pod\nmetadata: {name: a}\n";

fn decode(stdout: impl Into<Stdio>) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_ferrulectl"))
        .args(["vif", "decode", "-f", "-"])
        .stdin(Stdio::piped())
        .stdout(stdout)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(POD).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn a_reader_that_has_read_enough_is_no_failure() {
    // The reader is gone before the first byte, as `head` is after its last line.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let ended = decode(writer);
    assert_eq!((ended.status.code(), String::from_utf8(ended.stderr).unwrap()), (Some(0), String::new()));
}

#[test]
fn output_that_cannot_be_written_is_a_failure() {
    let ended = decode(File::options().write(true).open("/dev/full").unwrap());
    let stderr = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(1));
    assert!(stderr.starts_with("ferrulectl: cannot write the output: No space left on device"), "{stderr}");
}
