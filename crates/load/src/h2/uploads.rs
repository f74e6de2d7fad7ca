//! Request bodies that are not sent completely, because of flow control (RFC 9113, section 5.2).
//!
//! A request is here only until its body is sent, and takes about 40 bytes. Bodies with an open
//! window take turns, one frame at a time, so that all make progress.

use std::collections::{BTreeMap, VecDeque};

use super::frame::{self, FrameHeader, HEADER_BYTES, flag, kind};

/// Initial window of a connection and of its streams in bytes.
const INITIAL_WINDOW: i64 = 65_535;
/// Maximum window in bytes.
const MAX_WINDOW: i64 = 0x7fff_ffff;

/// A window exceeds the maximum.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Overflow;

#[derive(Debug)]
struct Upload {
    sent: usize,
    /// The window of the stream; negative after the server lowered the initial window.
    window: i32,
    /// Whether the stream is in [`Uploads::ready`].
    is_ready: bool,
}

/// All bodies that are not sent completely.
#[derive(Debug)]
pub(super) struct Uploads {
    waiting: BTreeMap<u32, Upload>,
    /// Streams with an open window, in turn. Closed streams may be among them.
    ready: VecDeque<u32>,
    /// The window of the connection.
    window: i64,
    /// The initial window of each stream.
    initial: i64,
}

impl Default for Uploads {
    fn default() -> Self {
        let (waiting, ready) = (BTreeMap::new(), VecDeque::new());
        Self { waiting, ready, window: INITIAL_WINDOW, initial: INITIAL_WINDOW }
    }
}

impl Uploads {
    /// Adds the body of a stream.
    pub(super) fn start(&mut self, stream: u32) {
        let window = self.initial as i32;
        self.waiting.insert(stream, Upload { sent: 0, window, is_ready: window > 0 });
        if window > 0 {
            self.ready.push_back(stream);
        }
    }

    /// Removes the body of a stream. Returns whether a part of it was unsent.
    pub(super) fn end(&mut self, stream: u32) -> bool {
        let was_left = self.waiting.remove(&stream).is_some();
        if self.ready.len() > 2 * self.waiting.len() {
            self.ready.retain(|stream| self.waiting.contains_key(stream));
            self.ready.shrink_to_fit();
        }
        was_left
    }

    /// Removes all bodies.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Writes at most `max` bytes of frames.
    pub(super) fn pump(&mut self, body: &[u8], max: usize, out: &mut Vec<u8>) {
        let end = out.len() + max;
        while self.window > 0
            && out.len() + HEADER_BYTES < end
            && let Some(stream) = self.ready.pop_front()
        {
            let Some(upload) = self.waiting.get_mut(&stream) else { continue };
            upload.is_ready = false;
            let room = end - out.len() - HEADER_BYTES;
            let windows = self.window.min(i64::from(upload.window)).max(0) as usize;
            let rest = &body[upload.sent..];
            let part = &rest[..rest.len().min(room).min(windows).min(frame::MAX_PAYLOAD)];
            if part.is_empty() {
                continue;
            }
            let is_last = part.len() == rest.len();
            let flags = if is_last { flag::END_STREAM } else { 0 };
            FrameHeader { length: part.len(), kind: kind::DATA, flags, stream }.write(out);
            out.extend_from_slice(part);
            self.window -= part.len() as i64;
            upload.window -= part.len() as i32;
            upload.sent += part.len();
            if is_last {
                self.waiting.remove(&stream);
            } else if upload.window > 0 {
                upload.is_ready = true;
                self.ready.push_back(stream);
            }
        }
    }

    /// Widens the window of the connection.
    pub(super) fn widen(&mut self, bytes: u32) -> Result<(), Overflow> {
        self.window += i64::from(bytes);
        if self.window > MAX_WINDOW { Err(Overflow) } else { Ok(()) }
    }

    /// Widens the window of a stream. Does nothing if nothing is left to send on it.
    pub(super) fn widen_stream(&mut self, stream: u32, bytes: u32) -> Result<(), Overflow> {
        match self.waiting.get_mut(&stream) {
            Some(upload) => upload.add(i64::from(bytes), stream, &mut self.ready),
            None => Ok(()),
        }
    }

    /// Sets the initial window of streams, and adjusts the windows of existing ones (RFC 9113,
    /// section 6.9.2).
    pub(super) fn set_initial(&mut self, bytes: u32) -> Result<(), Overflow> {
        let change = i64::from(bytes) - self.initial;
        self.initial = i64::from(bytes);
        if change == 0 {
            return Ok(());
        }
        let ready = &mut self.ready;
        self.waiting.iter_mut().try_for_each(|(stream, upload)| upload.add(change, *stream, ready))
    }
}

