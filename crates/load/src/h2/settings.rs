//! SETTINGS (RFC 9113, section 6.5): the client's, and those of the server.

use super::frame::{connection_error, kind, write};
use crate::failure::{ErrorCode, RequestFailure};

/// Window of one stream in bytes, as large as that of common clients. Received bytes are not kept,
/// so that a window costs no memory here; but a server may buffer as much.
pub(super) const STREAM_WINDOW: u32 = 2 << 20;
/// Window of the connection in bytes.
pub(super) const CONNECTION_WINDOW: u32 = 16 << 20;
/// Initial window of a connection in bytes, before the first WINDOW_UPDATE.
pub(super) const INITIAL_WINDOW: u32 = 65_535;

const HEADER_TABLE_SIZE: u16 = 1;
const ENABLE_PUSH: u16 = 2;
const MAX_CONCURRENT_STREAMS: u16 = 3;
const INITIAL_WINDOW_SIZE: u16 = 4;
const MAX_FRAME_SIZE: u16 = 5;

/// A setting of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum H2Setting {
    /// The size in bytes of its dynamic table for the client's headers.
    HeaderTableSize(u32),
    /// The maximum number of concurrent streams.
    MaxConcurrentStreams(u32),
    /// The initial window of a stream for request bodies.
    InitialWindowSize(u32),
    /// A setting without effect here: the client's frames never exceed the minimum that every
    /// server must accept.
    Ignored,
}

/// Writes the client's settings.
pub(super) fn write_ours(out: &mut Vec<u8>) {
    let mut payload = Vec::with_capacity(12);
    for (setting, value) in [(ENABLE_PUSH, 0), (INITIAL_WINDOW_SIZE, STREAM_WINDOW)] {
        payload.extend_from_slice(&setting.to_be_bytes());
        payload.extend_from_slice(&u32::to_be_bytes(value));
    }
    write(out, kind::SETTINGS, 0, 0, &payload);
}

/// Parses the server's settings, in order.
///
/// # Errors
///
/// Fails if the payload is truncated or a value is invalid. Settings before an invalid one are
/// returned.
pub(super) fn read(
    payload: &[u8],
) -> Result<impl Iterator<Item = Result<H2Setting, RequestFailure>> + '_, RequestFailure> {
    let (settings, rest) = payload.as_chunks::<6>();
    if !rest.is_empty() {
        return Err(connection_error(ErrorCode::FRAME_SIZE_ERROR, "truncated SETTINGS"));
    }
    Ok(settings.iter().map(|[a, b, value @ ..]| {
        setting(u16::from_be_bytes([*a, *b]), u32::from_be_bytes(*value))
    }))
}

fn setting(identifier: u16, value: u32) -> Result<H2Setting, RequestFailure> {
    match (identifier, value) {
        (HEADER_TABLE_SIZE, _) => Ok(H2Setting::HeaderTableSize(value)),
        (ENABLE_PUSH, 1..) => Err(connection_error(
            ErrorCode::PROTOCOL_ERROR,
            "a server that enables pushes by the client",
        )),
        (MAX_CONCURRENT_STREAMS, _) => Ok(H2Setting::MaxConcurrentStreams(value)),
        (INITIAL_WINDOW_SIZE, 0x8000_0000..) => {
            Err(connection_error(ErrorCode::FLOW_CONTROL_ERROR, "a window above the maximum"))
        }
        (INITIAL_WINDOW_SIZE, _) => Ok(H2Setting::InitialWindowSize(value)),
        (MAX_FRAME_SIZE, ..0x4000 | 0x0100_0000..) => {
            Err(connection_error(ErrorCode::PROTOCOL_ERROR, "an invalid maximum frame size"))
        }
        _ => Ok(H2Setting::Ignored),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(payload: &[u8]) -> Result<Vec<H2Setting>, RequestFailure> {
        read(payload)?.collect()
    }

    #[test]
    fn settings_are_parsed_in_order_and_unknown_ones_are_ignored() {
        let payload = b"\0\x03\0\0\0\x64\0\x99\0\0\0\x01\0\x04\0\x01\0\0\0\x01\0\0\0\0";
        assert_eq!(
            all(payload).unwrap(),
            [
                H2Setting::MaxConcurrentStreams(100),
                H2Setting::Ignored,
                H2Setting::InitialWindowSize(65_536),
                H2Setting::HeaderTableSize(0),
            ]
        );
    }

    #[test]
    fn invalid_setting_values_are_errors() {
        let code = |payload: &[u8]| match all(payload) {
            Err(RequestFailure::Http2 { code, .. }) => code,
            other => panic!("{other:?}"),
        };
        assert_eq!(code(b"\0\x03\0\0\0"), ErrorCode::FRAME_SIZE_ERROR);
        assert_eq!(code(b"\0\x02\0\0\0\x01"), ErrorCode::PROTOCOL_ERROR);
        assert_eq!(code(b"\0\x04\x80\0\0\0"), ErrorCode::FLOW_CONTROL_ERROR);
        assert_eq!(code(b"\0\x05\0\0\x3f\xff"), ErrorCode::PROTOCOL_ERROR);
        assert_eq!(code(b"\0\x05\x01\0\0\0"), ErrorCode::PROTOCOL_ERROR);
    }

    #[test]
    fn our_settings_disable_server_push() {
        let mut out = Vec::new();
        write_ours(&mut out);
        assert_eq!(out, b"\0\0\x0c\x04\0\0\0\0\0\0\x02\0\0\0\0\0\x04\0\x20\0\0");
    }
}
