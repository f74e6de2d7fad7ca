//! The address on which the exporter listens.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

/// A TCP address or the path of a Unix socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    /// A host, by name or address, and a port.
    Tcp(String),
    /// A socket in the file system.
    Unix(PathBuf),
}

impl ListenAddress {
    /// Resolves a TCP address. The results are in the order of the resolver.
    ///
    /// # Errors
    /// Fails if the name cannot be resolved.
    pub fn resolve(text: &str) -> std::io::Result<Vec<SocketAddr>> {
        Ok(text.to_socket_addrs()?.collect())
    }
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return match path {
                "" => Err("unix: requires a path, such as unix:/run/lowtide.sock".to_owned()),
                path => Ok(Self::Unix(PathBuf::from(path))),
            };
        }
        let wrong = || {
            format!(
                "`{text}` is not a valid address: write HOST:PORT, such as 127.0.0.1:9797, or unix:PATH"
            )
        };
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        port.parse::<u16>().map_err(|_| wrong())?;
        match host {
            // Like the exporters of Prometheus.
            "" => Ok(Self::Tcp(format!("[::]:{port}"))),
            _ if host.contains(':') && !host.starts_with('[') => Err(wrong()),
            _ => Ok(Self::Tcp(text.to_owned())),
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => f.write_str(address),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listen_address_is_a_host_with_a_port_or_a_unix_socket_path() {
        let tcp = |text: &str| Ok(ListenAddress::Tcp(text.to_owned()));
        assert_eq!("127.0.0.1:9797".parse(), tcp("127.0.0.1:9797"));
        assert_eq!("[::1]:9797".parse(), tcp("[::1]:9797"));
        assert_eq!(":9797".parse(), tcp("[::]:9797"));
        let unix = |text: &str| Ok(ListenAddress::Unix(PathBuf::from(text)));
        assert_eq!("unix:/run/x.sock".parse(), unix("/run/x.sock"));
        assert_eq!("unix:///run/x.sock".parse(), unix("/run/x.sock"));
        for wrong in ["", "9797", "host", "host:port", "::1:9797", "unix:", "host:99999"] {
            assert!(wrong.parse::<ListenAddress>().is_err(), "{wrong}");
        }
    }
}
