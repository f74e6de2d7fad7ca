//! Checks before a load starts that this machine permits it: open files, memory and ports.

use std::net::IpAddr;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

use lowtide_model::bytes::Human;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The resources that a load requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Required {
    /// Connections that are open at once.
    pub(crate) connections: u64,
    /// Whether the connections use TLS.
    pub(crate) tls: bool,
    /// Requests in flight at once.
    pub(crate) in_flight: u64,
    /// Whether all targets are IPv4 loopback addresses of this machine.
    pub(crate) loopback: bool,
}

/// The resources that this machine has available.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Available {
    /// Files that may be open at once.
    pub files: u64,
    /// Available memory in bytes, if known.
    pub memory_bytes: Option<u64>,
    /// The range from which the kernel assigns local ports.
    pub ports: RangeInclusive<u16>,
}

/// A resource that the load requires and this machine lacks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// Too few files may be open.
    #[error(
        "{connections} connections need {needed} open files, but at most {limit} are permitted: \
         raise the limit (as root: ulimit -Hn {needed}; for a service: LimitNOFILE={needed})"
    )]
    Files {
        /// The requested connections.
        connections: u64,
        /// The open files that they require.
        needed: u64,
        /// The hard limit.
        limit: u64,
    },
    /// Too little memory is available.
    #[error(
        "{what} need about {} of memory here, but {} are available: use fewer", Human(*needed), Human(*available)
    )]
    Memory {
        /// The requested connections and requests, in words.
        what: String,
        /// The bytes that they require.
        needed: u64,
        /// The available bytes.
        available: u64,
    },
    /// One source address has too few ports.
    #[error(
        "{connections} connections to one address need one port each, but this machine provides only \
         {ports} ports: widen the range (as root: sysctl -w net.ipv4.ip_local_port_range='1024 65535')"
    )]
    Ports {
        /// The requested connections.
        connections: u64,
        /// The size of the local port range.
        ports: u64,
    },
}

/// Files that are open besides the connections: standard streams, the poller, a record, name
/// lookups.
const OTHER_OPEN_FILES: u64 = 24;
/// Memory per request in flight in bytes, partly used blocks included.
const BYTES_PER_REQUEST: u64 = 64;
/// Memory per connection in bytes, buffers included.
const BYTES_PER_CONNECTION: u64 = 4 << 10;
/// Additional memory per TLS connection in bytes.
const BYTES_PER_TLS: u64 = 40 << 10;
/// One in this many local ports is assumed to be in use already, or in TIME_WAIT.
const PORTS_IN_USE_DIVISOR: u64 = 10;
/// Maximum number of source addresses in 127.0.0.0/8.
const MAX_SOURCE_ADDRESSES: u64 = 250;

impl Required {
    /// Compares the requirements with the available resources. Returns the source addresses that
    /// the load uses: a load to this machine may exceed the ports of one address.
    ///
    /// # Errors
    /// Returns the missing resource, with the numbers.
    pub(crate) fn check(&self, available: &Available) -> Result<SourceAddresses, LimitError> {
        let connections = self.connections;
        let needed = connections + OTHER_OPEN_FILES;
        if needed > available.files {
            return Err(LimitError::Files { connections, needed, limit: available.files });
        }
        let needed = self.memory_bytes();
        if let Some(available) = available.memory_bytes.filter(|bytes| needed > *bytes) {
            let what = match self.in_flight {
                0 => format!("{connections} connections"),
                n => format!("{n} requests in flight over {connections} connections"),
            };
            return Err(LimitError::Memory { what, needed, available });
        }
        let all = u64::from(available.ports.end().saturating_sub(*available.ports.start())) + 1;
        let ports = all - all / PORTS_IN_USE_DIVISOR;
        let sources = connections.div_ceil(ports.max(1));
        if sources > 1 && (!self.loopback || sources > MAX_SOURCE_ADDRESSES) {
            return Err(LimitError::Ports { connections, ports: all });
        }
        Ok(SourceAddresses { count: sources.max(1) as u8 })
    }

    fn memory_bytes(&self) -> u64 {
        let each = BYTES_PER_CONNECTION + if self.tls { BYTES_PER_TLS } else { 0 };
        self.in_flight
            .saturating_mul(BYTES_PER_REQUEST)
            .saturating_add(self.connections.saturating_mul(each))
    }
}

/// The loopback addresses that the connections of a load bind to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SourceAddresses {
    count: u8,
}

