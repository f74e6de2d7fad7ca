//! The description of a load.

use std::sync::Arc;
use std::time::Duration;

use crate::http_choice::HttpVersion;
use crate::limits::{Available, LimitError, Required};
use crate::shape::Shape;
use crate::target::LoadTarget;

/// A load: targets, connections, shape and requests.
#[derive(Debug, Clone)]
pub struct LoadSpec {
    /// The targets of the rounds, in turn. At least one; all HTTP or all bare connections.
    pub targets: Vec<LoadTarget>,
    /// The number of connections; at least one.
    pub connections: usize,
    /// Maximum number of requests in flight on each connection; at least one. HTTP/1.1 has one.
    pub streams: usize,
    /// When requests or bare connections start. A round has at most `connections` bare connections.
    pub shape: Shape,
    /// How long connections stay open after the last round.
    pub linger: Duration,
    /// The time after which a request without a response, and a connection that is not established,
    /// has failed.
    pub timeout: Duration,
    /// The time after which an idle connection is closed in a pause; `None`: never.
    pub idle_close: Option<Duration>,
    /// The request, repeated for each target.
    pub request: RequestTemplate,
    /// The requested version of HTTP.
    pub version: HttpVersion,
    /// Whether to trust any certificate.
    pub insecure: bool,
    /// The interval at which the observer gets the state.
    pub sample_interval: Duration,
}

/// The parts of a request that do not depend on the target.
#[derive(Debug, Clone)]
pub struct RequestTemplate {
    /// The method.
    pub method: String,
    /// Headers.
    pub headers: Vec<(String, String)>,
    /// The body; empty if there is none.
    pub body: Arc<[u8]>,
}

impl LoadSpec {
    /// Returns whether the connections are bare, without requests.
    pub fn is_bare(&self) -> bool {
        self.targets.iter().any(|target| target.scheme.is_bare())
    }

    /// Checks that this machine permits the load.
    ///
    /// # Errors
    /// Returns the missing resource.
    pub fn check(&self, available: &Available) -> Result<(), LimitError> {
        self.required().check(available).map(|_| ())
    }

    /// Returns the resources that the load requires of this machine.
    pub(crate) fn required(&self) -> Required {
        let connections = self.connections as u64;
        let in_flight = match self.is_bare() {
            true => 0,
            false => {
                let most = connections.saturating_mul(self.streams as u64);
                self.shape.count().map_or(most, |count| count.min(most))
            }
        };
        let is_loopback =
            |target: &LoadTarget| target.host == "localhost" || target.host.starts_with("127.");
        Required {
            connections,
            tls: self.targets.iter().any(|target| target.scheme.is_tls()),
            in_flight,
            loopback: self.targets.iter().all(is_loopback),
        }
    }
}
