//! Parsers for the values of the flags of `load`. [`named`] adds the flag to an error.

use std::time::Duration;

use lowtide_analysis::threshold::Threshold;
use lowtide_load::{LoadTarget, Rate};
use lowtide_model::bytes::parse_size;
use lowtide_model::duration::parse_duration;

use super::values::InvalidValue;

/// Maximum of a duration: about half the range of the clock of a load.
const MAX_DURATION: Duration = Duration::from_secs(5 * 3600);
/// Maximum size of a request body in bytes.
const MAX_BODY_BYTES: u64 = 1 << 30;
/// Headers that lowtide sends itself, because they control the connection.
const CONNECTION_HEADERS: [&str; 4] = ["connection", "transfer-encoding", "upgrade", "keep-alive"];

/// Returns a parser of the value of a flag. An error names the flag.
pub(crate) fn named<T>(
    flag: &'static str,
    parse: impl Fn(&str) -> Result<T, String> + Clone,
) -> impl Fn(&str) -> Result<T, InvalidValue> + Clone {
    move |text| parse(text).map_err(|error| InvalidValue(format!("{flag}: {error}")))
}

/// Parses the address of a server.
pub(crate) fn target(text: &str) -> Result<LoadTarget, InvalidValue> {
    text.parse().map_err(|error: lowtide_load::LoadTargetError| InvalidValue(error.to_string()))
}

/// Time after which idle connections are closed in a pause; `None`: they are kept open.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IdleClose(pub(crate) Option<Duration>);

/// Parses a duration of at most [`MAX_DURATION`].
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text).map_err(|error| error.to_string())?;
    match time > MAX_DURATION {
        true => Err(format!("{text} is too long: use at most 5h")),
        false => Ok(time),
    }
}

/// Returns a parser of durations that rejects zero. `example` is a valid use of the option.
pub(crate) fn duration_above_zero(
    example: &'static str,
) -> impl Fn(&str) -> Result<Duration, String> + Clone {
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
pub(crate) fn timeout(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    match time.is_zero() {
        true => Err("must be longer than 0: use at least 1ms".to_owned()),
        false => Ok(time),
    }
}

/// Parses when to close idle connections.
pub(crate) fn idle_close(text: &str) -> Result<IdleClose, String> {
    match text {
        "never" => Ok(IdleClose(None)),
        text => Ok(IdleClose(Some(duration(text)?))),
    }
}

/// Parses a rate.
pub(crate) fn rate(text: &str) -> Result<Rate, String> {
    text.parse().map_err(|error: lowtide_load::RateError| error.to_string())
}

/// Parses a method: a token, but not `CONNECT`, which does not send a request to the target.
pub(crate) fn method(text: &str) -> Result<String, String> {
    if !is_token(text) || text.eq_ignore_ascii_case("CONNECT") {
        return Err(format!("`{text}` is not a supported method: write GET, POST, PUT, …"));
    }
    Ok(text.to_owned())
}

/// Parses a header into name and value. Rejects headers that control the connection.
pub(crate) fn header(text: &str) -> Result<(String, String), String> {
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
pub(crate) fn body_size(text: &str) -> Result<u64, String> {
    let size = parse_size(text).map_err(|error| error.to_string())?;
    check_body_size(size)?;
    Ok(size)
}

/// Checks that a body is not larger than [`MAX_BODY_BYTES`].
pub(crate) fn check_body_size(size: u64) -> Result<(), String> {
    match size > MAX_BODY_BYTES {
        true => Err("a body may have at most 1 GiB".to_owned()),
        false => Ok(()),
    }
}

/// Parses a threshold on a metric of a load.
pub(crate) fn threshold(text: &str) -> Result<Threshold, String> {
    Threshold::parse_for_load(text).map_err(|error| error.to_string())
}
