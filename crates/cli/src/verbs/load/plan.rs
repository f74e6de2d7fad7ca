//! Builds the plan of a load from the command line.

use std::sync::Arc;
use std::time::Duration;

use lowtide_load::{HttpVersion, LoadSpec, LoadTarget, RequestTemplate, Scheme, Shape};

use crate::args::{LoadArgs, load_values};
use crate::failure::exit::Failure;

/// Interval of samples for records and the terminal.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);
/// Default of `--hold` for bare connections.
const DEFAULT_HOLD: Duration = Duration::from_secs(10);

/// Builds the plan.
///
/// # Errors
///
/// Fails if a value is invalid, or options contradict each other.
pub(super) fn plan(args: &LoadArgs) -> Result<LoadSpec, Failure> {
    let targets = &args.urls;
    let bare = targets.iter().filter(|target| target.scheme.is_bare()).count();
    if bare > 0 && bare < targets.len() {
        return Err(Failure::usage(
            "tcp: and tls: open bare connections, http: and https: send requests: use URLs of one kind",
        ));
    }
    check(args, bare > 0)?;
    let streams = args.streams.unwrap_or(1);
    let shape = match bare > 0 {
        true => connections(args),
        false => requests(args, u64::from(args.connections) * u64::from(streams)),
    };
    Ok(LoadSpec {
        version: version(args, targets),
        targets: targets.clone(),
        connections: args.connections as usize,
        streams: streams as usize,
        shape,
        linger: if bare > 0 { Duration::ZERO } else { args.hold.unwrap_or_default() },
        timeout: args.timeout,
        idle_close: args.idle_close.0,
        request: request_template(args)?,
        insecure: args.insecure,
        sample_interval: SAMPLE_INTERVAL,
    })
}

/// Rejects options that contradict each other or the kind of target.
fn check(args: &LoadArgs, is_bare: bool) -> Result<(), Failure> {
    let only = |flag: &str, what: &str| {
        Err(Failure::usage(format!("{flag}: applies only to {what}: omit it")))
    };
    if !is_bare {
        return match args.http1 && args.streams.is_some_and(|streams| streams > 1) {
            true => Err(Failure::usage(
                "-m: HTTP/1.1 handles one request at a time on a connection: use more connections \
                 with -c, or omit --http1",
            )),
            false => Ok(()),
        };
    }
    let given = [
        ("-m", args.streams.is_some()),
        ("-n", args.requests.is_some()),
        ("-z", args.duration.is_some()),
        ("--between-rounds", args.between_rounds.is_some()),
        ("-X", args.method.is_some()),
        ("-H", !args.header.is_empty()),
        ("-d", args.data.is_some()),
        ("--body-size", args.body_size.is_some()),
        ("--http1", args.http1),
        ("--http2", args.http2),
    ];
    match given.iter().find(|(_, is_given)| *is_given) {
        Some((flag, _)) => only(flag, "requests; bare connections have -c, --rate and --hold"),
        None => Ok(()),
    }
}

/// Returns the HTTP version. More than one stream requires HTTP/2, which without TLS must be
/// requested.
fn version(args: &LoadArgs, targets: &[LoadTarget]) -> HttpVersion {
    let plain = targets.iter().any(|target| target.scheme == Scheme::Http);
    match args.streams.is_some_and(|streams| streams > 1) {
        _ if args.http1 => HttpVersion::Http1,
        _ if args.http2 => HttpVersion::Http2,
        true if plain => HttpVersion::Http2,
        _ => HttpVersion::Auto,
    }
}

/// Returns the shape of a load of requests. `burst` is their default number.
fn requests(args: &LoadArgs, burst: u64) -> Shape {
    let load = match (args.rate, args.duration) {
        (None, None) => Shape::Burst(args.requests.unwrap_or(burst)),
        (None, Some(time)) => Shape::Sustain(time),
        (Some(rate), None) => Shape::Ramp { rate, count: args.requests.unwrap_or(burst) },
        (Some(rate), Some(time)) => Shape::Ramp { rate, count: rate.count_in(time) },
    };
    rounds(args, vec![load])
}

/// Returns the shape of a load of bare connections.
fn connections(args: &LoadArgs) -> Shape {
    let count = u64::from(args.connections);
    let open = match args.rate {
        Some(rate) => Shape::Ramp { rate, count },
        None => Shape::Burst(count),
    };
    rounds(args, vec![open, Shape::Hold(args.hold.unwrap_or(DEFAULT_HOLD))])
}

/// Repeats a round, with pauses and their background requests in between.
fn rounds(args: &LoadArgs, round: Vec<Shape>) -> Shape {
    let between = Box::new(Shape::Idle { time: args.pause, trickle: args.between_rounds });
    Shape::Repeat { times: args.rounds, round, between }
}

fn request_template(args: &LoadArgs) -> Result<RequestTemplate, Failure> {
    let body = body(args)?;
    let has_body = args.data.is_some() || args.body_size.is_some();
    let method = args.method.as_deref().unwrap_or(if has_body { "POST" } else { "GET" });
    Ok(RequestTemplate { method: method.to_owned(), headers: args.header.clone(), body })
}

