//! What is asked for.

use std::sync::Arc;
use std::time::Duration;

use crate::http_choice::HttpVersion;
use crate::limits::Required;
use crate::shape::Shape;
use crate::target::Target;

/// What is asked for.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Where it goes: one for each round, in turn; at least one, all HTTP or all bare connections.
    pub targets: Vec<Target>,
    /// Connections; at least one.
    pub connections: usize,
    /// Requests in flight on each at most; at least one. HTTP/1.1 has one.
    pub streams: usize,
    /// What starts when. Of bare connections, no more in a round than `connections`.
    pub shape: Shape,
    /// For so long, connections stay open after the last round.
    pub linger: Duration,
    /// A request that has not been answered after this time, and a connection that has not been made,
    /// has failed.
    pub timeout: Duration,
    /// In a pause, a connection on which nothing has been for so long is closed; `None`: never.
    pub idle_close: Option<Duration>,
    /// The request, repeated for each target.
    pub request: RequestTemplate,
    /// The version of HTTP.
    pub version: HttpVersion,
    /// Whether any certificate is trusted.
    pub insecure: bool,
    /// How often the observer sees how far it is.
    pub sample_interval: Duration,
}

/// The parts of a request that do not depend on the target.
#[derive(Debug, Clone)]
pub struct RequestTemplate {
    /// The method.
    pub method: String,
    /// Headers.
    pub headers: Vec<(String, String)>,
    /// The body; without one, empty.
    pub body: Arc<[u8]>,
}

impl Plan {
    /// Whether nothing is asked for over the connections.
    pub fn is_bare(&self) -> bool {
        self.targets.iter().any(|target| target.scheme.is_bare())
    }

    /// Returns the resources that the load requires of this machine.
    pub fn required(&self) -> Required {
        let connections = self.connections as u64;
        let in_flight = match self.is_bare() {
            true => 0,
            false => {
                let most = connections.saturating_mul(self.streams as u64);
                self.shape.count().map_or(most, |count| count.min(most))
            }
        };
        let is_loopback =
            |target: &Target| target.host == "localhost" || target.host.starts_with("127.");
        Required {
            connections,
            tls: self.targets.iter().any(|target| target.scheme.is_tls()),
            in_flight,
            loopback: self.targets.iter().all(is_loopback),
        }
    }
}
