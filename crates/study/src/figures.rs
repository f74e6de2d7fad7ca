//! Where a subject tells its own figures: an address that answers with a JSON object, or a file that
//! holds one.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use lowtide_record::v1::SubjectMetrics;

/// How long an answer may take.
const ATTEMPT: Duration = Duration::from_secs(1);
/// A file that is longer is no object of figures.
const MOST_READ: u64 = 1 << 20;

/// Where they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// An `http:` address.
    Url(String),
    /// A file, which may come later.
    File(PathBuf),
}

impl Source {
    /// Reads what was asked for.
    ///
    /// # Errors
    /// When it is an address that cannot be asked.
    pub fn of(text: &str) -> Result<Self, String> {
        if text.starts_with("https:") {
            return Err(format!("`{text}` would need TLS: give an http: address, or a file"));
        }
        if text.starts_with("http://") {
            return Ok(Self::Url(text.to_owned()));
        }
        if text.is_empty() {
            return Err("is empty: give an http: address, or a file".to_owned());
        }
        Ok(Self::File(text.into()))
    }

    /// Asks once.
    ///
    /// # Errors
    /// One clause that says why there are none.
    pub fn read(&self) -> Result<BTreeMap<String, f64>, String> {
        let text = match self {
            Self::Url(url) => {
                let answer = minreq::get(url).with_timeout(ATTEMPT.as_secs()).send();
                let answer = answer.map_err(|error| error.to_string())?;
                if answer.status_code >= 400 {
                    return Err(format!("it answered with status {}", answer.status_code));
                }
                answer.into_bytes()
            }
            Self::File(path) => {
                let mut bytes = Vec::new();
                let file = File::open(path).map_err(|error| error.to_string())?;
                file.take(MOST_READ).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
                bytes
            }
        };
        let value: serde_json::Value =
            serde_json::from_slice(&text).map_err(|_| "it is no JSON".to_owned())?;
        let numbers = SubjectMetrics::numbers_of(&value);
        if numbers.is_empty() { Err("there are no numbers in it".to_owned()) } else { Ok(numbers) }
    }
}

impl fmt::Display for Source {
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
    fn figures_are_read_from_a_file_and_what_is_none_is_told() {
        assert!(Source::of("https://h/").unwrap_err().contains("TLS"));
        let file = tempfile::NamedTempFile::new().unwrap();
        let source = Source::of(&file.path().display().to_string()).unwrap();
        assert_eq!(source.read().unwrap_err(), "it is no JSON");
        std::fs::write(file.path(), "{\"a\":{\"b\":1.5},\"c\":\"x\"}").unwrap();
        assert_eq!(source.read().unwrap(), BTreeMap::from([("a.b".to_owned(), 1.5)]));
        std::fs::write(file.path(), "{\"c\":\"x\"}").unwrap();
        assert_eq!(source.read().unwrap_err(), "there are no numbers in it");
    }
}
