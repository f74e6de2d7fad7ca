//! Limits of a server.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioTimer};
use hyper_util::server::conn::auto;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

use crate::clamp::clamp;
use crate::keeper::shared::lock;

/// hyper's minimum for the read buffer of HTTP/1.1.
const MIN_BUFFER: usize = 8 << 10;
/// Minimum time between two checks of an idle connection.
const MIN_IDLE: Duration = Duration::from_millis(10);
/// Bounds of the kernel for the time of `SO_KEEPALIVE`.
const MIN_KEEPALIVE: Duration = Duration::from_secs(1);
const MAX_KEEPALIVE: Duration = Duration::from_secs(32_767);

/// The response to a request above [`Limits::max_requests`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Overload {
    /// 503 Service Unavailable, with `Retry-After: 1`.
    #[default]
    Unavailable,
    /// On HTTP/2, the stream is reset with REFUSED_STREAM, which reports that the request was not
    /// processed: many clients retry automatically. On HTTP/1.1, the response is 503.
    RefusedStream,
}

/// Limits of a server.
///
/// They do not bound the time of a request body: use
/// `tower_http::timeout::RequestBodyTimeoutLayer`.
///
/// ```
/// use lowtide_tokio::Limits;
///
/// let limits = Limits::new().max_connections(10_000).max_connections_per_address(100).max_requests(5_000);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub(super) max_connections: usize,
    pub(super) max_connections_per_address: usize,
    pub(super) max_requests: usize,
    pub(super) overload: Overload,
    pub(super) max_concurrent_streams: u32,
    pub(super) first_byte_timeout: Duration,
    pub(super) header_timeout: Duration,
    pub(super) idle_timeout: Duration,
    pub(super) user_timeout: Duration,
    pub(super) ping_interval: Option<Duration>,
    pub(super) keepalive: Option<Duration>,
    pub(super) nodelay: bool,
    pub(super) http1_max_buf_size: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 50_000,
            max_connections_per_address: usize::MAX,
            max_requests: usize::MAX,
            overload: Overload::default(),
            max_concurrent_streams: 200,
            first_byte_timeout: Duration::from_secs(10),
            header_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(300),
            user_timeout: Duration::from_secs(60),
            ping_interval: None,
            keepalive: Some(Duration::from_secs(60)),
            nodelay: false,
            http1_max_buf_size: 64 << 10,
        }
    }
}

impl Limits {
    /// Returns the default limits.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the maximum number of open connections, upgraded ones included. At the limit, the
    /// server stops accepting: new connections wait in the kernel's backlog. Default: 50,000. The
    /// limit of open files should be higher.
    #[must_use]
    pub fn max_connections(mut self, count: usize) -> Self {
        self.max_connections = count;
        self
    }

    /// Sets the maximum number of open connections of one IPv4 address, or of one /64 of IPv6. A
    /// further connection is reset before it has a task or a buffer. Behind a proxy, all
    /// connections have the address of the proxy. Default: no limit.
    #[must_use]
    pub fn max_connections_per_address(mut self, count: usize) -> Self {
        self.max_connections_per_address = count;
        self
    }

    /// Sets the maximum number of requests in flight on all connections of the keeper, WebSockets
    /// on HTTP/1.1 included. Further requests get the response of [`Limits::overload`]. Default: no
    /// limit.
    #[must_use]
    pub fn max_requests(mut self, count: usize) -> Self {
        self.max_requests = count;
        self
    }

    /// Sets the response to a request above [`Limits::max_requests`]. Default:
    /// [`Overload::Unavailable`].
    #[must_use]
    pub fn overload(mut self, overload: Overload) -> Self {
        self.overload = overload;
        self
    }

    /// Sets the maximum number of concurrent streams of one HTTP/2 connection
    /// (`SETTINGS_MAX_CONCURRENT_STREAMS`). Default: 200.
    #[must_use]
    pub fn max_concurrent_streams(mut self, count: u32) -> Self {
        self.max_concurrent_streams = count;
        self
    }

    /// Sets the maximum time until the first byte of a connection. Until then, the connection has
    /// no buffer. Default: 10 s.
    #[must_use]
    pub fn first_byte_timeout(mut self, time: Duration) -> Self {
        self.first_byte_timeout = clamp(time);
        self
    }

    /// Sets the maximum time from the first byte of a connection to the end of the headers of its
    /// first request that reaches the app. Default: 30 s.
    #[must_use]
    pub fn header_timeout(mut self, time: Duration) -> Self {
        self.header_timeout = clamp(time);
        self
    }

