//! One connection: a socket, optionally TLS, and a protocol.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr};

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use rustls::ClientConnection;
use socket2::{Domain, Protocol as Transport, Socket, Type};

use crate::failure::RequestFailure;
use crate::http_choice::HttpChoice;
use crate::protocol::{Protocol, Ticks};
use crate::tally::LoadTally;
use crate::tls;

/// Maximum number of unsent bytes, from which on no more requests start.
const MAX_UNSENT_BYTES: usize = 64 << 10;
/// Maximum number of consecutive reads from one connection before others have their turn.
const MAX_READS_PER_TURN: u32 = 16;

/// One connection to a target.
pub(crate) struct Connection {
    socket: TcpStream,
    tls: Option<Box<ClientConnection>>,
    protocol: Option<Box<dyn Protocol>>,
    stage: ConnectionStage,
    /// Bytes to send. The first `written` of them are sent.
    out: Vec<u8>,
    written: usize,
    /// When the connection attempt started, or was due.
    pub(crate) started: Ticks,
}

/// How far a connection is established.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnectionStage {
    Connecting,
    Handshaking,
    Open,
}

/// The effect of an event on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConnectionProgress {
    /// The connection is open now, and was not before.
    pub(crate) opened: bool,
    /// There may be more to read, though no further event reports it.
    pub(crate) may_have_more: bool,
}