fn body(args: &LoadArgs) -> Result<Arc<[u8]>, Failure> {
    if let Some(size) = args.body_size {
        return Ok(b"lowtide\n".iter().copied().cycle().take(size as usize).collect());
    }
    let Some(data) = &args.data else { return Ok(Arc::default()) };
    let Some(path) = data.strip_prefix('@') else { return Ok(data.as_bytes().into()) };
    let unread = |error: std::io::Error| {
        Failure::usage(format!(
            "-d: {path} cannot be read ({error}): name another file after the @"
        ))
    };
    let size = std::fs::metadata(path).map_err(unread)?.len();
    load_values::check_body_size(size).map_err(|error| Failure::usage(format!("-d: {error}")))?;
    Ok(std::fs::read(path).map_err(unread)?.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Verb};
    use clap::Parser;

    fn plan_of(words: &str) -> Result<LoadSpec, String> {
        let words = shlex::split(&format!("lowtide load {words}")).unwrap();
        match Cli::try_parse_from(words).map_err(|error| error.to_string())?.verb {
            Verb::Load(args) => plan(&args).map_err(|failure| failure.to_string()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn one_burst_fills_all_streams_of_all_connections() {
        let plan = plan_of("'http://x:1/?expire=20000' -m 125000 --rounds 3").unwrap();
        assert_eq!(
            (plan.connections, plan.streams, plan.version),
            (8, 125_000, HttpVersion::Http2)
        );
        assert_eq!(plan.shape.count(), Some(3_000_000));
        assert_eq!(plan.idle_close, Some(Duration::from_secs(1)));
    }

    #[test]
    fn streams_select_http2_unless_tls_negotiates_the_version() {
        let version = |words: &str| plan_of(words).unwrap().version;
        assert_eq!(version("http://x"), HttpVersion::Auto);
        assert_eq!(version("https://x -m 10"), HttpVersion::Auto);
        assert_eq!(version("http://x -m 10"), HttpVersion::Http2);
        assert_eq!(version("http://x --http2"), HttpVersion::Http2);
        assert_eq!(version("https://x --http1"), HttpVersion::Http1);
    }

    #[test]
    fn a_rate_and_a_duration_give_a_count() {
        let shape = plan_of("http://x --rate 50/s -z 3s").unwrap().shape;
        assert_eq!(shape.count(), Some(150));
        assert_eq!(plan_of("tcp:x:1 -c 30 --rate 10/s --hold 1s").unwrap().shape.count(), Some(30));
    }

    #[test]
    fn a_body_makes_post_the_default_method() {
        let request = |words: &str| plan_of(&format!("http://x {words}")).unwrap().request;
        assert_eq!(request("").method, "GET");
        assert_eq!(
            (request("-d a=b").method.as_str(), &*request("-d a=b").body),
            ("POST", &b"a=b"[..])
        );
        assert_eq!(request("--body-size 20 -X PUT").body.len(), 20);
        let headers = request("-H 'X-One: 1' -H 'two:'").headers;
        assert_eq!(headers, [("X-One".into(), "1".into()), ("two".into(), String::new())]);
    }

    #[test]
    fn thresholds_accept_only_metrics_of_a_load() {
        let thresholds_of = |expression: &str| {
            let words = ["lowtide", "load", "http://x", "--fail-on", expression];
            match Cli::try_parse_from(words).map_err(|error| error.to_string())?.verb {
                Verb::Load(args) => Ok(args.fail_on),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(
            thresholds_of("latency_s.p99>500ms").unwrap()[0].to_string(),
            "latency_s.p99>500ms"
        );
        let said: String = thresholds_of("p99>500ms").unwrap_err();
        assert!(
            said.contains("--fail-on: a load has no metric `p99`: it has requests, "),
            "{said}"
        );
    }

    #[test]
    fn an_invalid_option_is_an_error_with_a_correction() {
        for (words, part) in [
            ("x", "does not begin with http:"),
            ("http://x tcp:x:1", "use URLs of one kind"),
            ("http://x --http1 -m 2", "use more connections with -c"),
            ("tcp:x:1 -n 7", "-n: applies only to requests"),
            ("http://x --timeout 0", "use at least 1ms"),
            ("http://x -z 9h", "use at most 5h"),
            (
                "http://x -z 0s",
                "-z: the duration must be longer than 0s: write, for example, -z 30s",
            ),
            ("http://x -z 0ms --rate 5/s", "write, for example, -z 30s"),
            ("tcp:x:1 --hold 0s", "write, for example, --hold 10s"),
            ("tcp:x:1 --rate 0/s", "--rate: `0/s` is not a valid rate"),
            ("http://x --rate fast", "--rate: `fast` is not a valid rate"),
            ("http://x -H nothing", "write 'NAME: VALUE'"),
            ("http://x -H 'Connection: close'", "controls the connection"),
            ("http://x -X 'A B'", "is not a supported method"),
            ("http://x -d @/no/such/file", "/no/such/file cannot be read"),
            ("http://x --body-size 2GiB", "at most 1 GiB"),
            ("http://x --pause 10", "`10` has no unit"),
        ] {
            let said = plan_of(words).unwrap_err();
            assert!(said.contains(part), "{words}: {said}");
        }
    }
}
