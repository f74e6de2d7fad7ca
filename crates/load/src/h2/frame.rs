//! Reads and writes frames of HTTP/2 (RFC 9113, sections 4 and 6).

use crate::failure::{ErrorCode, RequestFailure};

/// The connection preface of a client (section 3.4), which precedes its SETTINGS.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Length of a frame header in bytes.
pub(super) const HEADER_BYTES: usize = 9;
/// Maximum length of a payload in bytes, unless the receiver permits more. This client does not.
pub(super) const MAX_PAYLOAD: usize = 16_384;

/// Frame types.
pub(super) mod kind {
    pub(in crate::h2) const DATA: u8 = 0;
    pub(in crate::h2) const HEADERS: u8 = 1;
    pub(in crate::h2) const PRIORITY: u8 = 2;
    pub(in crate::h2) const RST_STREAM: u8 = 3;
    pub(in crate::h2) const SETTINGS: u8 = 4;
    pub(in crate::h2) const PUSH_PROMISE: u8 = 5;
    pub(in crate::h2) const PING: u8 = 6;
    pub(in crate::h2) const GOAWAY: u8 = 7;
    pub(in crate::h2) const WINDOW_UPDATE: u8 = 8;
    pub(in crate::h2) const CONTINUATION: u8 = 9;
}

/// Frame flags.
pub(super) mod flag {
    pub(in crate::h2) const END_STREAM: u8 = 0x1;
    pub(in crate::h2) const ACK: u8 = 0x1;
    pub(in crate::h2) const END_HEADERS: u8 = 0x4;
    pub(in crate::h2) const PADDED: u8 = 0x8;
    pub(in crate::h2) const PRIORITY: u8 = 0x20;
}

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameHeader {
    pub(super) length: usize,
    pub(super) kind: u8,
    pub(super) flags: u8,
    /// The stream, or 0 for the connection.
    pub(super) stream: u32,
}

impl FrameHeader {
    /// Parses a header. The highest bit of the stream ID is reserved.
    pub(super) fn parse(bytes: &[u8; HEADER_BYTES]) -> Self {
        let [a, b, c, kind, flags, stream @ ..] = *bytes;
        Self {
            length: u32::from_be_bytes([0, a, b, c]) as usize,
            kind,
            flags,
            stream: u32::from_be_bytes(stream) & 0x7fff_ffff,
        }
    }

    /// Writes the header.
    pub(super) fn write(self, out: &mut Vec<u8>) {
        let [_, a, b, c] = (self.length as u32).to_be_bytes();
        let [d, e, f, g] = self.stream.to_be_bytes();
        out.extend_from_slice(&[a, b, c, self.kind, self.flags, d, e, f, g]);
    }

    /// Returns whether a flag is set.
    pub(super) fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Returns a payload without its padding, and without the priority that HEADERS may start with.
///
/// # Errors
///
/// Fails if the padding is longer than the payload.
pub(super) fn content(head: FrameHeader, payload: &[u8]) -> Result<&[u8], RequestFailure> {
    let too_short =
        || connection_error(ErrorCode::FRAME_SIZE_ERROR, "a frame too short for its flags");
    let (padding, mut content) = match payload {
        [padding, rest @ ..] if head.has(flag::PADDED) => (usize::from(*padding), rest),
        _ if head.has(flag::PADDED) => return Err(too_short()),
        _ => (0, payload),
    };
    if head.kind == kind::HEADERS && head.has(flag::PRIORITY) {
        content = content.get(5..).ok_or_else(too_short)?;
    }
    let end = content.len().checked_sub(padding);
    let end = end.ok_or(connection_error(
        ErrorCode::PROTOCOL_ERROR,
        "a frame with more padding than payload",
    ))?;
    Ok(&content[..end])
}

/// Returns the payload of a frame of fixed length.
///
/// # Errors
///
/// Fails if it has another length.
pub(super) fn exactly<const N: usize>(payload: &[u8]) -> Result<[u8; N], RequestFailure> {
    let wrong =
        connection_error(ErrorCode::FRAME_SIZE_ERROR, "a frame of an invalid length for its type");
    payload.try_into().map_err(|_| wrong)
}

/// Returns the failure of all requests in flight after a connection error (section 5.4.1).
pub(super) const fn connection_error(code: ErrorCode, what: &'static str) -> RequestFailure {
    RequestFailure::Http2 { code, what }
}

/// Returns a connection error with the code `PROTOCOL_ERROR`.
pub(super) const fn protocol_error(what: &'static str) -> RequestFailure {
    connection_error(ErrorCode::PROTOCOL_ERROR, what)
}

/// Writes a frame.
pub(super) fn write(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    FrameHeader { length: payload.len(), kind, flags, stream }.write(out);
    out.extend_from_slice(payload);
}

/// Resets a stream.
pub(super) fn reset(out: &mut Vec<u8>, stream: u32, code: ErrorCode) {
    write(out, kind::RST_STREAM, 0, stream, &code.0.to_be_bytes());
}

/// Permits the server to send `bytes` more on a stream, or, with stream 0, on the connection.
pub(super) fn window_update(out: &mut Vec<u8>, stream: u32, bytes: u32) {
    write(out, kind::WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes());
}

/// Ends the connection. The server starts no streams, so the last one is 0.
pub(super) fn go_away(out: &mut Vec<u8>, code: ErrorCode) {
    let mut payload = [0; 8];
    payload[4..].copy_from_slice(&code.0.to_be_bytes());
    write(out, kind::GOAWAY, 0, 0, &payload);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_header_round_trips_without_the_reserved_bit() {
        let head =
            FrameHeader { length: 0x012345, kind: kind::DATA, flags: 9, stream: 0x7fff_ffff };
        let mut out = Vec::new();
        head.write(&mut out);
        assert_eq!(out, [0x01, 0x23, 0x45, 0, 9, 0x7f, 0xff, 0xff, 0xff]);
        out[5] = 0xff;
        assert_eq!(FrameHeader::parse(&out.try_into().unwrap()), head);
    }

    #[test]
    fn padding_and_priority_are_stripped() {
        let head = |kind, flags| FrameHeader { length: 0, kind, flags, stream: 1 };
        let padded = head(kind::DATA, flag::PADDED);
        assert_eq!(content(padded, b"\x02body\0\0").unwrap(), b"body");
        assert_eq!(content(padded, b"\x00").unwrap(), b"");
        let both = head(kind::HEADERS, flag::PADDED | flag::PRIORITY);
        assert_eq!(content(both, b"\x01prioBlock\0").unwrap(), b"lock");
    }

    #[test]
    fn a_frame_with_more_padding_than_payload_is_an_error() {
        let head = FrameHeader { length: 0, kind: kind::HEADERS, flags: flag::PADDED, stream: 1 };
        let code = |payload| match content(head, payload) {
            Err(RequestFailure::Http2 { code, .. }) => code,
            other => panic!("{other:?}"),
        };
        assert_eq!(code(b"\x05abcd"), ErrorCode::PROTOCOL_ERROR);
        assert_eq!(code(b""), ErrorCode::FRAME_SIZE_ERROR);
    }
}
