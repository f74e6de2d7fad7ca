//! Which protocol is spoken on a connection: by what was asked for, and by what the server chose.

use crate::failure::Failure;
use crate::h1::Http1;
use crate::h2::Http2;
use crate::protocol::{Protocol, Request};

/// Which version of HTTP is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Version {
    /// With TLS, what the server chooses, HTTP/2 before HTTP/1.1. Without, HTTP/1.1.
    #[default]
    Auto,
    /// HTTP/1.1.
    Http1,
    /// HTTP/2, without TLS with prior knowledge.
    Http2,
}

/// What is spoken on the connections to one target.
#[derive(Debug)]
pub(crate) enum Speech {
    /// Nothing: bare connections.
    Nothing,
    /// Requests.
    Http { request: Request, version: Version },
}

const H2: &str = "h2";
const H1: &str = "http/1.1";

impl Speech {
    /// What is offered by ALPN.
    pub(crate) fn offers(&self) -> &'static [&'static str] {
        match self {
            Self::Nothing => &[],
            Self::Http { version: Version::Auto, .. } => &[H2, H1],
            Self::Http { version: Version::Http1, .. } => &[H1],
            Self::Http { version: Version::Http2, .. } => &[H2],
        }
    }

    /// The protocol on a new connection, on which the server chose one by ALPN or did not.
    pub(crate) fn begin(
        &self,
        chosen: Option<&[u8]>,
    ) -> Result<Option<Box<dyn Protocol>>, Failure> {
        let Self::Http { request, version } = self else { return Ok(None) };
        let is_tls = request.scheme == "https";
        let is_h2 = match (version, chosen) {
            (_, Some(name)) => name == H2.as_bytes(),
            (Version::Auto | Version::Http1, None) => false,
            (Version::Http2, None) if is_tls => return Err(Failure::NoProtocol),
            (Version::Http2, None) => true,
        };
        match is_h2 {
            true => Ok(Some(Box::new(Http2::new(request)))),
            false => Ok(Some(Box::new(Http1::new(request)))),
        }
    }
}
