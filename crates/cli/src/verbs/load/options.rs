//! Parsers for the values of options, each from text to a typed value. They have the form of a clap
//! `value_parser`; [`value`] adds the name of the option to an error.

use std::time::Duration;

use lowtide_analysis::threshold::Threshold;
use lowtide_load::Rate;
use lowtide_model::bytes::parse_size;
use lowtide_model::duration::parse_duration;

use crate::failure::exit::Failure;

/// Maximum of a duration: about half the range of the clock of a load.
const MAX_DURATION: Duration = Duration::from_secs(5 * 3600);
/// Maximum size of a request body in bytes.
const MAX_BODY_BYTES: u64 = 1 << 30;
/// Headers that lowtide sends itself, because they control the connection.
const CONNECTION_HEADERS: [&str; 4] = ["connection", "transfer-encoding", "upgrade", "keep-alive"];

/// Parses the value of an option. An error names the option.
pub(super) fn value<T>(
    option: &str,
    text: &str,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<T, Failure> {
    parse(text).map_err(|error| Failure::usage(format!("{option}: {error}")))
}

/// Parses the value of an option that may be absent.
pub(super) fn optional<T>(
    option: &str,
    text: Option<&str>,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Option<T>, Failure> {
    text.map(|text| value(option, text, parse)).transpose()
}

/// Parses a duration of at most [`MAX_DURATION`].
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text).map_err(|error| error.to_string())?;
    match time > MAX_DURATION {
        true => Err(format!("{text} is too long: use at most 5h")),
        false => Ok(time),
    }
}

/// Returns a parser of durations that rejects zero. `example` is a valid use of the option.
pub(super) fn duration_above_zero(example: &str) -> impl Fn(&str) -> Result<Duration, String> {
    move |text| {
        let time = duration(text)?;
        match time.is_zero() {
            true => Err(format!(
                "the duration must be longer than {text}: write, for example, {example}"
            )),
            false => Ok(time),
        }
    }
}

/// Parses a timeout, which must not be zero.
pub(super) fn timeout(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    match time.is_zero() {
        true => Err("must be longer than 0: use at least 1ms".to_owned()),
        false => Ok(time),
    }
}

/// Parses when to close idle connections; `never` is `None`.
pub(super) fn idle_close(text: &str) -> Result<Option<Duration>, String> {
    match text {
        "never" => Ok(None),
        text => duration(text).map(Some),
    }
}

/// Parses a rate.
pub(super) fn rate(text: &str) -> Result<Rate, String> {
    text.parse().map_err(|error: lowtide_load::RateError| error.to_string())
}

/// Parses a method: a token, but not `CONNECT`, which does not send a request to the target.
pub(super) fn method(text: &str) -> Result<String, String> {
    if !is_token(text) || text.eq_ignore_ascii_case("CONNECT") {
        return Err(format!("`{text}` is not a supported method: write GET, POST, PUT, …"));
    }
    Ok(text.to_owned())
}

/// Parses a header into name and value. Rejects headers that control the connection.
pub(super) fn header(text: &str) -> Result<(String, String), String> {
    let invalid = || format!("`{text}` is not a valid header: write 'NAME: VALUE'");
    let (name, value) = text.split_once(':').ok_or_else(invalid)?;
    let value = value.trim();
    if !is_token(name) || value.chars().any(char::is_control) {
        return Err(invalid());
    }
    if CONNECTION_HEADERS.iter().any(|header| name.eq_ignore_ascii_case(header)) {
        return Err(format!(
            "`{name}` controls the connection, which lowtide manages itself: omit it"
        ));
    }
    Ok((name.to_owned(), value.to_owned()))
}

/// Returns whether a text is a token (RFC 9110, section 5.6.2).
fn is_token(text: &str) -> bool {
    let is_token_char = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    !text.is_empty() && text.chars().all(is_token_char)
}

/// Parses the size of a body in bytes.
pub(super) fn body_size(text: &str) -> Result<u64, String> {
    let size = parse_size(text).map_err(|error| error.to_string())?;
    check_body_size(size)?;
    Ok(size)
}

/// Checks that a body is not larger than [`MAX_BODY_BYTES`].
pub(super) fn check_body_size(size: u64) -> Result<(), String> {
    match size > MAX_BODY_BYTES {
        true => Err("a body may have at most 1 GiB".to_owned()),
        false => Ok(()),
    }
}

/// Parses a threshold on a metric of a load.
pub(super) fn threshold(text: &str) -> Result<Threshold, String> {
    Threshold::parse_for_load(text).map_err(|error| error.to_string())
}
