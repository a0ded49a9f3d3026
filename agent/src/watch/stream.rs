//! The lines of a response body, one event each.

use bytes::BytesMut;
use http_body_util::BodyExt as _;
use kube::client::Body;
use tokio_util::codec::{Decoder as _, LinesCodec};

use crate::chain::chain;

/// A body that is split into lines of at most 8 MiB. The codec drops what exceeds that, up to the end of the
/// line.
///
/// This drives the codec itself, because tokio-util's `FramedRead` reports an overlong line as the end of the
/// stream, and then decodes no buffered line before more bytes arrive.
pub(super) struct Lines {
    body: Body,
    buffer: BytesMut,
    codec: LinesCodec,
}

#[derive(Debug)]
pub(super) enum Received {
    /// A number of bytes; [`Lines::next`] may return lines now.
    Bytes(usize),
    End,
    /// The reason that the stream broke.
    Broken(String),
}

/// A line that is longer than 8 MiB or not UTF-8. The lines after it are intact.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InvalidLine;

/// Bytes. etcd limits an object to 1.5 MiB; the API server adds half as much again.
const MAX_LINE: usize = 8 << 20;

// === impl Lines ===

impl Lines {
    pub(super) fn new(body: Body) -> Self {
        Self { body, buffer: BytesMut::new(), codec: LinesCodec::new_with_max_length(MAX_LINE) }
    }

    /// Waits for more bytes. Cancel safe.
    pub(super) async fn receive(&mut self) -> Received {
        loop {
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    let Ok(data) = frame.into_data() else { continue };
                    self.buffer.extend_from_slice(&data);
                    return Received::Bytes(data.len());
                }
                Some(Err(error)) => return Received::Broken(chain(&error)),
                None if self.buffer.is_empty() => return Received::End,
                None => return Received::Broken("cut off in the middle of an event".to_owned()),
            }
        }
    }

    /// The next complete and non-empty line that has been received.
    pub(super) fn next(&mut self) -> Option<Result<String, InvalidLine>> {
        loop {
            match self.codec.decode(&mut self.buffer) {
                Ok(Some(line)) if line.is_empty() => {}
                Ok(Some(line)) => return Some(Ok(line)),
                Ok(None) => {
                    // Gives back the memory of a burst.
                    if self.buffer.is_empty() {
                        self.buffer = BytesMut::new();
                    }
                    return None;
                }
                Err(_) => return Some(Err(InvalidLine)),
            }
        }
    }

    /// Received bytes of an incomplete line.
    pub(super) fn buffered(&self) -> usize {
        self.buffer.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of a body that arrives in chunks of 1 MiB, and how it ends.
    async fn all(body: &[u8]) -> (Vec<Result<String, InvalidLine>>, Received) {
        let mut lines = Lines::new(Body::empty());
        let mut found = Vec::new();
        for chunk in body.chunks(1 << 20) {
            lines.buffer.extend_from_slice(chunk);
            assert!(lines.buffered() <= MAX_LINE + (2 << 20), "the buffer is bounded");
            found.extend(std::iter::from_fn(|| lines.next()));
        }
        (found, lines.receive().await)
    }

    #[tokio::test]
    async fn received_bytes_become_lines() {
        let mut lines = Lines::new(Body::from(b"one\n".to_vec()));
        assert!(matches!(lines.receive().await, Received::Bytes(4)));
        assert_eq!((lines.next(), lines.next()), (Some(Ok("one".to_owned())), None));
        assert!(matches!(lines.receive().await, Received::End));
    }

    #[tokio::test]
    async fn lines_are_split_and_empty_ones_are_skipped() {
        let (found, end) = all(b"one\n\ntwo\n").await;
        assert_eq!(found, [Ok("one".to_owned()), Ok("two".to_owned())]);
        assert!(matches!(end, Received::End));
    }

    #[tokio::test]
    async fn a_stream_cut_off_in_the_middle_of_an_event_is_broken() {
        let (found, end) = all(b"one\ntw").await;
        assert_eq!(found, [Ok("one".to_owned())]);
        assert!(matches!(end, Received::Broken(_)));
    }

    #[tokio::test]
    async fn an_overlong_line_is_dropped_and_the_next_one_is_not() {
        for length in [MAX_LINE + 1, MAX_LINE + (1 << 20), 3 * MAX_LINE] {
            let mut body = vec![b'x'; length];
            body.extend_from_slice(b"\nnext\n");
            let (found, end) = all(&body).await;
            assert_eq!(found, [Err(InvalidLine), Ok("next".to_owned())], "{length}");
            assert!(matches!(end, Received::End));
        }
        let mebibytes = 8 << 20;
        let mut longest = vec![b'x'; mebibytes];
        longest.push(b'\n');
        assert_eq!(all(&longest).await.0, [Ok("x".repeat(mebibytes))]);
        longest.insert(0, b'x');
        assert_eq!(all(&longest).await.0, [Err(InvalidLine)]);
    }

    #[tokio::test]
    async fn a_line_that_is_not_utf_8_is_dropped_and_the_next_one_is_not() {
        let (found, _) = all(b"\xff\nnext\n").await;
        assert_eq!(found, [Err(InvalidLine), Ok("next".to_owned())]);
    }
}
