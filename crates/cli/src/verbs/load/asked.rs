//! From the words of the command line to a plan.

use std::sync::Arc;
use std::time::Duration;

use lowtide_load::{HttpVersion, Plan, Rate, RequestTemplate, Scheme, Shape, Target};
use lowtide_model::bytes::parse_size;
use lowtide_model::threshold::Threshold;

use crate::args::{LoadArgs, duration};
use crate::exit::Failure;

/// How often a record and a terminal are told how far it is.
const SAMPLE_EVERY: Duration = Duration::from_millis(100);
/// How long bare connections are held, unless told otherwise.
const HOLD: Duration = Duration::from_secs(10);
/// Ticks count up to twice this.
const LONGEST: Duration = Duration::from_secs(5 * 3600);
/// The largest body that is made or read.
const LARGEST_BODY: u64 = 1 << 30;

/// Parses the thresholds.
pub(super) fn thresholds(args: &LoadArgs) -> Result<Vec<Threshold>, Failure> {
    let parse = |text: &String| {
        Threshold::parse_for_load(text)
            .map_err(|error| Failure::usage(format!("--fail-on: {error}")))
    };
    args.fail_on.iter().map(parse).collect()
}

/// Reads what was asked for.
pub(super) fn plan(args: &LoadArgs) -> Result<Plan, Failure> {
    let targets: Vec<Target> = args
        .urls
        .iter()
        .map(|url| url.parse().map_err(Failure::usage))
        .collect::<Result<_, _>>()?;
    let bare = targets.iter().filter(|target| target.scheme.is_bare()).count();
    if bare > 0 && bare < targets.len() {
        return Err(Failure::usage(
            "tcp: and tls: open bare connections, http: and https: send requests: give URLs of one kind",
        ));
    }
    check(args, bare > 0)?;
    let streams = args.streams.unwrap_or(1);
    let idle_close = match args.idle_close.as_str() {
        "never" => None,
        text => Some(bounded("--idle-close", text)?),
    };
    let timeout = bounded("--timeout", &args.timeout)?;
    if timeout.is_zero() {
        return Err(Failure::usage("--timeout: nothing comes in no time: give it at least 1ms"));
    }
    let shape = match bare > 0 {
        true => connections(args)?,
        false => requests(args, u64::from(args.connections) * u64::from(streams))?,
    };
    Ok(Plan {
        version: version(args, &targets),
        targets,
        connections: args.connections as usize,
        streams: streams as usize,
        shape,
        linger: bounded("--linger", &args.linger)?,
        timeout,
        idle_close,
        request: request_template(args)?,
        insecure: args.insecure,
        sample_interval: SAMPLE_EVERY,
    })
}

/// Refuses words that mean nothing together.
fn check(args: &LoadArgs, is_bare: bool) -> Result<(), Failure> {
    let only = |flag: &str, what: &str| {
        Err(Failure::usage(format!("{flag}: means something only for {what}: leave it out")))
    };
    if !is_bare {
        return match (&args.ramp, &args.hold) {
            (Some(_), _) => only("--ramp", "bare connections (tcp:HOST:PORT); see --rate"),
            (_, Some(_)) => only("--hold", "bare connections (tcp:HOST:PORT); see --linger"),
            _ if args.http1 && args.streams.is_some_and(|streams| streams > 1) => {
                Err(Failure::usage(
                    "-m: HTTP/1.1 takes one request at a time on a connection: ask for more connections \
                     with -c, or leave out --http1",
                ))
            }
            _ => Ok(()),
        };
    }
    let given = [
        ("-m", args.streams.is_some()),
        ("-n", args.requests.is_some()),
        ("-z", args.duration.is_some()),
        ("--rate", args.rate.is_some()),
        ("--between-rounds", args.between_rounds.is_some()),
        ("-X", args.method.is_some()),
        ("-H", !args.header.is_empty()),
        ("-d", args.data.is_some()),
        ("--body-size", args.body_size.is_some()),
        ("--http1", args.http1),
        ("--http2", args.http2),
    ];
    match given.iter().find(|(_, is_given)| *is_given) {
        Some((flag, _)) => only(flag, "requests; bare connections have -c, --ramp and --hold"),
        None => Ok(()),
    }
}

