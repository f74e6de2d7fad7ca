//! Conditions for a subject to be ready for the load.

use std::net::{TcpStream, ToSocketAddrs};
use std::str::FromStr;
use std::time::Duration;

use regex_lite::Regex;
use thiserror::Error;

use lowtide_model::duration::parse_duration;

/// A condition for the subject to be ready.
#[derive(Debug, Clone)]
pub enum Ready {
    /// A TCP port that accepts connections.
    Tcp(String),
    /// An address that answers a GET with a status below 400.
    Http(String),
    /// A line that it prints.
    Log(Regex),
    /// A time after its start.
    After(Duration),
}

/// The reason why a condition is invalid.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ReadyError {
    /// The kind is unknown.
    #[error("`{0}` is not a valid condition: use tcp:HOST:PORT, http:URL, log:REGEX or after:5s")]
    UnknownKind(String),
    /// The text after the kind is invalid.
    #[error("`{text}`: {reason}")]
    Malformed {
        /// The whole text.
        text: String,
        /// The reason.
        reason: String,
    },
}

impl FromStr for Ready {
    type Err = ReadyError;

    fn from_str(text: &str) -> Result<Self, ReadyError> {
        let malformed = |reason: String| ReadyError::Malformed { text: text.to_owned(), reason };
        let (kind, rest) =
            text.split_once(':').ok_or_else(|| ReadyError::UnknownKind(text.to_owned()))?;
        match kind {
            "tcp" => match rest.rsplit_once(':') {
                Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                    Ok(Self::Tcp(rest.to_owned()))
                }
                _ => {
                    Err(malformed("tcp: requires HOST:PORT, such as tcp:127.0.0.1:8080".to_owned()))
                }
            },
            // `http:http://…`, and the common short form `http://…`.
            "http" if rest.starts_with("//") => Ok(Self::Http(text.to_owned())),
            "http" if rest.starts_with("http://") => Ok(Self::Http(rest.to_owned())),
            "http" | "https" => Err(malformed(
                "only plain http:// is supported; for TLS, use tcp:HOST:PORT".to_owned(),
            )),
            "log" => Regex::new(rest).map(Self::Log).map_err(|e| malformed(e.to_string())),
            "after" => parse_duration(rest).map(Self::After).map_err(|e| malformed(e.to_string())),
            _ => Err(ReadyError::UnknownKind(text.to_owned())),
        }
    }
}

impl std::fmt::Display for Ready {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "tcp:{address}"),
            Self::Http(url) => write!(f, "http:{url}"),
            Self::Log(regex) => write!(f, "log:{regex}"),
            Self::After(time) => write!(f, "after:{}ms", time.as_millis()),
        }
    }
}

/// Timeout of one attempt.
const ATTEMPT: Duration = Duration::from_secs(1);

impl Ready {
    /// Checks once from outside. Returns the reason if the subject is not ready. Conditions that
    /// cannot be checked from outside are never ready here.
    pub fn attempt(&self) -> Result<(), String> {
        match self {
            Self::Tcp(address) => connect(address),
            Self::Http(url) => get(url),
            Self::Log(_) => Err("the line was not printed".to_owned()),
            Self::After(_) => Err("the time has not passed".to_owned()),
        }
    }
}

fn connect(address: &str) -> Result<(), String> {
    let addresses = address.to_socket_addrs().map_err(|e| e.to_string())?;
    let mut last = "the name has no address".to_owned();
    for address in addresses {
        match TcpStream::connect_timeout(&address, ATTEMPT) {
            Ok(_) => return Ok(()),
            Err(error) => last = error.to_string(),
        }
    }
    Err(last)
}

fn get(url: &str) -> Result<(), String> {
    let answer = minreq::get(url).with_timeout(ATTEMPT.as_secs()).send();
    match answer {
        Ok(answer) if answer.status_code < 400 => Ok(()),
        Ok(answer) => Err(format!("it responded with status {}", answer.status_code)),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    #[test]
    fn documented_readiness_conditions_are_parsed() {
        for text in ["tcp:127.0.0.1:80", "http:http://h/x", "log:listening on \\d+", "after:5000ms"]
        {
            assert_eq!(text.parse::<Ready>().unwrap().to_string(), text);
        }
        assert!(matches!("http://h/".parse(), Ok(Ready::Http(url)) if url == "http://h/"));
    }

    #[test]
    fn an_invalid_readiness_condition_is_an_error() {
        for text in
            ["", "tcp", "tcp:80", "tcp:h:99999", "https://h/", "log:(", "after:5", "udp:h:1"]
        {
            assert!(text.parse::<Ready>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_port_is_ready_when_it_accepts_connections() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        assert_eq!(Ready::Tcp(address.clone()).attempt(), Ok(()));
        drop(listener);
        assert!(Ready::Tcp(address).attempt().is_err());
    }

    #[test]
    fn a_url_is_ready_when_it_returns_a_success_status() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            for status in ["503 Busy", "204 No Content"] {
                let mut stream = listener.accept().unwrap().0;
                let _ = stream.read(&mut [0; 1024]);
                let head =
                    format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
                stream.write_all(head.as_bytes()).unwrap();
            }
        });
        let ready = Ready::Http(url);
        assert_eq!(ready.attempt(), Err("it responded with status 503".to_owned()));
        assert_eq!(ready.attempt(), Ok(()));
        server.join().unwrap();
    }
}
