//! The effect of each frame from the server (RFC 9113, section 6).

use super::Http2;
use super::frame::{self, FrameHeader, connection_error, flag, kind, protocol_error};
use super::settings::{self, H2Setting};
use crate::failure::{ErrorCode, RequestFailure};
use crate::protocol::Outcomes;

/// The destinations of replies to the server and of outcomes.
pub(super) struct Io<'a> {
    pub(super) out: &'a mut Vec<u8>,
    pub(super) outcomes: &'a mut dyn Outcomes,
}

impl Http2 {
    /// Processes one frame.
    ///
    /// # Errors
    ///
    /// Fails with a connection error. An error of a single request becomes its outcome instead.
    pub(super) fn frame(
        &mut self,
        head: FrameHeader,
        payload: &[u8],
        io: &mut Io<'_>,
    ) -> Result<(), RequestFailure> {
        let awaited = self.block.as_ref().map(|block| block.stream);
        let is_next = head.kind == kind::CONTINUATION && awaited == Some(head.stream);
        if awaited.is_some() && !is_next {
            return Err(protocol_error("another frame within a header block"));
        }
        let is_of_stream = matches!(
            head.kind,
            kind::DATA | kind::HEADERS | kind::PRIORITY | kind::RST_STREAM | kind::CONTINUATION
        );
        let is_of_connection = matches!(head.kind, kind::SETTINGS | kind::PING | kind::GOAWAY);
        if (is_of_stream && head.stream == 0) || (is_of_connection && head.stream != 0) {
            return Err(protocol_error("a frame on a stream that its type does not permit"));
        }
        match head.kind {
            kind::DATA => self.data(head, payload, io),
            kind::HEADERS => self.headers(head, payload, io),
            kind::CONTINUATION => self.continuation(head, payload, io),
            kind::RST_STREAM => self.reset(head, payload, io),
            kind::SETTINGS => self.settings(head, payload, io),
            kind::PUSH_PROMISE => Err(protocol_error("a push, which was disabled")),
            kind::PING => ping(head, payload, io),
            kind::GOAWAY => self.go_away(payload, io),
            kind::WINDOW_UPDATE => self.window_update(head, payload, io),
            // PRIORITY, and frame types of later versions.
            _ => Ok(()),
        }
    }

    fn reset(
        &mut self,
        head: FrameHeader,
        payload: &[u8],
        io: &mut Io<'_>,
    ) -> Result<(), RequestFailure> {
        let code = ErrorCode(u32::from_be_bytes(frame::exactly(payload)?));
        self.not_idle(head.stream)?;
        self.failed(
            head.stream,
            match code {
                ErrorCode::REFUSED_STREAM => RequestFailure::RefusedStream,
                _ => RequestFailure::StreamReset(code),
            },
            io,
        );
        Ok(())
    }

    fn settings(
        &mut self,
        head: FrameHeader,
        payload: &[u8],
        io: &mut Io<'_>,
    ) -> Result<(), RequestFailure> {
        if head.has(flag::ACK) {
            return frame::exactly::<0>(payload).map(|_| ());
        }
        // Without such a setting, there is no limit.
        self.allowed.get_or_insert(u32::MAX);
        for setting in settings::read(payload)? {
            match setting? {
                H2Setting::HeaderTableSize(bytes) => self.request.set_table_size(bytes),
                H2Setting::MaxConcurrentStreams(streams) => self.allowed = Some(streams),
                H2Setting::InitialWindowSize(bytes) => {
                    self.uploads.set_initial(bytes).map_err(|_| too_wide())?;
                }
                H2Setting::Ignored => {}
            }
        }
        frame::write(io.out, kind::SETTINGS, flag::ACK, 0, &[]);
        Ok(())
    }

    fn go_away(&mut self, payload: &[u8], io: &mut Io<'_>) -> Result<(), RequestFailure> {
        let Some(([a, b, c, d, code @ ..], _)) = payload.split_first_chunk::<8>() else {
            return Err(connection_error(ErrorCode::FRAME_SIZE_ERROR, "a truncated GOAWAY"));
        };
        let last = u32::from_be_bytes([*a, *b, *c, *d]) & 0x7fff_ffff;
        let code = ErrorCode(u32::from_be_bytes(*code));
        // The last stream ID may only decrease: outcomes are final.
        let before = self.gone_away.map_or(u32::MAX, |(last, _)| last);
        self.gone_away = Some((last.min(before), code));
        if last < before {
            for stream in self.streams.above(last) {
                self.failed(stream, RequestFailure::NotProcessed(code), io);
            }
        }
        Ok(())
    }

    fn window_update(
        &mut self,
        head: FrameHeader,
        payload: &[u8],
        io: &mut Io<'_>,
    ) -> Result<(), RequestFailure> {
        let bytes = u32::from_be_bytes(frame::exactly(payload)?) & 0x7fff_ffff;
        let nothing = "a window increment of 0";
        if head.stream == 0 {
            if bytes == 0 {
                return Err(protocol_error(nothing));
            }
            return self.uploads.widen(bytes).map_err(|_| too_wide());
        }
        self.not_idle(head.stream)?;
        if bytes == 0 {
            self.malformed(head.stream, nothing, io);
        } else if self.uploads.widen_stream(head.stream, bytes).is_err() {
            self.give_up(head.stream, ErrorCode::FLOW_CONTROL_ERROR, too_wide(), io);
        }
        Ok(())
    }

    /// Checks that a request had this stream ID.
    ///
    /// # Errors
    ///
    /// Fails if no request had it.
    pub(super) fn not_idle(&self, stream: u32) -> Result<(), RequestFailure> {
        match self.streams.is_idle(stream) {
            true => Err(protocol_error("a frame on an idle stream")),
            false => Ok(()),
        }
    }
}

fn too_wide() -> RequestFailure {
    connection_error(ErrorCode::FLOW_CONTROL_ERROR, "a window above the maximum")
}

fn ping(head: FrameHeader, payload: &[u8], io: &mut Io<'_>) -> Result<(), RequestFailure> {
    let payload = frame::exactly::<8>(payload)?;
    if !head.has(flag::ACK) {
        frame::write(io.out, kind::PING, flag::ACK, 0, &payload);
    }
    Ok(())
}