impl Upload {
    fn add(&mut self, change: i64, own: u32, ready: &mut VecDeque<u32>) -> Result<(), Overflow> {
        let window = i64::from(self.window) + change;
        if window > MAX_WINDOW {
            return Err(Overflow);
        }
        // Two windows of at most 2^31 - 1 differ by no more than fits in four bytes.
        self.window = window as i32;
        if self.window > 0 && !self.is_ready {
            self.is_ready = true;
            ready.push_back(own);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the frames that are sent: stream, length, whether it is the last.
    fn pumped(uploads: &mut Uploads, body: &[u8], most: usize) -> Vec<(u32, usize, bool)> {
        let mut out = Vec::new();
        uploads.pump(body, most, &mut out);
        assert!(out.len() <= most);
        let (mut rest, mut frames) = (&out[..], Vec::new());
        while let Some((head, after)) = rest.split_first_chunk() {
            let head = FrameHeader::parse(head);
            frames.push((head.stream, head.length, head.has(flag::END_STREAM)));
            rest = &after[head.length..];
        }
        frames
    }

    #[test]
    fn a_short_body_is_sent_immediately() {
        let mut uploads = Uploads::default();
        uploads.start(1);
        uploads.start(3);
        assert_eq!(pumped(&mut uploads, b"body", 1000), [(1, 4, true), (3, 4, true)]);
        assert_eq!(pumped(&mut uploads, b"body", 1000), []);
        assert!(!uploads.end(1));
    }

    #[test]
    fn the_connection_window_bounds_all_streams_together() {
        let mut uploads = Uploads::default();
        let body = vec![0; 40_000];
        uploads.start(1);
        uploads.start(3);
        let sent = pumped(&mut uploads, &body, 1_000_000);
        assert_eq!(sent.iter().map(|frame| frame.1).sum::<usize>(), 65_535);
        assert_eq!(sent[1].0, 3, "they take turns");
        assert_eq!(pumped(&mut uploads, &body, 1_000_000), []);
        uploads.widen(20_000).unwrap();
        let rest = pumped(&mut uploads, &body, 1_000_000);
        assert_eq!(rest.iter().map(|frame| frame.1).sum::<usize>(), 80_000 - 65_535);
        assert_eq!(rest.iter().filter(|frame| frame.2).count(), 2);
    }

    #[test]
    fn a_stream_window_bounds_only_its_own_stream() {
        let mut uploads = Uploads::default();
        uploads.set_initial(10).unwrap();
        uploads.start(1);
        uploads.start(3);
        let body = [0; 15];
        assert_eq!(pumped(&mut uploads, &body, 100), [(1, 10, false), (3, 10, false)]);
        uploads.widen_stream(3, 100).unwrap();
        assert_eq!(pumped(&mut uploads, &body, 100), [(3, 5, true)]);
        assert!(uploads.end(1));
    }

    #[test]
    fn a_window_can_become_negative_and_reopen() {
        let mut uploads = Uploads::default();
        uploads.set_initial(10).unwrap();
        uploads.start(1);
        let body = [0; 30];
        assert_eq!(pumped(&mut uploads, &body, 100), [(1, 10, false)]);
        uploads.set_initial(4).unwrap();
        uploads.widen_stream(1, 6).unwrap();
        assert_eq!(pumped(&mut uploads, &body, 100), [], "0 by now");
        uploads.set_initial(24).unwrap();
        assert_eq!(pumped(&mut uploads, &body, 100), [(1, 20, true)]);
    }

    #[test]
    fn repeated_window_updates_and_unsent_uploads_do_not_fill_the_ready_queue() {
        let mut uploads = Uploads::default();
        for stream in (1..1000).step_by(2) {
            uploads.start(stream);
            uploads.widen_stream(stream, 1).unwrap();
            uploads.widen_stream(stream, 1).unwrap();
        }
        assert_eq!(uploads.ready.len(), 500);
        for stream in (3..1000).step_by(2) {
            assert!(uploads.end(stream));
        }
        assert!(uploads.ready.len() <= 2);
    }

    #[test]
    fn a_window_overflow_is_an_error() {
        let mut uploads = Uploads::default();
        uploads.set_initial(0).unwrap();
        uploads.start(1);
        assert_eq!(uploads.widen_stream(1, 0x7fff_ffff), Ok(()));
        assert_eq!(uploads.widen_stream(1, 1), Err(Overflow));
        assert_eq!(uploads.set_initial(1), Err(Overflow));
        assert_eq!(uploads.widen(0x7fff_ffff), Err(Overflow));
        assert_eq!(uploads.widen_stream(9, 1), Ok(()), "nothing is left to send there");
    }

    #[test]
    fn no_frame_is_sent_if_only_its_header_fits() {
        let mut uploads = Uploads::default();
        uploads.start(1);
        assert_eq!(pumped(&mut uploads, b"body", HEADER_BYTES), []);
        assert_eq!(pumped(&mut uploads, b"body", HEADER_BYTES + 3), [(1, 3, false)]);
        assert_eq!(pumped(&mut uploads, b"body", HEADER_BYTES + 3), [(1, 1, true)]);
    }
}
