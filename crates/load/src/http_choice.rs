//! Chooses the protocol of a connection: by the requested HTTP version and the server's choice in
//! ALPN.

use crate::failure::RequestFailure;
use crate::h1::Http1;
use crate::h2::Http2;
use crate::protocol::{Protocol, Request};

/// The requested version of HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HttpVersion {
    /// With TLS, the server's choice, HTTP/2 preferred to HTTP/1.1. Without TLS, HTTP/1.1.
    #[default]
    Auto,
    /// HTTP/1.1.
    Http1,
    /// HTTP/2; without TLS, with prior knowledge.
    Http2,
}

/// The protocol on the connections to one target, as far as it is known before they are made.
#[derive(Debug)]
pub(crate) enum HttpChoice {
    /// Bare connections: no protocol.
    Bare,
    /// HTTP, of a version that ALPN may decide.
    Http { request: Request, version: HttpVersion },
}

const ALPN_H2: &str = "h2";
const ALPN_H1: &str = "http/1.1";

impl HttpChoice {
    /// Returns the protocols to offer in ALPN, the preferred one first.
    pub(crate) fn alpn_offers(&self) -> &'static [&'static str] {
        match self {
            Self::Bare => &[],
            Self::Http { version: HttpVersion::Auto, .. } => &[ALPN_H2, ALPN_H1],
            Self::Http { version: HttpVersion::Http1, .. } => &[ALPN_H1],
            Self::Http { version: HttpVersion::Http2, .. } => &[ALPN_H2],
        }
    }

    /// Returns the protocol for a new connection, or `None` for a bare one. `negotiated` is the
    /// server's choice in ALPN, if it made one.
    ///
    /// # Errors
    ///
    /// Fails if HTTP/2 was requested over TLS and the server did not choose it.
    pub(crate) fn protocol(
        &self,
        negotiated: Option<&[u8]>,
    ) -> Result<Option<Box<dyn Protocol>>, RequestFailure> {
        let Self::Http { request, version } = self else { return Ok(None) };
        let is_tls = request.scheme.is_tls();
        let is_h2 = match (version, negotiated) {
            (_, Some(name)) => name == ALPN_H2.as_bytes(),
            (HttpVersion::Auto | HttpVersion::Http1, None) => false,
            (HttpVersion::Http2, None) if is_tls => return Err(RequestFailure::NoProtocol),
            (HttpVersion::Http2, None) => true,
        };
        match is_h2 {
            true => Ok(Some(Box::new(Http2::new(request)))),
            false => Ok(Some(Box::new(Http1::new(request)))),
        }
    }
}
