//! A stream's lines: one event each, at most so long.

use http_body_util::BodyExt as _;
use kube::client::Body;

/// The lines of a body.
pub(super) struct Lines {
    body: Body,
    /// What came of lines that are not given out yet.
    buffer: Vec<u8>,
    /// How much of it was looked through for an end.
    scanned: usize,
    /// Where the line that was given out last ends.
    taken: usize,
    /// In the middle of a line that is too long: what comes up to its end is passed over.
    skipping: bool,
}

/// A piece of a stream.
#[derive(Debug)]
pub(super) enum Piece {
    /// More came, and there may be lines now.
    More(usize),
    /// It ended as it should. What comes behind the last line's end was cut off.
    End,
    /// It broke.
    Broken(String),
}

/// The longest line. etcd takes 1.5 MiB for an object; half as much again is added by the server.
const MOST: usize = 8 << 20;
/// What is kept of the buffer's room when it is empty.
const KEEP: usize = 256 << 10;

// === impl Lines ===

impl Lines {
    pub(super) fn new(body: Body) -> Self {
        Self { body, buffer: Vec::new(), scanned: 0, taken: 0, skipping: false }
    }

    /// Waits for more. It may be dropped while it waits: nothing is lost.
    pub(super) async fn more(&mut self) -> Piece {
        loop {
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    let Ok(data) = frame.into_data() else { continue };
                    self.compact();
                    self.buffer.extend_from_slice(&data);
                    return Piece::More(data.len());
                }
                Some(Err(error)) => return Piece::Broken(crate::chain::chain(&error)),
                None if self.scanned == self.buffer.len() && self.buffer.len() == self.taken => {
                    return Piece::End;
                }
                None => return Piece::Broken("it ended in the middle of an event".to_owned()),
            }
        }
    }

    /// The next whole line that is there: `Err` stands for one that was too long.
    pub(super) fn next(&mut self) -> Option<Result<&[u8], TooLong>> {
        loop {
            let fresh = self.buffer.get(self.scanned..)?;
            let Some(end) = memchr::memchr(b'\n', fresh).map(|at| self.scanned + at) else {
                self.scanned = self.buffer.len();
                if self.buffer.len() - self.taken > MOST {
                    let first = !std::mem::replace(&mut self.skipping, true);
                    self.taken = self.buffer.len();
                    return first.then_some(Err(TooLong));
                }
                return None;
            };
            let start = self.taken;
            (self.taken, self.scanned) = (end + 1, end + 1);
            if std::mem::take(&mut self.skipping) || start == end {
                continue;
            }
            return if end - start > MOST { Some(Err(TooLong)) } else { self.buffer.get(start..end).map(Ok) };
        }
    }

    /// How many bytes wait for the end of their line.
    pub(super) fn buffered(&self) -> usize {
        self.buffer.len() - self.taken
    }

    fn compact(&mut self) {
        self.buffer.drain(..self.taken);
        self.scanned -= self.taken;
        self.taken = 0;
        if self.buffer.is_empty() {
            self.buffer.shrink_to(KEEP);
        }
    }
}

/// A line was too long to be an event, and is passed over.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong;

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(body: Vec<u8>) -> Lines {
        Lines::new(Body::from(body))
    }

    async fn all(mut lines: Lines) -> (Vec<Result<String, TooLong>>, Piece) {
        let mut found = Vec::new();
        loop {
            let piece = lines.more().await;
            while let Some(line) = lines.next() {
                found.push(line.map(|line| String::from_utf8_lossy(line).into_owned()));
            }
            if !matches!(piece, Piece::More(_)) {
                return (found, piece);
            }
        }
    }

    #[tokio::test]
    async fn lines_are_given_out_one_by_one() {
        let (found, end) = all(lines(b"one\n\ntwo\n".to_vec())).await;
        assert_eq!(found, [Ok("one".to_owned()), Ok("two".to_owned())]);
        assert!(matches!(end, Piece::End));
    }

    #[tokio::test]
    async fn a_stream_cut_in_the_middle_of_an_event_is_broken() {
        let (found, end) = all(lines(b"one\ntw".to_vec())).await;
        assert_eq!(found, [Ok("one".to_owned())]);
        assert!(matches!(end, Piece::Broken(_)));
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_is_passed_over_and_the_next_is_not() {
        let mut body = vec![b'x'; MOST + 1];
        body.extend_from_slice(b"\nnext\n");
        let mut lines = lines(body);
        // In pieces, as a network would give them.
        let whole = match lines.more().await {
            Piece::More(_) => std::mem::take(&mut lines.buffer),
            piece => panic!("{piece:?}"),
        };
        let mut found = Vec::new();
        for piece in whole.chunks(1 << 20) {
            lines.compact();
            lines.buffer.extend_from_slice(piece);
            assert!(lines.buffered() <= MOST + (2 << 20), "bounded");
            while let Some(line) = lines.next() {
                found.push(line.map(|line| String::from_utf8_lossy(line).into_owned()));
            }
        }
        assert_eq!(found, [Err(TooLong), Ok("next".to_owned())]);
    }
}
