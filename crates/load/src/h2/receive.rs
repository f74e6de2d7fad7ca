//! What each frame of the server does (RFC 9113, section 6).

use super::Http2;
use super::frame::{self, Head, broken, flag, kind};
use super::hpack::Headers;
use super::settings::{self, CONNECTION_WINDOW, STREAM_WINDOW, Setting};
use super::streams::{Length, Stage};
use crate::failure::{ErrorCode, Failure};
use crate::protocol::{Body, Outcomes};

/// Longer headers than this are a flood: no answer needs them, and they would have to be kept.
const LONGEST_BLOCK: usize = 1 << 18;
/// So are headers in more frames than this, however little is in them.
const MOST_FRAMES: u32 = 64;

/// Where answers to the server, and outcomes, go.
pub(super) struct Io<'a> {
    pub(super) out: &'a mut Vec<u8>,
    pub(super) told: &'a mut dyn Outcomes,
}

/// Headers of which more frames are to come.
#[derive(Debug)]
pub(super) struct HeaderBlock {
    stream: u32,
    ends_stream: bool,
    frames: u32,
    bytes: Vec<u8>,
}

const fn protocol_error(what: &'static str) -> Failure {
    broken(ErrorCode::PROTOCOL_ERROR, what)
}

impl Http2 {
    /// Takes one frame.
    ///
    /// # Errors
    ///
    /// What ends the connection. What ends a single request is told instead.
    pub(super) fn frame(
        &mut self,
        head: Head,
        payload: &[u8],
        io: &mut Io<'_>,
    ) -> Result<(), Failure> {
        let awaited = self.block.as_ref().map(|block| block.stream);
        let is_next = head.kind == kind::CONTINUATION && awaited == Some(head.stream);
        if awaited.is_some() && !is_next {
            return Err(protocol_error("another frame in the middle of headers"));
        }
        let is_of_stream = matches!(
            head.kind,
            kind::DATA | kind::HEADERS | kind::PRIORITY | kind::RST_STREAM | kind::CONTINUATION
        );
        let is_of_connection = matches!(head.kind, kind::SETTINGS | kind::PING | kind::GOAWAY);
        if (is_of_stream && head.stream == 0) || (is_of_connection && head.stream != 0) {
            return Err(protocol_error("a frame on a stream where its kind cannot be"));
        }
        match head.kind {
            kind::DATA => self.data(head, payload, io),
            kind::HEADERS => self.headers(head, payload, io),
            kind::CONTINUATION => self.continuation(head, payload, io),
            kind::RST_STREAM => self.reset(head, payload, io),
            kind::SETTINGS => self.settings(head, payload, io),
            kind::PUSH_PROMISE => Err(protocol_error("a push, which we had forbidden")),
            kind::PING => ping(head, payload, io),
            kind::GOAWAY => self.go_away(payload, io),
            kind::WINDOW_UPDATE => self.window_update(head, payload, io),
            // PRIORITY, and what later versions may bring.
            _ => Ok(()),
        }
    }

    fn data(&mut self, head: Head, payload: &[u8], io: &mut Io<'_>) -> Result<(), Failure> {
        // Whatever becomes of it, and with its padding, it was counted by the server.
        let consumed = payload.len() as u32;
        self.unreturned += consumed;
        if self.unreturned >= CONNECTION_WINDOW / 2 {
            frame::window_update(io.out, 0, std::mem::take(&mut self.unreturned));
        }
        let body = frame::content(head, payload)?;
        self.not_idle(head.stream)?;
        let Some(slot) = self.streams.get(head.stream) else { return Ok(()) };
        let ends_stream = head.has(flag::END_STREAM);
        match slot.stage {
            Stage::Over => {}
            Stage::Waiting => self.malformed(head.stream, "a body before its headers", io),
            Stage::Headed { status, length } if ends_stream => {
                self.answered(head.stream, status, length.get(), Body::Whole(body), io);
            }
            Stage::Headed { status, length } => {
                slot.stage = Stage::InPieces;
                self.pieces.begin(head.stream, status, length.get());
                self.piece(head.stream, body, consumed, io);
            }
            Stage::InPieces => {
                self.piece(head.stream, body, consumed, io);
                if ends_stream {
                    self.last_piece(head.stream, io);
                }
            }
        }
        Ok(())
    }

