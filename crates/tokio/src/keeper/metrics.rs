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

/// One metric: its name, its help text, whether it is a counter, and its value.
type Metric = (&'static str, &'static str, bool, f64);

impl Metrics {
    fn all(&self) -> impl Iterator<Item = Metric> {
        let count = |number: u64| number as f64;
        let metrics: [Option<Metric>; 18] = [
            Some(("connections", "Open connections.", false, self.connections as f64)),
            Some(("in_flight", "Requests in flight.", false, self.in_flight as f64)),
            Some((
                "pinned_connections",
                "Wide connections that cannot be recycled now.",
                false,
                self.pinned_connections as f64,
            )),
            Some((
                "pinned_bytes",
                "Memory that pinned connections keep, an estimate.",
                false,
                count(self.pinned_bytes),
            )),
            Some((
                "closing_connections",
                "HTTP/2 connections that are shutting down to be recycled.",
                false,
                self.closing_connections as f64,
            )),
            Some((
                "recycled_connections",
                "Connections that were recycled.",
                true,
                count(self.recycled_connections),
            )),
            Some((
                "cut_connections",
                "Connections that were closed before their graceful shutdown was complete.",
                true,
                count(self.cut_connections),
            )),
            Some((
                "accept_errors",
                "Errors of accept that concern the process.",
                true,
                count(self.accept_errors),
            )),
            Some((
                "refused_connections",
                "Connections that were refused.",
                true,
                count(self.refused_connections),
            )),
            Some((
                "refused_requests",
                "Requests that were refused because there were too many.",
                true,
                count(self.refused_requests),
            )),
            Some(("releases", "Releases of memory.", true, count(self.releases))),
            Some((
                "unproductive_releases",
                "Releases that have returned less than release_above.",
                true,
                count(self.unproductive_releases),
            )),
            Some((
                "returned_bytes",
                "Bytes that releases have returned.",
                true,
                count(self.returned_bytes),
            )),
            Some((
                "last_release_s",
                "Duration of the last release.",
                false,
                self.last_release.as_secs_f64(),
            )),
            self.longest_lock.map(|time| {
                let help = "The longest time for which a release has locked an arena.";
                ("longest_lock_s", help, false, time.as_secs_f64())
            }),
            Some((
                "busy_workers",
                "Busy workers that sweeps did not reach.",
                true,
                count(self.busy_workers),
            )),
            Some((
                "anonymous_bytes",
                "Resident anonymous memory.",
                false,
                count(self.anonymous_bytes),
            )),
            self.allocated_bytes.map(|bytes| {
                ("allocated_bytes", "Bytes that the program has allocated.", false, count(bytes))
            }),
        ];
        metrics.into_iter().flatten()
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
