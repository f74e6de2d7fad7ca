//! What a server permits its clients.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::keeper::shared::lock;

/// The answer to a request that is one too many.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Overload {
    /// 503 Service Unavailable, with `Retry-After: 1`.
    #[default]
    Unavailable,
    /// HTTP/2's REFUSED_STREAM, which says that the request was not processed: many clients send it again by themselves.
    /// On HTTP/1.1 it is 503.
    RefusedStream,
}

/// What a server permits its clients. Start from [`Limits::default`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Limits {
    /// Maximum number of open connections. When it is reached, no connection is accepted: the kernel holds new ones back.
    /// Default: 50,000. The limit of open files should be higher.
    pub connections: usize,
    /// Maximum number of open connections of one address, or of one /64 of IPv6. A further one is reset before it has a
    /// task or a buffer. Default: as many as there may be in all.
    pub per_address: usize,
    /// Maximum number of requests in flight, in all. Default: no limit.
    pub requests: usize,
    /// The answer to a further one.
    pub overload: Overload,
    /// Maximum number of requests at once on one connection of HTTP/2. Default: 200.
    pub streams: u32,
    /// Time until the first byte. Until then, a connection has no buffer. Default: 10 s.
    pub first_byte: Duration,
    /// Time for the headers of a request, and from the first byte to the first request. Default: 30 s.
    pub headers: Duration,
    /// Time after which a connection without requests in flight is closed, at the latest after twice that. Default: 5 min.
    pub idle: Duration,
    /// Time for which a client may leave what it was sent unread (`TCP_USER_TIMEOUT`). Default: 1 min.
    pub unread: Duration,
    /// Interval of the PINGs on HTTP/2, and the time for an answer. A client that does not answer is gone. `None` sends
    /// none. Default: 1 min.
    pub ping: Option<Duration>,
    /// Maximum size of the read buffer on HTTP/1.1, in bytes, at least 8 KiB. It also limits the size of the headers.
    /// hyper's default is 408 KiB, and a connection keeps it. Default: 64 KiB.
    pub http1_buffer: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 50_000,
            per_address: usize::MAX,
            requests: usize::MAX,
            overload: Overload::default(),
            streams: 200,
            first_byte: Duration::from_secs(10),
            headers: Duration::from_secs(30),
            idle: Duration::from_secs(300),
            unread: Duration::from_secs(60),
            ping: Some(Duration::from_secs(60)),
            http1_buffer: 64 << 10,
        }
    }
}

/// The number of open connections of each address.
#[derive(Debug, Clone, Default)]
pub(super) struct Addresses {
    counts: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl Addresses {
    /// Counts a connection until the guard is dropped; `None` if its address has `max` already.
    pub(super) fn enter(&self, address: IpAddr, max: usize) -> Option<Entered> {
        let key = key_of(address);
        let mut counts = lock(&self.counts);
        let count = counts.entry(key).or_default();
        if *count >= max {
            if *count == 0 {
                counts.remove(&key);
            }
            return None;
        }
        *count += 1;
        Some(Entered { addresses: self.clone(), key })
    }
}

/// A connection that is counted.
#[derive(Debug)]
pub(super) struct Entered {
    addresses: Addresses,
    key: IpAddr,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut counts = lock(&self.addresses.counts);
        if let Some(count) = counts.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.key);
            }
        }
    }
}

/// Returns the address by which a client is counted. A client of IPv6 usually has a whole /64.
fn key_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            const HOST: u128 = u64::MAX as u128;
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !HOST))
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_may_enter_again_when_one_of_its_connections_has_left() {
        let addresses = Addresses::default();
        let first = addresses.enter(address("192.0.2.1"), 2);
        let _second = addresses.enter(address("192.0.2.1"), 2).unwrap();
        assert!(addresses.enter(address("192.0.2.1"), 2).is_none());
        assert!(addresses.enter(address("192.0.2.2"), 2).is_some());
        drop(first);
        assert!(addresses.enter(address("192.0.2.1"), 2).is_some());
        drop(_second);
        assert!(lock(&addresses.counts).is_empty());
        assert!(addresses.enter(address("192.0.2.1"), 0).is_none());
        assert!(lock(&addresses.counts).is_empty());
    }

    #[test]
    fn addresses_of_one_network_of_ipv6_count_as_one_and_mapped_ones_as_ipv4() {
        let same = |one, other| key_of(address(one)) == key_of(address(other));
        assert!(same("2001:db8:1:2:3::4", "2001:db8:1:2:ffff::1"));
        assert!(!same("2001:db8:1:2::1", "2001:db8:1:3::1"));
        assert!(same("::ffff:192.0.2.1", "192.0.2.1"));
        assert!(!same("::ffff:192.0.2.1", "::ffff:192.0.2.2"));
    }
}