    /// A piece of a body that may go on.
    fn piece(&mut self, stream: u32, body: &[u8], consumed: u32, io: &mut Io<'_>) {
        let Some(answer) = self.pieces.add(stream, body) else { return };
        if answer.length.is_some_and(|length| answer.body().bytes() > length) {
            self.give_up(stream, ErrorCode::PROTOCOL_ERROR, Failure::CutShort, io);
        } else if let Some(bytes) = answer.consumed(consumed, STREAM_WINDOW / 2) {
            frame::window_update(io.out, stream, bytes);
        }
    }

    fn last_piece(&mut self, stream: u32, io: &mut Io<'_>) {
        if let Some(answer) = self.pieces.end(stream) {
            self.answered(stream, answer.status, answer.length, answer.body(), io);
        }
    }

    fn headers(&mut self, head: Head, payload: &[u8], io: &mut Io<'_>) -> Result<(), Failure> {
        self.not_idle(head.stream)?;
        let bytes = frame::content(head, payload)?;
        let ends_stream = head.has(flag::END_STREAM);
        if head.has(flag::END_HEADERS) {
            return self.whole_headers(head.stream, ends_stream, bytes, io);
        }
        let (stream, bytes) = (head.stream, bytes.to_vec());
        self.block = Some(HeaderBlock { stream, ends_stream, frames: 1, bytes });
        Ok(())
    }

    fn continuation(&mut self, head: Head, payload: &[u8], io: &mut Io<'_>) -> Result<(), Failure> {
        let Some(mut block) = self.block.take() else {
            return Err(protocol_error("headers that go on without a beginning"));
        };
        block.frames += 1;
        if block.frames > MOST_FRAMES || block.bytes.len() + payload.len() > LONGEST_BLOCK {
            return Err(broken(ErrorCode::ENHANCE_YOUR_CALM, "a flood of headers"));
        }
        block.bytes.extend_from_slice(payload);
        if head.has(flag::END_HEADERS) {
            return self.whole_headers(block.stream, block.ends_stream, &block.bytes, io);
        }
        self.block = Some(block);
        Ok(())
    }

    fn whole_headers(
        &mut self,
        stream: u32,
        ends_stream: bool,
        block: &[u8],
        io: &mut Io<'_>,
    ) -> Result<(), Failure> {
        // Also where nobody waits for them: later ones refer to what they put into the table.
        let headers = self
            .decoder
            .decode(block)
            .map_err(|_| broken(ErrorCode::COMPRESSION_ERROR, "headers that cannot be read"))?;
        match self.streams.get(stream).map(|slot| slot.stage) {
            None | Some(Stage::Over) => {}
            Some(Stage::Waiting) => self.first_headers(stream, headers, ends_stream, io),
            Some(_) if headers.malformed.is_some() || headers.status.is_some() => {
                self.malformed(stream, "trailers with what only headers have", io);
            }
            Some(_) if !ends_stream => {
                self.malformed(stream, "headers in the middle of a body", io);
            }
            Some(Stage::Headed { status, length }) => {
                self.answered(stream, status, length.get(), Body::Whole(&[]), io);
            }
            Some(Stage::InPieces) => self.last_piece(stream, io),
        }
        Ok(())
    }

    fn first_headers(&mut self, stream: u32, headers: Headers, ends_stream: bool, io: &mut Io<'_>) {
        let status = match (headers.malformed, headers.status) {
            (Some(what), _) => return self.malformed(stream, what, io),
            (None, None) => return self.malformed(stream, "an answer without a :status", io),
            (None, Some(100..=199)) if ends_stream => {
                return self.malformed(stream, "an interim answer that is the last", io);
            }
            (None, Some(100..=199)) => return,
            (None, Some(status)) => status,
        };
        let has_no_body = self.request.is_head || status == 204 || status == 304;
        let length = headers.length.filter(|_| !has_no_body);
        if ends_stream {
            return self.answered(stream, status, length, Body::Whole(&[]), io);
        }
        let Some(slot) = self.streams.get(stream) else { return };
        if let Some(length) = length.map_or(Some(Length::UNKNOWN), Length::of) {
            slot.stage = Stage::Headed { status, length };
        } else {
            slot.stage = Stage::InPieces;
            self.pieces.begin(stream, status, length);
        }
    }

    fn reset(&mut self, head: Head, payload: &[u8], io: &mut Io<'_>) -> Result<(), Failure> {
        let code = ErrorCode(u32::from_be_bytes(frame::exactly(payload)?));
        self.not_idle(head.stream)?;
        self.failed(
            head.stream,
            match code {
                ErrorCode::REFUSED_STREAM => Failure::RefusedStream,
                _ => Failure::StreamReset(code),
            },
            io,
        );
        Ok(())
    }

