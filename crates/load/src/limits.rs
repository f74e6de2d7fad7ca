//! What this machine permits: open files, memory and ports; told before anything starts.

use std::net::IpAddr;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

use lowtide_model::bytes::Human;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What a load needs of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// Connections that are open at once.
    pub connections: u64,
    /// Whether they speak TLS.
    pub tls: bool,
    /// Requests in flight at once.
    pub in_flight: u64,
    /// Whether it all goes to this very machine, version 4.
    pub loopback: bool,
}

/// What this machine has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    /// Files that may be open at once.
    pub files: u64,
    /// Memory that is at hand, where that is known.
    pub memory_bytes: Option<u64>,
    /// The ports that connections get by themselves.
    pub ports: RangeInclusive<u16>,
}

/// What was asked for cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// Too few files may be open.
    #[error(
        "{connections} connections need {needed} open files, and {limit} are permitted at most: \
         raise the limit (as root: ulimit -Hn {needed}; for a service: LimitNOFILE={needed})"
    )]
    Files {
        /// What was asked for.
        connections: u64,
        /// The files that takes.
        needed: u64,
        /// The hard limit.
        limit: u64,
    },
    /// Too little memory is at hand.
    #[error(
        "{what} need some {} of memory here, and {} are at hand: ask for fewer", Human(*needed), Human(*at_hand)
    )]
    Memory {
        /// What was asked for.
        what: String,
        /// The bytes that takes.
        needed: u64,
        /// The bytes that there are.
        at_hand: u64,
    },
    /// One address has too few ports.
    #[error(
        "{connections} connections to one address need as many ports, and this machine gives out \
         {ports}: widen the range (as root: sysctl -w net.ipv4.ip_local_port_range='1024 65535')"
    )]
    Ports {
        /// What was asked for.
        connections: u64,
        /// The ports that there are.
        ports: u64,
    },
}

/// Files that are open beside the connections: standard ones, the loop's, a record, name look-ups.
const OTHER_FILES: u64 = 24;
/// What a request in flight takes, blocks that are half used included.
const BYTES_PER_REQUEST: u64 = 64;
/// What a connection takes here, with its buffers.
const BYTES_PER_CONNECTION: u64 = 4 << 10;
/// What TLS takes on top.
const BYTES_PER_TLS: u64 = 40 << 10;
/// A part of the ports that may be in use already, or wait for their time to pass.
const PORTS_IN_USE: u64 = 10;
/// Source addresses of 127.0.0.0/8 that are used at most.
const MOST_SOURCES: u64 = 250;

impl Need {
    /// Checks what is needed against what there is, and says from how many addresses of its own a load
    /// to this very machine has to come.
    ///
    /// # Errors
    /// What is lacking, with the numbers.
    pub fn check(&self, given: &Given) -> Result<Sources, LimitError> {
        let connections = self.connections;
        let needed = connections + OTHER_FILES;
        if needed > given.files {
            return Err(LimitError::Files { connections, needed, limit: given.files });
        }
        let bytes = self.bytes();
        if let Some(at_hand) = given.memory_bytes.filter(|at_hand| bytes > *at_hand) {
            let what = match self.in_flight {
                0 => format!("{connections} connections"),
                n => format!("{n} requests in flight over {connections} connections"),
            };
            return Err(LimitError::Memory { what, needed: bytes, at_hand });
        }
        let all = u64::from(given.ports.end().saturating_sub(*given.ports.start())) + 1;
        let ports = all - all / PORTS_IN_USE;
        let sources = connections.div_ceil(ports.max(1));
        if sources > 1 && (!self.loopback || sources > MOST_SOURCES) {
            return Err(LimitError::Ports { connections, ports: all });
        }
        Ok(Sources { count: sources.max(1) as u8 })
    }

    fn bytes(&self) -> u64 {
        let each = BYTES_PER_CONNECTION + if self.tls { BYTES_PER_TLS } else { 0 };
        self.in_flight
            .saturating_mul(BYTES_PER_REQUEST)
            .saturating_add(self.connections.saturating_mul(each))
    }
}

/// The addresses of its own that a load comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sources {
    count: u8,
}

impl Sources {
    /// The address that the connection of a number comes from; nothing where the system may choose.
    pub fn of(self, number: usize) -> Option<IpAddr> {
        (self.count > 1).then(|| {
            let turn = (number % usize::from(self.count)) as u8;
            IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1 + turn))
        })
    }
}

/// Raises the limit of open files as far as this user may, and says how far that is.
pub fn raise_files() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum.unwrap_or(u64::MAX),
        Err(_) => limit.current.unwrap_or(u64::MAX),
    }
}

/// How far this user may raise the limit of open files.
pub fn permitted_files() -> u64 {
    getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX)
}

/// The ports that the kernel gives to connections that ask for none.
pub fn ports() -> RangeInclusive<u16> {
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

    const GIVEN: Given =
        Given { files: 200_000, memory_bytes: Some(1 << 30), ports: 32_768..=60_999 };

    fn need(connections: u64, in_flight: u64) -> Need {
        Need { connections, tls: false, in_flight, loopback: true }
    }

    #[test]
    fn what_is_lacking_is_told_with_its_numbers() {
        let said = |need: Need, given: &Given| need.check(given).unwrap_err().to_string();
        let few = Given { files: 1024, ..GIVEN };
        assert_eq!(
            said(need(10_000, 0), &few),
            "10000 connections need 10024 open files, and 1024 are permitted at most: raise the limit \
             (as root: ulimit -Hn 10024; for a service: LimitNOFILE=10024)"
        );
        let little = Given { memory_bytes: Some(16 << 20), ..GIVEN };
        assert_eq!(
            said(need(8, 1_000_000), &little),
            "1000000 requests in flight over 8 connections need some 61.1 MiB of memory here, and \
             16.0 MiB are at hand: ask for fewer"
        );
        let elsewhere = Need { loopback: false, ..need(30_000, 0) };
        assert!(said(elsewhere, &GIVEN).contains("this machine gives out 28232: widen the range"));
    }

    #[test]
    fn a_million_requests_over_eight_connections_fit_into_little() {
        assert!(need(8, 1_000_000).check(&GIVEN).is_ok());
        assert!(need(8, 1_000_000).check(&Given { memory_bytes: None, ..GIVEN }).is_ok());
    }

    #[test]
    fn more_connections_than_ports_come_from_several_addresses_of_this_machine() {
        let sources = need(100_000, 0).check(&GIVEN).unwrap();
        assert_eq!(sources.of(0).unwrap().to_string(), "127.0.0.1");
        assert_eq!(sources.of(3).unwrap().to_string(), "127.0.0.4");
        assert_eq!(sources.of(4).unwrap().to_string(), "127.0.0.1");
        assert_eq!(need(8, 0).check(&GIVEN).unwrap().of(3), None);
    }

    #[test]
    fn the_range_of_ports_is_read_and_the_limit_of_files_raised() {
        assert_eq!(parse_ports("32768\t60999\n"), Some(32_768..=60_999));
        assert_eq!(parse_ports("many"), None);
        assert!(raise_files() > 0);
    }
}