impl Connection {
    /// Starts to connect.
    pub(crate) fn connect(
        to: SocketAddr,
        from: Option<IpAddr>,
        tls: Option<Box<ClientConnection>>,
        started: Ticks,
    ) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Transport::TCP))?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        if let Some(from) = from {
            socket.bind(&SocketAddr::new(from, 0).into())?;
        }
        match socket.connect(&to.into()) {
            Err(error) if !is_in_progress(&error) => return Err(error),
            _ => {}
        }
        Ok(Self {
            socket: TcpStream::from_std(socket.into()),
            tls,
            protocol: None,
            stage: ConnectionStage::Connecting,
            out: Vec::new(),
            written: 0,
            started,
        })
    }

    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        registry.register(&mut self.socket, token, Interest::READABLE | Interest::WRITABLE)
    }

    /// Returns the protocol, or `None` before it is negotiated and on bare connections.
    pub(crate) fn protocol(&self) -> Option<&dyn Protocol> {
        self.protocol.as_deref()
    }

    /// Returns how many more requests may start now, given that at most `streams` may be in flight.
    pub(crate) fn room(&self, streams: usize) -> usize {
        let Some(protocol) = &self.protocol else { return 0 };
        if self.out.len() - self.written >= MAX_UNSENT_BYTES {
            return 0;
        }
        protocol.room().min(streams.saturating_sub(protocol.in_flight()))
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.protocol.as_ref().map_or(0, |protocol| protocol.in_flight())
    }

    /// Returns whether the connection is established, including TLS.
    pub(crate) fn is_open(&self) -> bool {
        self.stage == ConnectionStage::Open
    }

    /// Starts a request, if there is room.
    pub(crate) fn send(&mut self, due: Ticks) {
        if let Some(protocol) = &mut self.protocol {
            protocol.send(due, &mut self.out);
        }
    }

    /// Handles an event: completes the connection attempt, reads received bytes, writes pending
    /// ones.
    pub(crate) fn advance(
        &mut self,
        buffer: &mut [u8],
        choice: &HttpChoice,
        tally: &mut LoadTally,
    ) -> Result<ConnectionProgress, RequestFailure> {
        let was_open = self.is_open();
        if self.stage == ConnectionStage::Connecting && !self.is_connected()? {
            return Ok(ConnectionProgress { opened: false, may_have_more: false });
        }
        let may_have_more = self.read(buffer, choice, tally)?;
        if let Err(failure) = self.flush() {
            // Bytes that the server sent before it closed explain more than the failed write.
            while self.read(buffer, choice, tally)? {}
            return Err(failure);
        }
        Ok(ConnectionProgress { opened: self.is_open() && !was_open, may_have_more })
    }

    fn is_connected(&mut self) -> Result<bool, RequestFailure> {
        let failure = |error: io::Error| RequestFailure::from_io(&error);
        if let Some(error) = self.socket.take_error().map_err(failure)? {
            return Err(failure(error));
        }
        match self.socket.peer_addr() {
            Ok(_) => {
                self.stage = ConnectionStage::Handshaking;
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(failure(error)),
        }
    }

    /// Reads received bytes. Returns whether there may be more to read.
    fn read(
        &mut self,
        buffer: &mut [u8],
        choice: &HttpChoice,
        tally: &mut LoadTally,
    ) -> Result<bool, RequestFailure> {
        if self.stage == ConnectionStage::Handshaking {
            self.handshake(choice)?;
        }
        for _ in 0..MAX_READS_PER_TURN {
            let more = match self.tls.is_some() {
                true => self.read_tls(buffer, choice, tally)?,
                false => self.read_plain(buffer, tally)?,
            };
            if !more {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn read_plain(
        &mut self,
        buffer: &mut [u8],
        tally: &mut LoadTally,
    ) -> Result<bool, RequestFailure> {
        match self.socket.read(buffer) {
            Ok(0) => Err(RequestFailure::Closed),
            Ok(count) => {
                self.receive(&buffer[..count], tally)?;
                // Later bytes cause another event, and so does the end of the connection.
                Ok(count == buffer.len())
            }
            Err(error) => retries_now(&error),
        }
    }

    fn read_tls(
        &mut self,
        buffer: &mut [u8],
        choice: &HttpChoice,
        tally: &mut LoadTally,
    ) -> Result<bool, RequestFailure> {
        let Some(session) = &mut self.tls else { return Ok(false) };
        match session.read_tls(&mut self.socket) {
            Ok(0) => return Err(RequestFailure::Closed),
            Ok(_) => {}
            Err(error) => return retries_now(&error),
        }
        if let Err(error) = session.process_new_packets() {
            // Sends an alert with the reason. Whether it arrives makes no difference here.
            let _ = session.write_tls(&mut self.socket);
            return Err(tls::failure(&error));
        }
        if self.stage == ConnectionStage::Handshaking {
            self.handshake(choice)?;
        }
        loop {
            let Some(session) = &mut self.tls else { return Ok(false) };
            match session.reader().read(buffer) {
                Ok(0) => return Err(RequestFailure::Closed),
                Ok(count) => self.receive(&buffer[..count], tally)?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                // The connection ended without a TLS close_notify.
                Err(error) => return Err(RequestFailure::from_io(&error)),
            }
        }
    }

    fn receive(&mut self, bytes: &[u8], tally: &mut LoadTally) -> Result<(), RequestFailure> {
        match &mut self.protocol {
            Some(protocol) => protocol.receive(bytes, &mut self.out, tally),
            // Bytes from the server on a bare connection are ignored.
            None => Ok(()),
        }
    }

    /// Starts the protocol, once the TLS handshake is complete.
    fn handshake(&mut self, choice: &HttpChoice) -> Result<(), RequestFailure> {
        if self.tls.as_ref().is_some_and(|session| session.is_handshaking()) {
            return Ok(());
        }
        let chosen = self.tls.as_ref().and_then(|session| session.alpn_protocol());
        self.protocol = choice.protocol(chosen)?;
        self.stage = ConnectionStage::Open;
        if let Some(protocol) = &mut self.protocol {
            protocol.open(&mut self.out);
        }
        Ok(())
    }

    /// Writes as much as the kernel accepts.
    pub(crate) fn flush(&mut self) -> Result<(), RequestFailure> {
        if self.stage == ConnectionStage::Connecting {
            return Ok(());
        }
        loop {
            let waiting = self.out.len() - self.written;
            if let Some(protocol) = &mut self.protocol
                && waiting < MAX_UNSENT_BYTES
            {
                protocol.pump(MAX_UNSENT_BYTES - waiting, &mut self.out);
            }
            let written = match self.tls {
                Some(_) => self.write_tls()?,
                None => self.write_plain()?,
            };
            if !written {
                return Ok(());
            }
        }
    }

    /// Returns whether something was written, so that there may be room for more.
    fn write_plain(&mut self) -> Result<bool, RequestFailure> {
        if self.written == self.out.len() {
            return Ok(false);
        }
        match self.socket.write(&self.out[self.written..]) {
            Ok(count) => {
                self.wrote(count);
                Ok(true)
            }
            Err(error) => retries_now(&error),
        }
    }

    fn write_tls(&mut self) -> Result<bool, RequestFailure> {
        let mut taken = 0;
        if let Some(session) = &mut self.tls {
            if self.stage == ConnectionStage::Open && self.written < self.out.len() {
                let write = session.writer().write(&self.out[self.written..]);
                taken = write.map_err(|error| RequestFailure::from_io(&error))?;
            }
            while session.wants_write() {
                match session.write_tls(&mut self.socket) {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => {
                        retries_now(&error)?;
                        break;
                    }
                }
            }
        }
        self.wrote(taken);
        Ok(taken > 0)
    }

    fn wrote(&mut self, count: usize) {
        self.written += count;
        if self.written == self.out.len() {
            self.out.clear();
            self.written = 0;
            // A burst of replies to the server's frames may have grown the buffer.
            self.out.shrink_to(2 * MAX_UNSENT_BYTES);
        } else if self.written >= MAX_UNSENT_BYTES {
            self.out.drain(..self.written);
            self.written = 0;
        }
    }

    /// Gives up the requests that started at or before a time.
    pub(crate) fn expire(
        &mut self,
        until: Ticks,
        tally: &mut LoadTally,
    ) -> Result<(), RequestFailure> {
        match &mut self.protocol {
            Some(protocol) => protocol.expire(until, &mut self.out, tally),
            None => Ok(()),
        }
    }

    /// Fails all requests in flight, because the connection is lost or unusable.
    pub(crate) fn fail(&mut self, why: RequestFailure, tally: &mut LoadTally) {
        // Sends the reason to the server, if possible.
        let _ = self.flush();
        if let Some(protocol) = &mut self.protocol {
            protocol.closed(why, tally);
        }
    }

    /// Closes the connection in good order, without waiting for the kernel to accept all bytes.
    pub(crate) fn close(&mut self) {
        if let Some(protocol) = &mut self.protocol {
            protocol.close(&mut self.out);
        }
        let _ = self.flush();
        if let Some(session) = &mut self.tls {
            session.send_close_notify();
            let _ = session.write_tls(&mut self.socket);
        }
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
    }

    pub(crate) fn rebase(&mut self, by: Ticks) {
        self.started = Ticks(self.started.0.saturating_sub(by.0));
        if let Some(protocol) = &mut self.protocol {
            protocol.rebase(by);
        }
    }
}

/// Returns whether a non-blocking connection attempt is in progress.
fn is_in_progress(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error())
        || error.kind() == ErrorKind::WouldBlock
}

/// Returns whether to retry after an error that is not a failure: at once after an interruption,
/// and after the next event if the call would block.
fn retries_now(error: &io::Error) -> Result<bool, RequestFailure> {
    match error.kind() {
        ErrorKind::WouldBlock => Ok(false),
        ErrorKind::Interrupted => Ok(true),
        _ => Err(RequestFailure::from_io(error)),
    }
}
