//! A client for HTTP/2 (RFC 9113) that repeats one request, without I/O.
//!
//! It is made for very many requests in flight on few connections. A request takes 12 bytes while
//! it waits for its response (`streams`), about 40 more while its own body waits for a window
//! (`uploads`), and about 100 more while the body of the response arrives in several frames
//! (`partial_responses`). A request whose response arrives in one HEADERS and one DATA frame
//! allocates nothing.
//!
//! Of the bytes from a server, it keeps at most one frame, one header block, and 4 KiB of a body
//! that arrives in several frames (1 MiB of all bodies). It writes little more in reply than it
//! receives.
//!
//! It follows the protocol, but is lenient where a violation has no consequences: it ignores frames
//! on closed streams, and headers that do not belong in a response but change nothing.

mod frame;
mod frame_reader;
mod hpack;
mod partial_responses;
mod receive;
mod request;
mod response;
mod settings;
mod streams;
mod uploads;

use crate::failure::{ErrorCode, RequestFailure};
use crate::protocol::{Outcomes, Protocol, Request, Ticks};
use frame_reader::FrameReader;
use hpack::Decoder;
use partial_responses::PartialResponses;
use receive::Io;
use request::RepeatedRequest;
use response::HeaderBlock;
use settings::{CONNECTION_WINDOW, INITIAL_WINDOW};
use streams::{StreamStage, Streams};
use uploads::Uploads;

/// One connection of HTTP/2.
#[derive(Debug)]
pub struct Http2 {
    request: RepeatedRequest,
    input: FrameReader,
    decoder: Decoder,
    /// An incomplete header block.
    block: Option<HeaderBlock>,
    streams: Streams,
    partial: PartialResponses,
    uploads: Uploads,
    /// The maximum number of concurrent streams that the server permits; `None` until its SETTINGS
    /// arrive.
    allowed: Option<u32>,
    /// Received body bytes that are not yet returned to the window of the connection.
    unreturned: u32,
    /// The server's GOAWAY: the last stream that it processes, and the reason.
    gone_away: Option<(u32, ErrorCode)>,
    /// Why the connection can no longer be used.
    ended: Option<RequestFailure>,
}

impl Http2 {
    /// Creates the protocol for a connection on which nothing was sent yet.
    pub fn new(request: &Request) -> Self {
        Self {
            request: RepeatedRequest::new(request),
            input: FrameReader::default(),
            decoder: Decoder::default(),
            block: None,
            streams: Streams::default(),
            partial: PartialResponses::default(),
            uploads: Uploads::default(),
            allowed: None,
            unreturned: 0,
            gone_away: None,
            ended: None,
        }
    }

    fn take(&mut self, mut bytes: &[u8], io: &mut Io<'_>) -> Result<(), RequestFailure> {
        // Frames borrow from the reader while they change the rest.
        let mut input = std::mem::take(&mut self.input);
        while let Some((head, payload)) = input.next(&mut bytes)? {
            self.frame(head, payload, io)?;
            input.opened();
        }
        self.input = input;
        Ok(())
    }
}

impl Protocol for Http2 {
    fn open(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(frame::PREFACE);
        settings::write_ours(out);
        frame::window_update(out, 0, CONNECTION_WINDOW - INITIAL_WINDOW);
    }

    fn room(&self) -> usize {
        if self.is_draining() {
            return 0;
        }
        let allowed = self.allowed.unwrap_or(0) as usize;
        allowed.saturating_sub(self.streams.len()).min(self.streams.left())
    }

    fn send(&mut self, due: Ticks, out: &mut Vec<u8>) {
        if self.room() == 0 {
            return;
        }
        if let Some(stream) = self.streams.start(due) {
            self.request.write(stream, out);
            if !self.request.body.is_empty() {
                self.uploads.start(stream);
            }
        }
    }

    fn receive(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
        outcomes: &mut dyn Outcomes,
    ) -> Result<(), RequestFailure> {
        let result = match self.ended {
            Some(failure) => return Err(failure),
            None => self.take(bytes, &mut Io { out, outcomes }),
        };
        if let Err(failure) = result {
            self.ended = Some(failure);
            if let RequestFailure::Http2 { code, .. } = failure {
                frame::go_away(out, code);
            }
        }
        result
    }

    fn pump(&mut self, max: usize, out: &mut Vec<u8>) {
        self.uploads.pump(&self.request.body, max, out);
    }

    fn expire(
        &mut self,
        until: Ticks,
        out: &mut Vec<u8>,
        outcomes: &mut dyn Outcomes,
    ) -> Result<(), RequestFailure> {
        while let Some((stream, started)) = self.streams.oldest()
            && started <= until
        {
            self.give_up(
                stream,
                ErrorCode::CANCEL,
                RequestFailure::TimedOut,
                &mut Io { out, outcomes },
            );
        }
        Ok(())
    }

    fn oldest(&self) -> Option<Ticks> {
        self.streams.oldest().map(|(_, started)| started)
    }

    fn in_flight(&self) -> usize {
        self.streams.len()
    }

    fn is_draining(&self) -> bool {
        self.gone_away.is_some() || self.ended.is_some() || self.streams.left() == 0
    }

    fn close(&mut self, out: &mut Vec<u8>) {
        frame::go_away(out, ErrorCode::NO_ERROR);
    }

    fn closed(&mut self, why: RequestFailure, outcomes: &mut dyn Outcomes) {
        let ended = match self.gone_away {
            Some((_, code)) if code != ErrorCode::NO_ERROR => RequestFailure::GoneAway(code),
            _ => why,
        };
        let is_broken_off = matches!(ended, RequestFailure::Closed | RequestFailure::Reset);
        for slot in self.streams.iter_mut() {
            let has_started = slot.stage != StreamStage::Waiting;
            let failure =
                if has_started && is_broken_off { RequestFailure::CutShort } else { ended };
            outcomes.failed(slot.started, failure);
        }
        self.streams = Streams::default();
        self.partial.clear();
        self.uploads.clear();
        self.block = None;
        self.input = FrameReader::default();
        self.ended = Some(ended);
    }

    fn rebase(&mut self, by: Ticks) {
        for slot in self.streams.iter_mut() {
            slot.started = Ticks(slot.started.0.saturating_sub(by.0));
        }
    }
}

/// Decodes header blocks of one connection, up to the first invalid one.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn decode_blocks(blocks: &[&[u8]]) {
    let mut decoder = hpack::Decoder::default();
    let _ = blocks.iter().try_for_each(|block| decoder.decode(block).map(drop));
}

#[cfg(test)]
mod tests;
