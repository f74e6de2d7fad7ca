//! Assembles responses from their frames, and reports the outcomes of requests (RFC 9113, section
//! 8.1).

use super::Http2;
use super::frame::{self, FrameHeader, connection_error, flag, protocol_error};
use super::hpack::Headers;
use super::receive::Io;
use super::settings::{CONNECTION_WINDOW, STREAM_WINDOW};
use super::streams::{BodyLength, StreamStage};
use crate::failure::{ErrorCode, RequestFailure};
use crate::protocol::Body;

/// Maximum length of a header block in bytes. A longer one is an attack: no response needs it, and
/// it would be buffered.
const MAX_HEADER_BLOCK_BYTES: usize = 1 << 18;
/// Maximum number of frames of a header block, even if they are short.
const MAX_HEADER_FRAMES: u32 = 64;

/// An incomplete header block, which CONTINUATION frames continue.
#[derive(Debug)]
pub(super) struct HeaderBlock {
    pub(super) stream: u32,
    ends_stream: bool,
    frames: u32,
    bytes: Vec<u8>,
}

impl Http2 {
    pub(super) fn data(
        &mut self,
        head: FrameHeader,
        payload: &[u8],
        io: &mut Io<'_>,
    ) -> Result<(), RequestFailure> {
        // The server counts the whole payload, including padding, even if the stream is closed.
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
            StreamStage::Closed => {}
            StreamStage::Waiting => self.malformed(head.stream, "a body before its headers", io),
            StreamStage::HeadersReceived { status, length } if ends_stream => {
                self.answered(head.stream, status, length.get(), Body::Whole(body), io);
            }
            StreamStage::HeadersReceived { status, length } => {
                slot.stage = StreamStage::PartialBody;
                self.partial.start(head.stream, status, length.get());
                self.body_part(head.stream, body, consumed, io);
            }
            StreamStage::PartialBody => {
                self.body_part(head.stream, body, consumed, io);
                if ends_stream {
                    self.finish_partial(head.stream, io);
                }
            }
        }
        Ok(())
    }

    /// Handles a part of a body that may have more.
    fn body_part(&mut self, stream: u32, body: &[u8], consumed: u32, io: &mut Io<'_>) {
        let Some(answer) = self.partial.add(stream, body) else { return };
        if answer.length.is_some_and(|length| answer.body().bytes() > length) {
            self.give_up(stream, ErrorCode::PROTOCOL_ERROR, RequestFailure::CutShort, io);
        } else if let Some(bytes) = answer.consumed(consumed, STREAM_WINDOW / 2) {
            frame::window_update(io.out, stream, bytes);
        }
    }

    fn finish_partial(&mut self, stream: u32, io: &mut Io<'_>) {
        if let Some(answer) = self.partial.end(stream) {
            self.answered(stream, answer.status, answer.length, answer.body(), io);
        }
    }

    pub(super) fn headers(
        &mut self,
        head: FrameHeader,
        payload: &[u8],
        io: &mut Io<'_>,
    ) -> Result<(), RequestFailure> {
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

    pub(super) fn continuation(
        &mut self,
        head: FrameHeader,
        payload: &[u8],
        io: &mut Io<'_>,
    ) -> Result<(), RequestFailure> {
        let Some(mut block) = self.block.take() else {
            return Err(protocol_error("a CONTINUATION without a header block"));
        };
        block.frames += 1;
        if block.frames > MAX_HEADER_FRAMES
            || block.bytes.len() + payload.len() > MAX_HEADER_BLOCK_BYTES
        {
            return Err(connection_error(ErrorCode::ENHANCE_YOUR_CALM, "too many headers"));
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
    ) -> Result<(), RequestFailure> {
        // Also for closed streams: later blocks refer to the table entries of this one.
        let headers = self
            .decoder
            .decode(block)
            .map_err(|_| connection_error(ErrorCode::COMPRESSION_ERROR, "malformed headers"))?;
        match self.streams.get(stream).map(|slot| slot.stage) {
            None | Some(StreamStage::Closed) => {}
            Some(StreamStage::Waiting) => self.first_headers(stream, headers, ends_stream, io),
            Some(_) if headers.malformed.is_some() || headers.status.is_some() => {
                self.malformed(stream, "trailers with fields that only headers may have", io);
            }
            Some(_) if !ends_stream => {
                self.malformed(stream, "headers in the middle of a body", io);
            }
            Some(StreamStage::HeadersReceived { status, length }) => {
                self.answered(stream, status, length.get(), Body::Whole(&[]), io);
            }
            Some(StreamStage::PartialBody) => self.finish_partial(stream, io),
        }
        Ok(())
    }

    fn first_headers(&mut self, stream: u32, headers: Headers, ends_stream: bool, io: &mut Io<'_>) {
        let status = match (headers.malformed, headers.status) {
            (Some(what), _) => return self.malformed(stream, what, io),
            (None, None) => return self.malformed(stream, "a response without a :status", io),
            (None, Some(100..=199)) if ends_stream => {
                return self.malformed(stream, "an interim response that ends the stream", io);
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
        if let Some(length) = length.map_or(Some(BodyLength::UNKNOWN), BodyLength::new) {
            slot.stage = StreamStage::HeadersReceived { status, length };
        } else {
            slot.stage = StreamStage::PartialBody;
            self.partial.start(stream, status, length);
        }
    }

    /// Handles a stream that ended in good order. The response is complete if its length is right.
    fn answered(
        &mut self,
        stream: u32,
        status: u16,
        length: Option<u64>,
        body: Body<'_>,
        io: &mut Io<'_>,
    ) {
        if self.uploads.end(stream) {
            // The server answered without the rest of the body, and does not need it.
            frame::reset(io.out, stream, ErrorCode::CANCEL);
        }
        let Some(slot) = self.streams.end(stream) else { return };
        match length {
            Some(length) if length != body.bytes() => {
                io.outcomes.failed(slot.started, RequestFailure::CutShort);
            }
            _ => io.outcomes.answered(slot.started, status, body),
        }
    }

    /// Fails a request because its response is malformed. The connection continues.
    pub(super) fn malformed(&mut self, stream: u32, what: &'static str, io: &mut Io<'_>) {
        self.give_up(stream, ErrorCode::PROTOCOL_ERROR, protocol_error(what), io);
    }

    /// Resets a stream, and fails its request.
    pub(super) fn give_up(
        &mut self,
        stream: u32,
        code: ErrorCode,
        failure: RequestFailure,
        io: &mut Io<'_>,
    ) {
        if self.failed(stream, failure, io) {
            frame::reset(io.out, stream, code);
        }
    }

    /// Fails a request. Returns whether it was in flight.
    pub(super) fn failed(&mut self, stream: u32, failure: RequestFailure, io: &mut Io<'_>) -> bool {
        let Some(slot) = self.streams.end(stream) else { return false };
        if slot.stage == StreamStage::PartialBody {
            self.partial.end(stream);
        }
        self.uploads.end(stream);
        io.outcomes.failed(slot.started, failure);
        true
    }
}