/// Streams are what only HTTP/2 has: who asks for several of them asks for it.
fn version(args: &LoadArgs, targets: &[Target]) -> HttpVersion {
    let plain = targets.iter().any(|target| target.scheme == Scheme::Http);
    match args.streams.is_some_and(|streams| streams > 1) {
        _ if args.http1 => HttpVersion::Http1,
        _ if args.http2 => HttpVersion::Http2,
        true if plain => HttpVersion::Http2,
        _ => HttpVersion::Auto,
    }
}

fn requests(args: &LoadArgs, burst: u64) -> Result<Shape, Failure> {
    let time = args.duration.as_deref().map(|text| lasting("-z", text, "-z 30s")).transpose()?;
    let rate = args.rate.as_deref().map(|text| rate("--rate", text)).transpose()?;
    let load = match (rate, time) {
        (None, None) => Shape::Burst(args.requests.unwrap_or(burst)),
        (None, Some(time)) => Shape::Sustain(time),
        (Some(rate), None) => Shape::Ramp { rate, count: args.requests.unwrap_or(burst) },
        (Some(rate), Some(time)) => Shape::Ramp { rate, count: rate.count_in(time) },
    };
    let text = args.between_rounds.as_deref();
    let trickle = text.map(|text| self::rate("--between-rounds", text)).transpose()?;
    rounds(args, vec![load], trickle)
}

fn connections(args: &LoadArgs) -> Result<Shape, Failure> {
    let count = u64::from(args.connections);
    let open = match &args.ramp {
        Some(text) => Shape::Ramp { rate: rate("--ramp", text)?, count },
        None => Shape::Burst(count),
    };
    let hold = args.hold.as_deref();
    let hold = hold.map_or(Ok(HOLD), |text| lasting("--hold", text, "--hold 10s"))?;
    rounds(args, vec![open, Shape::Hold(hold)], None)
}

fn rounds(args: &LoadArgs, round: Vec<Shape>, trickle: Option<Rate>) -> Result<Shape, Failure> {
    let time = bounded("--pause", &args.pause)?;
    let between = Box::new(Shape::Idle { time, trickle });
    Ok(Shape::Repeat { times: args.rounds, round, between })
}

fn request_template(args: &LoadArgs) -> Result<RequestTemplate, Failure> {
    let body = body(args)?;
    let has_body = args.data.is_some() || args.body_size.is_some();
    let method = args.method.as_deref().unwrap_or(if has_body { "POST" } else { "GET" });
    if !is_token(method) || method.eq_ignore_ascii_case("CONNECT") {
        return Err(Failure::usage(format!(
            "-X: `{method}` is no method that can be asked for: write GET, POST, PUT, …"
        )));
    }
    let headers = args.header.iter().map(|text| header(text)).collect::<Result<_, _>>()?;
    Ok(RequestTemplate { method: method.to_owned(), headers, body })
}

fn header(text: &str) -> Result<(String, String), Failure> {
    let wrong = || Failure::usage(format!("-H: `{text}` is no header: write 'NAME: VALUE'"));
    let (name, value) = text.split_once(':').ok_or_else(wrong)?;
    let value = value.trim();
    if !is_token(name) || value.chars().any(char::is_control) {
        return Err(wrong());
    }
    // The connection is ours: how it is kept and how a body ends is not the user's to say.
    const OURS: [&str; 4] = ["connection", "transfer-encoding", "upgrade", "keep-alive"];
    if OURS.iter().any(|ours| name.eq_ignore_ascii_case(ours)) {
        return Err(Failure::usage(format!(
            "-H: `{name}` belongs to the connection, which lowtide keeps itself: leave it out"
        )));
    }
    Ok((name.to_owned(), value.to_owned()))
}

/// A token of RFC 9110, section 5.6.2.
fn is_token(text: &str) -> bool {
    let is_one = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    !text.is_empty() && text.chars().all(is_one)
}

fn body(args: &LoadArgs) -> Result<Arc<[u8]>, Failure> {
    if let Some(text) = &args.body_size {
        let size =
            parse_size(text).map_err(|error| Failure::usage(format!("--body-size: {error}")))?;
        small_enough("--body-size", size)?;
        return Ok(b"lowtide\n".iter().copied().cycle().take(size as usize).collect());
    }
    let Some(data) = &args.data else { return Ok(Arc::default()) };
    let Some(path) = data.strip_prefix('@') else { return Ok(data.as_bytes().into()) };
    let unread = |error: std::io::Error| {
        Failure::usage(format!(
            "-d: {path} cannot be read ({error}): name another file behind the @"
        ))
    };
    small_enough("-d", std::fs::metadata(path).map_err(unread)?.len())?;
    Ok(std::fs::read(path).map_err(unread)?.into())
}