impl SourceAddresses {
    /// Returns the source address of the connection with this number, or `None` if the kernel
    /// chooses it.
    pub(crate) fn address_of(self, connection: usize) -> Option<IpAddr> {
        (self.count > 1).then(|| {
            let turn = (connection % usize::from(self.count)) as u8;
            IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1 + turn))
        })
    }
}

/// The limits on open files of this process, as `getrlimit` returns them: `None` is unlimited.
#[derive(Debug, Clone, Copy)]
struct OpenFileLimits {
    soft: Option<u64>,
    hard: Option<u64>,
}

impl OpenFileLimits {
    fn read() -> Self {
        let limits = getrlimit(Resource::Nofile);
        Self { soft: limits.current, hard: limits.maximum }
    }

    /// Raises the soft limit to the hard one, if permitted. Returns the soft limit now in force.
    fn raise(self) -> u64 {
        let raised = Rlimit { current: self.hard, maximum: self.hard };
        let soft = match setrlimit(Resource::Nofile, raised) {
            Ok(()) => self.hard,
            Err(_) => self.soft,
        };
        soft.unwrap_or(u64::MAX)
    }
}

/// Raises the soft limit on open files to the hard limit. Returns the limit now in force.
pub fn raise_open_files() -> u64 {
    OpenFileLimits::read().raise()
}

/// Returns the hard limit on open files, which is as far as [`raise_open_files`] can raise the soft
/// one.
pub fn max_open_files() -> u64 {
    OpenFileLimits::read().hard.unwrap_or(u64::MAX)
}

/// Returns the range from which the kernel assigns ports to connections that name none.
pub fn ephemeral_ports() -> RangeInclusive<u16> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    text.ok().and_then(|text| parse_ports(&text)).unwrap_or(32_768..=60_999)
}

fn parse_ports(text: &str) -> Option<RangeInclusive<u16>> {
    let mut words = text.split_whitespace().map(str::parse);
    Some(words.next()?.ok()?..=words.next()?.ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AVAILABLE: Available =
        Available { files: 200_000, memory_bytes: Some(1 << 30), ports: 32_768..=60_999 };

    fn required(connections: u64, in_flight: u64) -> Required {
        Required { connections, tls: false, in_flight, loopback: true }
    }

    #[test]
    fn an_insufficient_resource_is_an_error_with_required_and_available_amounts() {
        let said = |required: Required, available: &Available| {
            required.check(available).unwrap_err().to_string()
        };
        let few = Available { files: 1024, ..AVAILABLE };
        assert_eq!(
            said(required(10_000, 0), &few),
            "10000 connections need 10024 open files, but at most 1024 are permitted: raise the limit \
             (as root: ulimit -Hn 10024; for a service: LimitNOFILE=10024)"
        );
        let little = Available { memory_bytes: Some(16 << 20), ..AVAILABLE };
        assert_eq!(
            said(required(8, 1_000_000), &little),
            "1000000 requests in flight over 8 connections need about 61.1 MiB of memory here, but \
             16.0 MiB are available: use fewer"
        );
        let elsewhere = Required { loopback: false, ..required(30_000, 0) };
        assert!(
            said(elsewhere, &AVAILABLE)
                .contains("this machine provides only 28232 ports: widen the range")
        );
    }

    #[test]
    fn a_million_requests_over_eight_connections_pass_the_check() {
        assert!(required(8, 1_000_000).check(&AVAILABLE).is_ok());
        assert!(
            required(8, 1_000_000).check(&Available { memory_bytes: None, ..AVAILABLE }).is_ok()
        );
    }

    #[test]
    fn more_connections_than_ports_use_several_loopback_source_addresses() {
        let sources = required(100_000, 0).check(&AVAILABLE).unwrap();
        assert_eq!(sources.address_of(0).unwrap().to_string(), "127.0.0.1");
        assert_eq!(sources.address_of(3).unwrap().to_string(), "127.0.0.4");
        assert_eq!(sources.address_of(4).unwrap().to_string(), "127.0.0.1");
        assert_eq!(required(8, 0).check(&AVAILABLE).unwrap().address_of(3), None);
    }

    #[test]
    fn the_port_range_is_parsed_and_the_open_file_limit_is_raised() {
        assert_eq!(parse_ports("32768\t60999\n"), Some(32_768..=60_999));
        assert_eq!(parse_ports("many"), None);
        assert!(raise_open_files() > 0);
    }
}