    fn settings(&mut self, head: Head, payload: &[u8], io: &mut Io<'_>) -> Result<(), Failure> {
        if head.has(flag::ACK) {
            return frame::exactly::<0>(payload).map(|_| ());
        }
        // Without a word on it, any number.
        self.allowed.get_or_insert(u32::MAX);
        for setting in settings::read(payload)? {
            match setting? {
                Setting::HeaderTableSize(bytes) => self.request.set_table_size(bytes),
                Setting::MaxConcurrentStreams(streams) => self.allowed = Some(streams),
                Setting::InitialWindowSize(bytes) => {
                    self.uploads.set_initial(bytes).map_err(|_| too_wide())?;
                }
                Setting::OfNoMatter => {}
            }
        }
        frame::write(io.out, kind::SETTINGS, flag::ACK, 0, &[]);
        Ok(())
    }

    fn go_away(&mut self, payload: &[u8], io: &mut Io<'_>) -> Result<(), Failure> {
        let Some(([a, b, c, d, code @ ..], _)) = payload.split_first_chunk::<8>() else {
            return Err(broken(ErrorCode::FRAME_SIZE_ERROR, "a GOAWAY that is cut short"));
        };
        let last = u32::from_be_bytes([*a, *b, *c, *d]) & 0x7fff_ffff;
        let code = ErrorCode(u32::from_be_bytes(*code));
        // The last one may only become lower; what was told is not taken back.
        let before = self.gone_away.map_or(u32::MAX, |(last, _)| last);
        self.gone_away = Some((last.min(before), code));
        if last < before {
            for stream in self.streams.above(last) {
                self.failed(stream, Failure::NotProcessed(code), io);
            }
        }
        Ok(())
    }

    fn window_update(
        &mut self,
        head: Head,
        payload: &[u8],
        io: &mut Io<'_>,
    ) -> Result<(), Failure> {
        let bytes = u32::from_be_bytes(frame::exactly(payload)?) & 0x7fff_ffff;
        let nothing = "a window that becomes wider by nothing";
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

    /// # Errors
    ///
    /// When no request had this number.
    fn not_idle(&self, stream: u32) -> Result<(), Failure> {
        match self.streams.is_idle(stream) {
            true => Err(protocol_error("a frame on a stream that was never begun")),
            false => Ok(()),
        }
    }

    /// A stream ended in order. Whether its answer is whole shows its length.
    fn answered(
        &mut self,
        stream: u32,
        status: u16,
        length: Option<u64>,
        body: Body<'_>,
        io: &mut Io<'_>,
    ) {
        if self.uploads.end(stream) {
            // The server answered without the rest, and does not want it.
            frame::reset(io.out, stream, ErrorCode::CANCEL);
        }
        let Some(slot) = self.streams.end(stream) else { return };
        match length {
            Some(length) if length != body.bytes() => {
                io.told.failed(slot.began, Failure::CutShort);
            }
            _ => io.told.answered(slot.began, status, body),
        }
    }

    /// An answer broke the rules: the request failed, and the rest goes on.
    fn malformed(&mut self, stream: u32, what: &'static str, io: &mut Io<'_>) {
        self.give_up(stream, ErrorCode::PROTOCOL_ERROR, protocol_error(what), io);
    }

    /// We end a stream before the server does.
    pub(super) fn give_up(
        &mut self,
        stream: u32,
        code: ErrorCode,
        failure: Failure,
        io: &mut Io<'_>,
    ) {
        if self.failed(stream, failure, io) {
            frame::reset(io.out, stream, code);
        }
    }

    /// A request failed. Whether it was in flight.
    fn failed(&mut self, stream: u32, failure: Failure, io: &mut Io<'_>) -> bool {
        let Some(slot) = self.streams.end(stream) else { return false };
        if slot.stage == Stage::InPieces {
            self.pieces.end(stream);
        }
        self.uploads.end(stream);
        io.told.failed(slot.began, failure);
        true
    }
}

fn too_wide() -> Failure {
    broken(ErrorCode::FLOW_CONTROL_ERROR, "a window larger than windows may be")
}

fn ping(head: Head, payload: &[u8], io: &mut Io<'_>) -> Result<(), Failure> {
    let payload = frame::exactly::<8>(payload)?;
    if !head.has(flag::ACK) {
        frame::write(io.out, kind::PING, flag::ACK, 0, &payload);
    }
    Ok(())
}
