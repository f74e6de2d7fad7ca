//! One socket, perhaps TLS, and a protocol on it.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr};

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use rustls::ClientConnection;
use socket2::{Domain, Protocol as Transport, Socket, Type};

use crate::failure::Failure;
use crate::http_choice::HttpChoice;
use crate::protocol::{Protocol, Ticks};
use crate::tally::Tally;
use crate::tls;

/// Nothing more is started while so many bytes wait to be written.
const MAX_UNSENT_BYTES: usize = 64 << 10;
/// So often one connection is read in a row, before others have their turn.
const MAX_READS_PER_TURN: u32 = 16;

/// One connection.
pub(crate) struct Connection {
    socket: TcpStream,
    tls: Option<Box<ClientConnection>>,
    protocol: Option<Box<dyn Protocol>>,
    stage: Stage,
    /// What is to be written; what stands before `written` has been.
    out: Vec<u8>,
    written: usize,
    /// When it started to be made, or was due to.
    pub(crate) started: Ticks,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Connecting,
    Handshaking,
    Open,
}

/// What an event led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConnectionProgress {
    /// It stands now, and did not before.
    pub(crate) opened: bool,
    /// There may be more to read.
    pub(crate) may_have_more: bool,
}

impl Connection {
    /// Begins to make one.
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
            Err(error) if !is_under_way(&error) => return Err(error),
            _ => {}
        }
        Ok(Self {
            socket: TcpStream::from_std(socket.into()),
            tls,
            protocol: None,
            stage: Stage::Connecting,
            out: Vec::new(),
            written: 0,
            started,
        })
    }

    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        registry.register(&mut self.socket, token, Interest::READABLE | Interest::WRITABLE)
    }

    /// What its protocol says, where it has one.
    pub(crate) fn protocol(&self) -> Option<&dyn Protocol> {
        self.protocol.as_deref()
    }

    /// How many requests may start here now, of so many that may be in flight.
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

    /// Whether it was made, TLS included.
    pub(crate) fn is_open(&self) -> bool {
        self.stage == Stage::Open
    }

    /// Begins a request, where there is room.
    pub(crate) fn send(&mut self, due: Ticks) {
        if let Some(protocol) = &mut self.protocol {
            protocol.send(due, &mut self.out);
        }
    }

    /// Goes on with it after an event: makes it, reads what has come, writes what waits.
    pub(crate) fn advance(
        &mut self,
        buffer: &mut [u8],
        choice: &HttpChoice,
        tally: &mut Tally,
    ) -> Result<ConnectionProgress, Failure> {
        let was_open = self.is_open();
        if self.stage == Stage::Connecting && !self.is_connected()? {
            return Ok(ConnectionProgress { opened: false, may_have_more: false });
        }
        let may_have_more = self.read(buffer, choice, tally)?;
        if let Err(failure) = self.flush() {
            // What the server said before it closed tells more than that nothing can be written.
            while self.read(buffer, choice, tally)? {}
            return Err(failure);
        }
        Ok(ConnectionProgress { opened: self.is_open() && !was_open, may_have_more })
    }

    fn is_connected(&mut self) -> Result<bool, Failure> {
        let failure = |error: io::Error| Failure::of_connection(&error);
        if let Some(error) = self.socket.take_error().map_err(failure)? {
            return Err(failure(error));
        }
        match self.socket.peer_addr() {
            Ok(_) => {
                self.stage = Stage::Handshaking;
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(failure(error)),
        }
    }

    /// Says whether there may be more to read.
    fn read(
        &mut self,
        buffer: &mut [u8],
        choice: &HttpChoice,
        tally: &mut Tally,
    ) -> Result<bool, Failure> {
        if self.stage == Stage::Handshaking {
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

    fn read_plain(&mut self, buffer: &mut [u8], tally: &mut Tally) -> Result<bool, Failure> {
        match self.socket.read(buffer) {
            Ok(0) => Err(Failure::Closed),
            Ok(count) => {
                self.receive(&buffer[..count], tally)?;
                // What comes later makes another event, the end of the connection as well.
                Ok(count == buffer.len())
            }
            Err(error) => is_for_later(&error),
        }
    }

    fn read_tls(
        &mut self,
        buffer: &mut [u8],
        choice: &HttpChoice,
        tally: &mut Tally,
    ) -> Result<bool, Failure> {
        let Some(session) = &mut self.tls else { return Ok(false) };
        match session.read_tls(&mut self.socket) {
            Ok(0) => return Err(Failure::Closed),
            Ok(_) => {}
            Err(error) => return is_for_later(&error),
        }
        if let Err(error) = session.process_new_packets() {
            // The alert tells the server why; that it may not arrive changes nothing here.
            let _ = session.write_tls(&mut self.socket);
            return Err(tls::failure(&error));
        }
        if self.stage == Stage::Handshaking {
            self.handshake(choice)?;
        }
        loop {
            let Some(session) = &mut self.tls else { return Ok(false) };
            match session.reader().read(buffer) {
                Ok(0) => return Err(Failure::Closed),
                Ok(count) => self.receive(&buffer[..count], tally)?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                // Without a word of TLS that it is the end, it is no orderly one.
                Err(error) => return Err(Failure::of_connection(&error)),
            }
        }
    }

    fn receive(&mut self, bytes: &[u8], tally: &mut Tally) -> Result<(), Failure> {
        match &mut self.protocol {
            Some(protocol) => protocol.receive(bytes, &mut self.out, tally),
            // Whatever the server says over a bare connection, nobody asked.
            None => Ok(()),
        }
    }

    /// Goes on to speak the protocol, once TLS stands.
    fn handshake(&mut self, choice: &HttpChoice) -> Result<(), Failure> {
        if self.tls.as_ref().is_some_and(|session| session.is_handshaking()) {
            return Ok(());
        }
        let chosen = self.tls.as_ref().and_then(|session| session.alpn_protocol());
        self.protocol = choice.protocol(chosen)?;
        self.stage = Stage::Open;
        if let Some(protocol) = &mut self.protocol {
            protocol.open(&mut self.out);
        }
        Ok(())
    }

    /// Writes as much as the kernel takes.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        if self.stage == Stage::Connecting {
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

    /// Says whether something was written, so that there may be room for more.
    fn write_plain(&mut self) -> Result<bool, Failure> {
        if self.written == self.out.len() {
            return Ok(false);
        }
        match self.socket.write(&self.out[self.written..]) {
            Ok(count) => {
                self.wrote(count);
                Ok(true)
            }
            Err(error) => is_for_later(&error),
        }
    }

    fn write_tls(&mut self) -> Result<bool, Failure> {
        let mut taken = 0;
        if let Some(session) = &mut self.tls {
            if self.stage == Stage::Open && self.written < self.out.len() {
                let write = session.writer().write(&self.out[self.written..]);
                taken = write.map_err(|error| Failure::of_connection(&error))?;
            }
            while session.wants_write() {
                match session.write_tls(&mut self.socket) {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => {
                        is_for_later(&error)?;
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
            // A burst of answers to the server's frames may have made it large.
            self.out.shrink_to(2 * MAX_UNSENT_BYTES);
        } else if self.written >= MAX_UNSENT_BYTES {
            self.out.drain(..self.written);
            self.written = 0;
        }
    }

    /// Gives up the requests that started at or before a time.
    pub(crate) fn expire(&mut self, until: Ticks, tally: &mut Tally) -> Result<(), Failure> {
        match &mut self.protocol {
            Some(protocol) => protocol.expire(until, &mut self.out, tally),
            None => Ok(()),
        }
    }

    /// The connection is gone, or is of no more use: all in flight fail.
    pub(crate) fn fail(&mut self, why: Failure, tally: &mut Tally) {
        // What tells the server why goes out if it can.
        let _ = self.flush();
        if let Some(protocol) = &mut self.protocol {
            protocol.closed(why, tally);
        }
    }

    /// Says goodbye. What the kernel does not take at once is not waited for.
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

fn is_under_way(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error())
        || error.kind() == ErrorKind::WouldBlock
}

/// Nothing more for now; an interruption is tried again.
fn is_for_later(error: &io::Error) -> Result<bool, Failure> {
    match error.kind() {
        ErrorKind::WouldBlock => Ok(false),
        ErrorKind::Interrupted => Ok(true),
        _ => Err(Failure::of_connection(error)),
    }
}
