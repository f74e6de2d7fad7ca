//! Why a request failed.

use std::fmt;
use std::io;

/// Why a request failed. Reports group failures by their text, so it names no particular request,
/// stream or connection. A value has few bytes, because a million requests may fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
pub enum RequestFailure {
    /// No complete response arrived within the timeout.
    #[error("timed out")]
    TimedOut,
    /// The server closed the connection in good order before it answered.
    #[error("the server closed the connection")]
    Closed,
    /// The connection was reset.
    #[error("the connection was reset")]
    Reset,
    /// A response started, but its body ended early or did not match its `content-length`.
    #[error("the response body was cut short")]
    CutShort,
    /// HTTP/2: the server ended the connection without processing this request.
    #[error("not processed by the server (GOAWAY{})", Because(*.0))]
    NotProcessed(ErrorCode),
    /// HTTP/2: the server ended the connection with an error while this request was in flight.
    #[error("the server ended the connection (GOAWAY{})", Because(*.0))]
    GoneAway(ErrorCode),
    /// HTTP/2: the server refused this request before processing it, so that it could be retried.
    #[error("refused by the server (REFUSED_STREAM)")]
    RefusedStream,
    /// HTTP/2: the server reset the stream of this request.
    #[error("reset by the server (RST_STREAM: {0})")]
    StreamReset(ErrorCode),
    /// No process listens on the port.
    #[error("connection refused")]
    Refused,
    /// There is no route to the host.
    #[error("no route to the host")]
    Unreachable,
    /// No connection was established within the timeout.
    #[error("no connection within the timeout")]
    NotConnected,
    /// This machine could not make or continue the connection.
    #[error("the connection failed on this machine ({0})")]
    Local(&'static str),
    /// TLS: the server's certificate is not trusted.
    #[error("the server's certificate is not trusted: {0}")]
    NotTrusted(&'static str),
    /// TLS: no connection was established.
    #[error("no TLS connection: {0}")]
    Tls(TlsFailure),
    /// TLS: the server supports none of the offered protocols.
    #[error("the server does not offer the requested HTTP version")]
    NoProtocol,
    /// The bytes from the server are not HTTP/1.1.
    #[error("the server does not speak HTTP/1.1 here: it responded with {0}")]
    NotHttp1(OtherProtocol),
    /// The server violated HTTP/1.1.
    #[error("the server violated HTTP/1.1: {0}")]
    Http1(&'static str),
    /// The load was interrupted.
    #[error("interrupted")]
    Interrupted,
    /// The bytes from the server are not HTTP/2.
    #[error("the server does not speak HTTP/2 here: it responded with {0}")]
    NotHttp2(OtherProtocol),
    /// The server violated HTTP/2.
    #[error("the server violated HTTP/2: {what} ({code})")]
    Http2 {
        /// The error code of HTTP/2.
        code: ErrorCode,
        /// The violation.
        what: &'static str,
    },
}

impl RequestFailure {
    /// Converts an I/O error of a connection.
    pub(crate) fn from_io(error: &io::Error) -> Self {
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

    /// Returns whether a request or a bare connection timed out.
    pub(crate) fn is_timeout(self) -> bool {
        matches!(self, Self::TimedOut | Self::NotConnected)
    }

    /// Returns whether the server speaks another protocol.
    pub(crate) fn is_wrong_protocol(self) -> bool {
        matches!(self, Self::NotHttp1(_) | Self::NotHttp2(_) | Self::NoProtocol)
    }
}

fn is_file_limit(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let number = error.raw_os_error();
    number.is_some_and(|n| [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error).contains(&n))
}

/// Why no TLS connection was established.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
pub enum TlsFailure {
    /// The server requires a client certificate.
    #[error("the server requires a client certificate")]
    ClientCertificateRequired,
    /// The server ended the handshake with another alert.
    #[error("the server aborted the handshake with an alert")]
    Alert,
    /// The bytes from the server are not TLS.
    #[error("the server did not respond with TLS")]
    NotTls,
    /// Client and server have no version or cipher suite in common.
    #[error("no version or cipher in common")]
    Incompatible,
    /// The server violated TLS.
    #[error("the server violated TLS")]
    ProtocolViolation,
}

/// The protocol that a server uses in place of the requested version of HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OtherProtocol {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    Http11,
    /// HTTP/2.
    Http2,
    /// An unknown version of HTTP.
    OtherHttp,
    /// TLS.
    Tls,
    /// An unknown protocol.
    Unknown,
}

impl fmt::Display for OtherProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Http10 => "HTTP/1.0",
            Self::Http11 => "HTTP/1.1",
            Self::Http2 => "HTTP/2",
            Self::OtherHttp => "another version",
            Self::Tls => "TLS",
            Self::Unknown => "something else",
        })
    }
}

/// An error code of HTTP/2 (RFC 9113, section 7), displayed by its name there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ErrorCode(pub u32);

impl ErrorCode {
    /// No error: a graceful shutdown.
    pub const NO_ERROR: Self = Self(0x0);
    /// A protocol violation that no other code describes better.
    pub(crate) const PROTOCOL_ERROR: Self = Self(0x1);
    /// More data than the receiver's window permits.
    pub(crate) const FLOW_CONTROL_ERROR: Self = Self(0x3);
    /// A frame of invalid length.
    pub(crate) const FRAME_SIZE_ERROR: Self = Self(0x6);
    /// The request was refused before processing.
    pub(crate) const REFUSED_STREAM: Self = Self(0x7);
    /// The response is no longer needed.
    pub(crate) const CANCEL: Self = Self(0x8);
    /// The header compression state is broken.
    pub(crate) const COMPRESSION_ERROR: Self = Self(0x9);
    /// The peer causes excessive load.
    pub(crate) const ENHANCE_YOUR_CALM: Self = Self(0xb);

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
            // Any number is valid; separate texts would make groups without limit.
            None => f.write_str("an unknown code"),
        }
    }
}

/// Displays `: CODE`, or nothing for `NO_ERROR`.
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
    fn a_failure_shows_the_error_code_unless_it_is_no_error() {
        let text = |code| RequestFailure::NotProcessed(code).to_string();
        assert_eq!(text(ErrorCode::NO_ERROR), "not processed by the server (GOAWAY)");
        assert_eq!(
            text(ErrorCode::ENHANCE_YOUR_CALM),
            "not processed by the server (GOAWAY: ENHANCE_YOUR_CALM)"
        );
        assert_eq!(
            RequestFailure::StreamReset(ErrorCode(0x77)).to_string(),
            "reset by the server (RST_STREAM: an unknown code)"
        );
    }

    #[test]
    fn tls_failures_and_other_protocols_are_described_in_words() {
        assert_eq!(
            RequestFailure::Tls(TlsFailure::NotTls).to_string(),
            "no TLS connection: the server did not respond with TLS"
        );
        assert_eq!(
            RequestFailure::NotHttp1(OtherProtocol::Http2).to_string(),
            "the server does not speak HTTP/1.1 here: it responded with HTTP/2"
        );
    }

    #[test]
    fn a_failure_takes_at_most_24_bytes() {
        assert!(size_of::<RequestFailure>() <= 24);
    }
}