fn small_enough(flag: &str, size: u64) -> Result<(), Failure> {
    match size > LARGEST_BODY {
        true => Err(Failure::usage(format!("{flag}: a body may have 1 GiB at most"))),
        false => Ok(()),
    }
}

fn rate(flag: &str, text: &str) -> Result<Rate, Failure> {
    text.parse().map_err(|error| Failure::usage(format!("{flag}: {error}")))
}

/// Parses a duration that must not be zero.
fn lasting(flag: &str, text: &str, example: &str) -> Result<Duration, Failure> {
    let time = bounded(flag, text)?;
    match time.is_zero() {
        true => Err(Failure::usage(format!(
            "{flag}: the duration must be longer than {text}: write, for example, {example}"
        ))),
        false => Ok(time),
    }
}

fn bounded(flag: &str, text: &str) -> Result<Duration, Failure> {
    let time = duration(flag, text)?;
    match time > LONGEST {
        true => Err(Failure::usage(format!("{flag}: {text} is too long: give it 5h at most"))),
        false => Ok(time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Verb};
    use clap::Parser;

    fn plan_of(words: &str) -> Result<Plan, String> {
        let words = shlex::split(&format!("lowtide load {words}")).unwrap();
        match Cli::try_parse_from(words).unwrap().verb {
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
    fn streams_ask_for_http2_and_nothing_else_does_where_tls_can_choose() {
        let version = |words: &str| plan_of(words).unwrap().version;
        assert_eq!(version("http://x"), HttpVersion::Auto);
        assert_eq!(version("https://x -m 10"), HttpVersion::Auto);
        assert_eq!(version("http://x -m 10"), HttpVersion::Http2);
        assert_eq!(version("http://x --http2"), HttpVersion::Http2);
        assert_eq!(version("https://x --http1"), HttpVersion::Http1);
    }

    #[test]
    fn a_rate_and_a_time_make_a_number() {
        let shape = plan_of("http://x --rate 50/s -z 3s").unwrap().shape;
        assert_eq!(shape.count(), Some(150));
        assert_eq!(plan_of("tcp:x:1 -c 30 --ramp 10/s --hold 1s").unwrap().shape.count(), Some(30));
    }

    #[test]
    fn a_body_is_posted_and_may_come_from_a_file() {
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
    fn thresholds_are_figures_of_a_load() {
        let thresholds_of = |expression: &str| {
            let words = ["lowtide", "load", "http://x", "--fail-on", expression];
            match Cli::try_parse_from(words).unwrap().verb {
                Verb::Load(args) => thresholds(&args).map_err(|failure| failure.to_string()),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(
            thresholds_of("latency_s.p99>500ms").unwrap()[0].to_string(),
            "latency_s.p99>500ms"
        );
        let said = thresholds_of("p99>500ms").unwrap_err();
        assert!(
            said.starts_with("--fail-on: a load has no figure `p99`: it has requests, "),
            "{said}"
        );
    }

    #[test]
    fn what_means_nothing_is_told_with_what_would() {
        for (words, part) in [
            ("x", "does not begin with http:"),
            ("http://x tcp:x:1", "give URLs of one kind"),
            ("http://x --http1 -m 2", "ask for more connections with -c"),
            ("http://x --ramp 1/s", "see --rate"),
            ("tcp:x:1 -n 7", "-n: means something only for requests"),
            ("http://x --timeout 0", "give it at least 1ms"),
            ("http://x -z 9h", "give it 5h at most"),
            (
                "http://x -z 0s",
                "-z: the duration must be longer than 0s: write, for example, -z 30s",
            ),
            ("http://x -z 0ms --rate 5/s", "write, for example, -z 30s"),
            ("tcp:x:1 --hold 0s", "write, for example, --hold 10s"),
            ("tcp:x:1 --ramp 0/s", "--ramp: `0/s` is no rate"),
            ("http://x --rate fast", "--rate: `fast` is no rate"),
            ("http://x -H nothing", "write 'NAME: VALUE'"),
            ("http://x -H 'Connection: close'", "belongs to the connection"),
            ("http://x -X 'A B'", "is no method"),
            ("http://x -d @/no/such/file", "/no/such/file cannot be read"),
            ("http://x --body-size 2GiB", "1 GiB at most"),
            ("http://x --pause 10", "`10` has no unit"),
        ] {
            let said = plan_of(words).unwrap_err();
            assert!(said.contains(part), "{words}: {said}");
        }
    }
}
