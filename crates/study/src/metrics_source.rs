//! The source of a subject's own metrics: an address that answers with a JSON object, or a file
//! with one.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use lowtide_record::v1::SubjectMetrics;

/// Timeout of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of bytes that are read from a file: an object of metrics is not longer.
const MAX_READ: u64 = 1 << 20;

/// The source of metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetricsSource {
    /// An `http:` address.
    Url(String),
    /// A file, which may be created later.
    File(PathBuf),
}

impl MetricsSource {
    /// Parses the value of `--figures`.
    ///
    /// # Errors
    /// Fails if it is an address that requires TLS.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.starts_with("https:") {
            return Err(format!(
                "`{text}` requires TLS, which is not supported: use an http: address, or a file"
            ));
        }
        if text.starts_with("http://") {
            return Ok(Self::Url(text.to_owned()));
        }
        if text.is_empty() {
            return Err("is empty: use an http: address, or a file".to_owned());
        }
        Ok(Self::File(text.into()))
    }

    /// Reads the metrics once.
    ///
    /// # Errors
    /// Fails if there are no metrics. The error is one clause with the reason.
    pub fn read(&self) -> Result<BTreeMap<String, f64>, String> {
        let text = match self {
            Self::Url(url) => {
                let answer = minreq::get(url).with_timeout(REQUEST_TIMEOUT.as_secs()).send();
                let answer = answer.map_err(|error| error.to_string())?;
                if answer.status_code >= 400 {
                    return Err(format!("it responded with status {}", answer.status_code));
                }
                answer.into_bytes()
            }
            Self::File(path) => {
                let mut bytes = Vec::new();
                let file = File::open(path).map_err(|error| error.to_string())?;
                file.take(MAX_READ).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
                bytes
            }
        };
        let value: serde_json::Value =
            serde_json::from_slice(&text).map_err(|_| "invalid JSON".to_owned())?;
        let numbers = SubjectMetrics::numbers_of(&value);
        if numbers.is_empty() { Err("it contains no numbers".to_owned()) } else { Ok(numbers) }
    }
}

impl fmt::Display for MetricsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(url) => f.write_str(url),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_read_from_a_file_and_invalid_content_is_an_error() {
        assert!(MetricsSource::parse("https://h/").unwrap_err().contains("TLS"));
        let file = tempfile::NamedTempFile::new().unwrap();
        let source = MetricsSource::parse(&file.path().display().to_string()).unwrap();
        assert_eq!(source.read().unwrap_err(), "invalid JSON");
        std::fs::write(file.path(), "{\"a\":{\"b\":1.5},\"c\":\"x\"}").unwrap();
        assert_eq!(source.read().unwrap(), BTreeMap::from([("a.b".to_owned(), 1.5)]));
        std::fs::write(file.path(), "{\"c\":\"x\"}").unwrap();
        assert_eq!(source.read().unwrap_err(), "it contains no numbers");
    }
}
