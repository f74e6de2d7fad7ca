//! The metrics of a keeper.

use std::time::Duration;

/// The counts and readings of a keeper.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct Metrics {
    /// Open connections.
    pub connections: usize,
    /// Requests in flight. A request counts until hyper has taken the whole response body, which
    /// may be before the client receives it. An upgraded HTTP/1.1 connection counts as one request
    /// until it is closed. An upgraded HTTP/2 stream does not count.
    pub in_flight: usize,
    /// Pinned connections: they have drained, but must not be recycled, because a response of
    /// unknown length is in flight, a stream was upgraded, or they carry gRPC requests and
    /// [`Recycle::grpc`](crate::Recycle::grpc) is off.
    pub pinned_connections: usize,
    /// Memory that pinned connections keep, in bytes: an estimate.
    pub pinned_bytes: u64,
    /// HTTP/2 connections that count towards [`Recycle::max_at_once`](crate::Recycle::max_at_once).
    pub closing_connections: usize,
    /// Connections that were recycled.
    pub recycled_connections: u64,
    /// Connections that were closed before their graceful shutdown was complete: `max_drain` or
    /// `stall_timeout` had passed, or the client had sent no request.
    pub cut_connections: u64,
    /// Errors of `accept` that concern the process, not a connection: too many open files, for
    /// instance.
    pub accept_errors: u64,
    /// Connections that `serve` has refused.
    pub refused_connections: u64,
    /// Requests that `serve` has refused because there were too many.
    pub refused_requests: u64,
    /// Releases, [`Keeper::release_now`](crate::Keeper::release_now) included.
    pub releases: u64,
    /// Releases that have returned less than `release_above`. If most releases are among them, the
    /// free memory is fragmented, or it belongs to another allocator than the one that the keeper
    /// releases.
    pub unproductive_releases: u64,
    /// Bytes that all releases have returned.
    pub returned_bytes: u64,
    /// Duration of the last release, without the sweep.
    pub last_release: Duration,
    /// Longest time for which a release has held the lock of an arena since the keeper started.
    /// `None` unless [`Method::Parts`](crate::Method::Parts) was used.
    pub longest_lock: Option<Duration>,
    /// Workers that sweeps did not reach within their timeout.
    pub busy_workers: u64,
    /// Resident anonymous memory in bytes.
    pub anonymous_bytes: u64,
    /// Bytes that the program has allocated, if [`Tracked`](crate::Tracked) counts them.
    pub allocated_bytes: Option<u64>,
}

/// A metric: its name, its help text, whether it is a counter, and its value, if it is known.
type KeeperMetric = (&'static str, &'static str, bool, fn(&Metrics) -> Option<f64>);

/// Defines the metrics that are fields of [`Metrics`], by name, kind, field and help text.
macro_rules! metrics {
    ($($name:literal $kind:ident $field:ident $help:literal)*) => {
        [$(($name, $help, metrics!($kind), |m| m.$field.number())),*]
    };
    (counter) => { true };
    (gauge) => { false };
}

/// All metrics.
const METRICS: [KeeperMetric; 18] = metrics! {
    "connections" gauge connections "Open connections."
    "in_flight" gauge in_flight "Requests in flight."
    "pinned_connections" gauge pinned_connections "Wide connections that cannot be recycled now."
    "pinned_bytes" gauge pinned_bytes "Memory that pinned connections keep, an estimate."
    "closing_connections" gauge closing_connections
        "HTTP/2 connections that are shutting down to be recycled."
    "recycled_connections" counter recycled_connections "Connections that were recycled."
    "cut_connections" counter cut_connections
        "Connections that were closed before their graceful shutdown was complete."
    "accept_errors" counter accept_errors "Errors of accept that concern the process."
    "refused_connections" counter refused_connections "Connections that were refused."
    "refused_requests" counter refused_requests
        "Requests that were refused because there were too many."
    "releases" counter releases "Releases of memory."
    "unproductive_releases" counter unproductive_releases
        "Releases that have returned less than release_above."
    "returned_bytes" counter returned_bytes "Bytes that releases have returned."
    "last_release_s" gauge last_release "Duration of the last release."
    "longest_lock_s" gauge longest_lock "The longest time for which a release has locked an arena."
    "busy_workers" counter busy_workers "Busy workers that sweeps did not reach."
    "anonymous_bytes" gauge anonymous_bytes "Resident anonymous memory."
    "allocated_bytes" gauge allocated_bytes "Bytes that the program has allocated."
};

/// A value of a metric: times are in seconds.
trait MetricNumber {
    fn number(self) -> Option<f64>;
}

impl MetricNumber for u64 {
    fn number(self) -> Option<f64> {
        Some(self as f64)
    }
}

impl MetricNumber for usize {
    fn number(self) -> Option<f64> {
        Some(self as f64)
    }
}

impl MetricNumber for Duration {
    fn number(self) -> Option<f64> {
        Some(self.as_secs_f64())
    }
}

impl<N: MetricNumber> MetricNumber for Option<N> {
    fn number(self) -> Option<f64> {
        self?.number()
    }
}

impl Metrics {
    /// Returns the known metrics, each with its value.
    fn all(&self) -> impl Iterator<Item = (&'static str, &'static str, bool, f64)> {
        METRICS.iter().filter_map(|(name, help, is_counter, value)| {
            Some((*name, *help, *is_counter, value(self)?))
        })
    }

    /// Returns the metrics as a JSON object of numbers, as `lowtide study --figures` reads it.
    /// Times are in seconds, sizes in bytes. Unknown metrics are left out.
    pub fn to_json(&self) -> String {
        let fields: Vec<_> =
            self.all().map(|(name, _, _, value)| format!("\"{name}\":{value}")).collect();
        format!("{{{}}}", fields.join(","))
    }

    /// Returns the metrics in Prometheus' text format (`text/plain; version=0.0.4`), with names
    /// that begin with `lowtide_`.
    pub fn to_prometheus(&self) -> String {
        let mut text = String::new();
        for (name, help, is_counter, value) in self.all() {
            let (kind, end) = if is_counter { ("counter", "_total") } else { ("gauge", "") };
            let unit = match name.strip_suffix("_s") {
                Some(name) => format!("lowtide_{name}_seconds{end}"),
                None => format!("lowtide_{name}{end}"),
            };
            text += &format!("# HELP {unit} {help}\n# TYPE {unit} {kind}\n{unit} {value}\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metric_names_include_their_units() {
        let metrics = Metrics {
            connections: 8,
            returned_bytes: 2_000_000_000,
            last_release: Duration::from_millis(250),
            ..Metrics::default()
        };
        let json = metrics.to_json();
        assert!(json.starts_with("{\"connections\":8,\"in_flight\":0,"), "{json}");
        assert!(json.contains("\"last_release_s\":0.25,") && json.ends_with('}'), "{json}");
        assert!(!json.contains("allocated_bytes"), "{json}");
        let text = metrics.to_prometheus();
        assert!(text.contains("\nlowtide_returned_bytes_total 2000000000\n"), "{text}");
        assert!(text.contains("# TYPE lowtide_last_release_seconds gauge\n"), "{text}");
    }
}
