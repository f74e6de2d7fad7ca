//! Why a request failed, in words a person understands.

use std::fmt;
use std::io;

/// Why a request failed. Its text is what people read and what reports count by, so it names
/// no single request, stream or connection. A value of a few bytes, since a million may be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
pub enum Failure {
    /// No whole answer came in the time that was given.
    #[error("timed out")]
    TimedOut,
    /// The server closed the connection in good order before it answered.
    #[error("the server closed the connection")]
    Closed,
    /// The connection was broken off.
    #[error("the connection was reset")]
    Reset,
    /// An answer started, but its body ended too early or was not as long as its `content-length`.
    #[error("the answer's body was cut short")]
    CutShort,
    /// HTTP/2: the server ended the connection without looking at this request.
    #[error("not processed by the server (GOAWAY{})", Because(*.0))]
    NotProcessed(ErrorCode),
    /// HTTP/2: the server ended the connection with an error while this request was in flight.
    #[error("the server gave up the connection (GOAWAY{})", Because(*.0))]
    GoneAway(ErrorCode),
    /// HTTP/2: the server did not start this request, and would take it again.
    #[error("refused by the server (REFUSED_STREAM)")]
    RefusedStream,
    /// HTTP/2: the server gave up this request.
    #[error("given up by the server (RST_STREAM: {0})")]
    StreamReset(ErrorCode),
    /// Nobody listens there.
    #[error("connection refused")]
    Refused,
    /// No way leads there.
    #[error("no route to the host")]
    Unreachable,
    /// No connection came about in the time that was given.
    #[error("no connection within the time-out")]
    NotConnected,
    /// This machine could not make the connection, or not go on with it.
    #[error("this machine failed the connection ({0})")]
    Local(&'static str),
    /// TLS: the server's certificate is not trusted.
    #[error("the server's certificate is not trusted: {0}")]
    NotTrusted(&'static str),
    /// TLS: no connection came about.
    #[error("no TLS connection: {0}")]
    Tls(&'static str),
    /// TLS: the server speaks none of the protocols that were offered.
    #[error("the server does not offer the HTTP version that was asked for")]
    NoProtocol,
    /// What came was not HTTP/1.1.
    #[error("the server does not speak HTTP/1.1 here: it answered with {0}")]
    NotHttp1(&'static str),
    /// The server broke the rules of HTTP/1.1.
    #[error("the server broke the rules of HTTP/1.1: {0}")]
    Http1(&'static str),
    /// The load was ended from outside.
    #[error("interrupted")]
    Interrupted,
    /// What came was not HTTP/2.
    #[error("the server does not speak HTTP/2 here: it answered with {0}")]
    NotHttp2(&'static str),
    /// The server broke the rules of its protocol.
    #[error("the server broke the rules of HTTP/2: {what} ({code})")]
    Http2 {
        /// What HTTP/2 calls it.
        code: ErrorCode,
        /// What was wrong.
        what: &'static str,
    },
}

impl Failure {
    /// What the system says of a connection.
    pub(crate) fn of_connection(error: &io::Error) -> Self {
        use io::ErrorKind as Kind;
        match error.kind() {
            Kind::ConnectionRefused => Self::Refused,
            Kind::ConnectionReset | Kind::ConnectionAborted | Kind::BrokenPipe => Self::Reset,
            Kind::HostUnreachable | Kind::NetworkUnreachable | Kind::NetworkDown => {
                Self::Unreachable
            }
            Kind::TimedOut => Self::NotConnected,
            Kind::UnexpectedEof => Self::Closed,
            Kind::AddrNotAvailable | Kind::AddrInUse => Self::Local("no port is free"),
            Kind::PermissionDenied => Self::Local("permission denied"),
            Kind::OutOfMemory => Self::Local("out of memory"),
            _ => Self::Local(if is_file_limit(error) { "too many open files" } else { "other" }),
        }
    }

    /// Whether a request, or a bare connection, ran out of time.
    pub fn is_timeout(self) -> bool {
        matches!(self, Self::TimedOut | Self::NotConnected)
    }

    /// Whether the server turned out to speak another protocol.
    pub fn is_of_protocol(self) -> bool {
        matches!(self, Self::NotHttp1(_) | Self::NotHttp2(_) | Self::NoProtocol)
    }
}

fn is_file_limit(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let number = error.raw_os_error();
    number.is_some_and(|n| [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error).contains(&n))
}

/// An error code of HTTP/2 (RFC 9113, section 7), shown by its name there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ErrorCode(pub u32);

impl ErrorCode {
    /// No error: a graceful end.
    pub const NO_ERROR: Self = Self(0x0);
    /// A rule was broken, and no other code fits better.
    pub const PROTOCOL_ERROR: Self = Self(0x1);
    /// More was sent than the receiver's window permitted.
    pub const FLOW_CONTROL_ERROR: Self = Self(0x3);
    /// A frame on a stream that was over.
    pub const STREAM_CLOSED: Self = Self(0x5);
    /// A frame of a length that its kind cannot have, or that was not permitted.
    pub const FRAME_SIZE_ERROR: Self = Self(0x6);
    /// The request was not started.
    pub const REFUSED_STREAM: Self = Self(0x7);
    /// The answer is no longer wanted.
    pub const CANCEL: Self = Self(0x8);
    /// Compressed headers could not be read.
    pub const COMPRESSION_ERROR: Self = Self(0x9);
    /// The peer does too much of something.
    pub const ENHANCE_YOUR_CALM: Self = Self(0xb);

    const NAMES: [&str; 14] = [
        "NO_ERROR",
        "PROTOCOL_ERROR",
        "INTERNAL_ERROR",
        "FLOW_CONTROL_ERROR",
        "SETTINGS_TIMEOUT",
        "STREAM_CLOSED",
        "FRAME_SIZE_ERROR",
        "REFUSED_STREAM",
        "CANCEL",
        "COMPRESSION_ERROR",
        "CONNECT_ERROR",
        "ENHANCE_YOUR_CALM",
        "INADEQUATE_SECURITY",
        "HTTP_1_1_REQUIRED",
    ];
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Self::NAMES.get(self.0 as usize) {
            Some(name) => f.write_str(name),
            // Any number is permitted; told apart, they would be kinds without end.
            None => f.write_str("a code that HTTP/2 does not know"),
        }
    }
}

/// `: CODE`, or nothing where there is no error.
struct Because(ErrorCode);

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ErrorCode::NO_ERROR => Ok(()),
            code => write!(f, ": {code}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_code_only_where_there_was_an_error() {
        let told = |code| Failure::NotProcessed(code).to_string();
        assert_eq!(told(ErrorCode::NO_ERROR), "not processed by the server (GOAWAY)");
        assert_eq!(
            told(ErrorCode::ENHANCE_YOUR_CALM),
            "not processed by the server (GOAWAY: ENHANCE_YOUR_CALM)"
        );
        assert_eq!(
            Failure::StreamReset(ErrorCode(0x77)).to_string(),
            "given up by the server (RST_STREAM: a code that HTTP/2 does not know)"
        );
    }

    #[test]
    fn a_failure_is_small() {
        assert!(size_of::<Failure>() <= 24);
    }
}
