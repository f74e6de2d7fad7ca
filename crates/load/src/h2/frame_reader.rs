//! Splits received bytes into frames.

use super::frame::{FrameHeader, HEADER_BYTES, MAX_PAYLOAD, connection_error, flag, kind};
use crate::failure::{ErrorCode, OtherProtocol, RequestFailure};

/// Splits received bytes into frames. Complete frames are not copied; of an incomplete one, at most
/// 16 KiB are buffered.
#[derive(Debug, Default)]
pub(super) struct FrameReader {
    /// The received part of a frame.
    partial: Vec<u8>,
    /// Whether `partial` was complete and has been returned.
    is_done: bool,
    /// Whether the server's first frame arrived.
    is_open: bool,
}

impl FrameReader {
    /// Removes the next frame from the front of `bytes`. Returns `None`, and leaves `bytes` empty,
    /// if it is incomplete.
    ///
    /// # Errors
    ///
    /// Fails if a frame is too long, or the bytes are not HTTP/2.
    pub(super) fn next<'a, 'b: 'a>(
        &'a mut self,
        bytes: &mut &'b [u8],
    ) -> Result<Option<(FrameHeader, &'a [u8])>, RequestFailure> {
        if self.is_done {
            *self = Self { is_open: self.is_open, ..Self::default() };
        }
        if self.partial.is_empty()
            && let Some((head, rest)) = bytes.split_first_chunk()
        {
            let head = self.check(head)?;
            if let Some((payload, rest)) = rest.split_at_checked(head.length) {
                *bytes = rest;
                return Ok(Some((head, payload)));
            }
        }
        self.put_together(bytes)
    }

    fn put_together(
        &mut self,
        bytes: &mut &[u8],
    ) -> Result<Option<(FrameHeader, &[u8])>, RequestFailure> {
        if !self.fill(HEADER_BYTES, bytes) {
            // A TLS alert is shorter than a frame header.
            return match (self.is_open, &self.partial[..]) {
                (false, [0x15, 0x03, ..]) => Err(RequestFailure::NotHttp2(OtherProtocol::Tls)),
                _ => Ok(None),
            };
        }
        let Some((head, _)) = self.partial.split_first_chunk() else { return Ok(None) };
        let head = self.check(head)?;
        self.partial.reserve_exact(head.length);
        self.is_done = self.fill(HEADER_BYTES + head.length, bytes);
        Ok(self.is_done.then(|| (head, &self.partial[HEADER_BYTES..])))
    }

    /// Buffers bytes until there are `length` of one frame. Returns whether there are.
    fn fill(&mut self, length: usize, bytes: &mut &[u8]) -> bool {
        let wanted = length.saturating_sub(self.partial.len());
        let (part, rest) = bytes.split_at(wanted.min(bytes.len()));
        self.partial.extend_from_slice(part);
        *bytes = rest;
        self.partial.len() >= length
    }

    fn check(&self, bytes: &[u8; HEADER_BYTES]) -> Result<FrameHeader, RequestFailure> {
        let head = FrameHeader::parse(bytes);
        if !self.is_open {
            return first(bytes, head);
        }
        if head.length > MAX_PAYLOAD {
            return Err(connection_error(
                ErrorCode::FRAME_SIZE_ERROR,
                "a frame longer than the limit",
            ));
        }
        Ok(head)
    }

    /// Notes that the first frame was processed.
    pub(super) fn opened(&mut self) {
        self.is_open = true;
    }
}

/// Checks that the first frame is SETTINGS, as HTTP/2 requires of a server (RFC 9113, section 3.4).
fn first(bytes: &[u8; HEADER_BYTES], head: FrameHeader) -> Result<FrameHeader, RequestFailure> {
    let is_settings = head.kind == kind::SETTINGS && head.stream == 0 && !head.has(flag::ACK);
    if is_settings && head.length <= MAX_PAYLOAD {
        return Ok(head);
    }
    Err(RequestFailure::NotHttp2(match bytes {
        b"HTTP/1.1 " => OtherProtocol::Http11,
        b"HTTP/1.0 " => OtherProtocol::Http10,
        [0x15, 0x03, ..] => OtherProtocol::Tls,
        _ => OtherProtocol::Unknown,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: &[u8] = b"\0\0\0\x04\0\0\0\0\0";
    const PING: &[u8] = b"\0\0\x08\x06\0\0\0\0\0pingpong";

    fn frames(chunks: &[&[u8]]) -> Result<Vec<(u8, Vec<u8>)>, RequestFailure> {
        let mut input = FrameReader::default();
        let mut frames = Vec::new();
        for chunk in chunks {
            let mut bytes = *chunk;
            while let Some((head, payload)) = input.next(&mut bytes)? {
                frames.push((head.kind, payload.to_vec()));
                input.opened();
            }
            assert!(bytes.is_empty());
        }
        Ok(frames)
    }

    #[test]
    fn frames_are_assembled_regardless_of_chunk_boundaries() {
        let stream = [SETTINGS, PING, PING].concat();
        let whole = frames(&[&stream]).unwrap();
        assert_eq!(whole.len(), 3);
        for at in 0..stream.len() {
            let (a, b) = stream.split_at(at);
            assert_eq!(frames(&[a, b]).unwrap(), whole);
        }
        let bytes: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(frames(&bytes).unwrap(), whole);
    }

    #[test]
    fn another_protocol_is_an_error_that_names_it() {
        let failure = |bytes: &[u8]| frames(&[bytes]).unwrap_err();
        assert_eq!(
            failure(b"HTTP/1.1 400 Bad Request\r\n"),
            RequestFailure::NotHttp2(OtherProtocol::Http11)
        );
        assert_eq!(
            failure(b"\x15\x03\x01\0\x02\x02\x46"),
            RequestFailure::NotHttp2(OtherProtocol::Tls)
        );
        assert_eq!(
            failure(b"SSH-2.0-OpenSSH_9.2\r\n"),
            RequestFailure::NotHttp2(OtherProtocol::Unknown)
        );
        assert_eq!(failure(PING), RequestFailure::NotHttp2(OtherProtocol::Unknown));
        assert_eq!(
            failure(b"HTTP/1.1 200 OK").to_string(),
            "the server does not speak HTTP/2 here: it responded with HTTP/1.1"
        );
    }

    #[test]
    fn an_oversized_frame_is_rejected_from_its_header() {
        let long = [SETTINGS, b"\0\x40\x01\0\0\0\0\0\x01"].concat();
        let failure = frames(&[&long]).unwrap_err();
        assert!(matches!(failure, RequestFailure::Http2 { code: ErrorCode::FRAME_SIZE_ERROR, .. }));
    }
}