    /// Sets the time after which an idle connection is closed: it has no request in flight, or its
    /// client does not read the responses. It is checked at this interval, so it is closed after
    /// twice the time at the latest. The headers of a further request must arrive within the same
    /// time. A connection with an upgraded HTTP/2 stream is never idle.
    ///
    /// Behind a load balancer, set it longer than the idle timeout of the load balancer (Google
    /// Cloud: 600 s). Otherwise the server closes connections that the load balancer is about to
    /// use. Default: 5 min.
    #[must_use]
    pub fn idle_timeout(mut self, time: Duration) -> Self {
        self.idle_timeout = clamp(time).max(MIN_IDLE);
        self
    }

    /// Sets the maximum time for which sent data may stay unacknowledged, or unsent because the
    /// client does not read (`TCP_USER_TIMEOUT`). Then the kernel closes the connection. Zero is
    /// the default of the system. Default: 1 min.
    #[must_use]
    pub fn user_timeout(mut self, time: Duration) -> Self {
        self.user_timeout = clamp(time);
        self
    }

    /// Sets the time without data after which the kernel checks whether the client's host is still
    /// there (`SO_KEEPALIVE`). `None` switches it off. Default: 1 min.
    #[must_use]
    pub fn keepalive(mut self, time: Option<Duration>) -> Self {
        self.keepalive = time.map(|time| clamp(time).clamp(MIN_KEEPALIVE, MAX_KEEPALIVE));
        self
    }

    /// Sets whether small writes are sent at once (`TCP_NODELAY`). At a high rate of small
    /// responses, this costs CPU time, 10 % in lowtide's bench. Default: false, as in
    /// `axum::serve`.
    #[must_use]
    pub fn nodelay(mut self, is_on: bool) -> Self {
        self.nodelay = is_on;
        self
    }

    /// Sets the interval of PINGs on HTTP/2, which is also the maximum time for an answer: a client
    /// whose host lives but that does not answer is closed. hyper then takes a lock for each frame.
    /// Default: `None`, no PINGs.
    #[must_use]
    pub fn ping_interval(mut self, time: Option<Duration>) -> Self {
        self.ping_interval = time.map(clamp);
        self
    }

    /// Sets the maximum size of the read buffer on HTTP/1.1 in bytes, which is also the maximum
    /// size of the headers. Less than 8 KiB counts as 8 KiB. A connection keeps its buffer, and
    /// hyper's own limit is 408 KiB. Default: 64 KiB.
    #[must_use]
    pub fn http1_max_buf_size(mut self, bytes: usize) -> Self {
        self.http1_max_buf_size = bytes;
        self
    }
}

impl Limits {
    /// Applies the limits that the kernel checks. The connection works without them.
    pub(super) fn apply_to_socket(&self, stream: &TcpStream) {
        let socket = SockRef::from(stream);
        let _ = socket.set_tcp_user_timeout(Some(self.user_timeout));
        if let Some(time) = self.keepalive {
            let _ = socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(time));
        }
        if self.nodelay {
            let _ = socket.set_tcp_nodelay(true);
        }
    }

    /// Returns whether the read buffer of HTTP/1.1 is so small that it need not be returned.
    pub(super) fn has_bounded_buffer(&self) -> bool {
        self.http1_max_buf_size <= 128 << 10
    }

    /// Applies the limits that hyper checks.
    pub(super) fn apply(&self, http: &mut auto::Builder<TokioExecutor>) {
        // `Watch::idle` bounds the times of headers, by one timer per connection and not per
        // request.
        http.http1().max_buf_size(self.http1_max_buf_size.max(MIN_BUFFER));
        http.http2()
            .timer(TokioTimer::new())
            // For WebSockets, as `axum::serve` does.
            .enable_connect_protocol()
            .max_concurrent_streams(self.max_concurrent_streams);
        if let Some(time) = self.ping_interval {
            http.http2().keep_alive_interval(time).keep_alive_timeout(time);
        }
    }
}

/// The number of open connections of each address.
#[derive(Debug, Clone, Default)]
pub(super) struct Addresses {
    counts: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl Addresses {
    /// Counts a connection until the guard is dropped; `None` if its address already has `max`
    /// connections.
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

/// Guard of a counted connection.
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

/// Returns the address by which a client is counted. An IPv6 client usually has a whole /64.
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
    fn a_connection_that_ends_makes_room_for_another_from_its_address() {
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
    fn an_ipv6_64_network_is_one_client_and_a_mapped_address_counts_as_ipv4() {
        let same = |one, other| key_of(address(one)) == key_of(address(other));
        assert!(same("2001:db8:1:2:3::4", "2001:db8:1:2:ffff::1"));
        assert!(!same("2001:db8:1:2::1", "2001:db8:1:3::1"));
        assert!(same("::ffff:192.0.2.1", "192.0.2.1"));
        assert!(!same("::ffff:192.0.2.1", "::ffff:192.0.2.2"));
    }
}
