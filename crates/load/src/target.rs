//! The target of a load: `http://HOST:PORT/PATH`, `https://…`, `tcp:HOST:PORT` or `tls:HOST:PORT`.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;

use http::Uri;

/// The target of a load. Displayed as the user wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadTarget {
    text: String,
    /// The protocol.
    pub scheme: Scheme,
    /// The host's name or address, without the brackets of an IPv6 address.
    pub(crate) host: String,
    /// The port.
    pub(crate) port: u16,
    /// Host and port as the user wrote them.
    pub(crate) authority: String,
    /// Path and query, starting with `/`.
    pub(crate) path: String,
}

/// The protocol of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// HTTP without TLS.
    Http,
    /// HTTP over TLS.
    Https,
    /// Bare connections.
    Tcp,
    /// Bare connections with TLS.
    Tls,
}

impl Scheme {
    /// Returns whether the connections use TLS.
    pub(crate) fn is_tls(self) -> bool {
        matches!(self, Self::Https | Self::Tls)
    }

    /// Returns whether the connections are bare, without requests.
    pub fn is_bare(self) -> bool {
        matches!(self, Self::Tcp | Self::Tls)
    }

    /// Returns its name in a URL.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::Tcp => "tcp",
            Self::Tls => "tls",
        }
    }
}

/// Why a text is not a valid target.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadTargetError {
    /// It does not start with a known scheme.
    #[error(
        "`{0}` does not begin with http:, https:, tcp: or tls:; write http://HOST:PORT/PATH, or tcp:HOST:PORT for bare connections"
    )]
    Scheme(String),
    /// It has no port, and the scheme has no default one.
    #[error("`{0}` has no port: write {1}:HOST:PORT")]
    Port(String, &'static str),
    /// It has a path, although bare connections send no requests.
    #[error("`{0}` has a path, but bare connections send no requests: write {1}:HOST:PORT")]
    Path(String, &'static str),
    /// It is not a valid URL.
    #[error("`{0}` is not a valid address ({1}): write http://HOST:PORT/PATH")]
    Invalid(String, String),
}

/// An unknown host, or one without an address.
#[derive(Debug, thiserror::Error)]
#[error("the address of {host} cannot be found ({reason}): check the name")]
pub struct UnknownHost {
    host: String,
    reason: io::Error,
}

impl LoadTarget {
    /// Resolves the host with the system's resolver. Returns at least one address.
    ///
    /// # Errors
    /// Fails if the host is unknown, or has no address.
    pub(crate) fn resolve(&self) -> Result<Vec<SocketAddr>, UnknownHost> {
        let unknown = |reason| UnknownHost { host: self.host.clone(), reason };
        let found: Vec<SocketAddr> =
            (self.host.as_str(), self.port).to_socket_addrs().map_err(unknown)?.collect();
        match found.is_empty() {
            true => Err(unknown(io::Error::other("it has none"))),
            false => Ok(found),
        }
    }
}

impl FromStr for LoadTarget {
    type Err = LoadTargetError;

    fn from_str(text: &str) -> Result<Self, LoadTargetError> {
        let unknown = || LoadTargetError::Scheme(text.to_owned());
        let (scheme, rest) = text.split_once(':').ok_or_else(unknown)?;
        let scheme = match scheme.to_ascii_lowercase().as_str() {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            "tcp" => Scheme::Tcp,
            "tls" => Scheme::Tls,
            _ => return Err(unknown()),
        };
        let rest = rest.trim_start_matches('/');
        let rest = rest.split_once('#').map_or(rest, |(before, _)| before);
        let invalid = |why: String| LoadTargetError::Invalid(text.to_owned(), why);
        let uri = Uri::from_str(&format!("{}://{rest}", scheme.name()))
            .map_err(|error| invalid(error.to_string()))?;
        let authority = uri.authority().ok_or_else(|| invalid("no host".to_owned()))?;
        if authority.as_str().contains('@') {
            return Err(invalid("it contains a user name; use -H instead".to_owned()));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err(invalid("no host".to_owned()));
        }
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        let port = match (authority.port(), scheme) {
            (Some(port), _) => port.as_u16(),
            (None, _) if authority.as_str() != authority.host() => {
                return Err(invalid("no port from 1 to 65535 after the colon".to_owned()));
            }
            (None, Scheme::Http) => 80,
            (None, Scheme::Https) => 443,
            (None, Scheme::Tcp | Scheme::Tls) => {
                return Err(LoadTargetError::Port(text.to_owned(), scheme.name()));
            }
        };
        if scheme.is_bare() && path != "/" {
            return Err(LoadTargetError::Path(text.to_owned(), scheme.name()));
        }
        Ok(Self {
            text: text.to_owned(),
            scheme,
            host: host.to_owned(),
            port,
            authority: authority.as_str().to_owned(),
            path,
        })
    }
}

impl fmt::Display for LoadTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn target_addresses_are_parsed() {
        for (text, scheme, host, port, path) in [
            ("http://0.0.0.0:3000?server=axum", Scheme::Http, "0.0.0.0", 3000, "/?server=axum"),
            ("https://example.org", Scheme::Https, "example.org", 443, "/"),
            ("HTTP://[::1]:80/a%20b#part", Scheme::Http, "::1", 80, "/a%20b"),
            ("tcp:localhost:9", Scheme::Tcp, "localhost", 9, "/"),
            ("tls://10.0.0.1:8443", Scheme::Tls, "10.0.0.1", 8443, "/"),
        ] {
            let target: LoadTarget = text.parse().unwrap();
            assert_eq!((target.scheme, target.host.as_str()), (scheme, host), "{text}");
            assert_eq!((target.port, target.path.as_str()), (port, path), "{text}");
            assert_eq!(target.to_string(), text);
        }
    }

    #[test]
    fn an_invalid_address_is_an_error_that_explains_the_syntax() {
        for (text, part) in [
            ("localhost:3000", "does not begin with http:"),
            ("ftp://x", "does not begin with http:"),
            ("", "does not begin with http:"),
            ("http://", "is not a valid address"),
            ("http://a b/", "is not a valid address"),
            ("http://x:99999/", "is not a valid address"),
            ("http://x:/", "no port from 1 to 65535"),
            ("http://me:word@x/", "it contains a user name"),
            ("tcp:localhost", "write tcp:HOST:PORT"),
            ("tls:localhost:1/x", "bare connections send no requests"),
        ] {
            let said = text.parse::<LoadTarget>().unwrap_err().to_string();
            assert!(said.contains(part), "{said}");
        }
    }

    #[test]
    fn the_error_for_an_unknown_host_names_the_host() {
        let target: LoadTarget = "http://no-such-host.invalid:1/".parse().unwrap();
        let said = target.resolve().unwrap_err().to_string();
        assert!(said.contains("no-such-host.invalid"), "{said}");
    }

    proptest! {
        #[test]
        fn the_parser_does_not_panic_on_arbitrary_text(text in "\\PC*") {
            let _ = text.parse::<LoadTarget>();
            let _ = format!("http:{text}").parse::<LoadTarget>();
        }
    }
}
