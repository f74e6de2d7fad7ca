//! The command-line options.

use std::net::SocketAddr;
use std::path::PathBuf;

/// The command-line options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Options {
    /// Whether the runtime is replaced when it has no tasks.
    pub(crate) refresh: bool,
    /// The acts of `lowtide-tokio`, if any.
    pub(crate) acts: Option<Acts>,
    /// A file that always contains the counters as JSON.
    pub(crate) figures: Option<PathBuf>,
    /// The address to listen on.
    pub(crate) address: SocketAddr,
}

/// The acts of `lowtide-tokio` after a burst.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Acts {
    /// Whether wide connections that have drained are recycled.
    pub(crate) recycle: bool,
    /// Whether every worker frees the cache of its thread.
    pub(crate) sweep: bool,
    /// Whether free memory is released.
    pub(crate) release: bool,
}

impl Acts {
    /// Parses names that are separated by commas.
    fn parse(text: &str) -> Option<Self> {
        let mut acts = Self::default();
        for name in text.split(',') {
            match name {
                "recycle" => acts.recycle = true,
                "sweep" => acts.sweep = true,
                "release" => acts.release = true,
                _ => return None,
            }
        }
        Some(acts)
    }
}

const USAGE: &str = "usage: subject-million-streams [--refresh] [--keep recycle,sweep,release] [--figures FILE] [ADDRESS]";

impl Options {
    /// Parses the options.
    pub(crate) fn read(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            refresh: false,
            acts: None,
            figures: None,
            address: SocketAddr::from(([127, 0, 0, 1], 3000)),
        };
        while let Some(word) = words.next() {
            match word.as_str() {
                "--refresh" => options.refresh = true,
                "--keep" => {
                    let acts = words.next().and_then(|acts| Acts::parse(&acts));
                    options.acts = Some(acts.ok_or(format!("--keep needs acts; {USAGE}"))?);
                }
                "--figures" => {
                    let file = words.next().ok_or(format!("--figures needs a file; {USAGE}"))?;
                    options.figures = Some(file.into());
                }
                address => {
                    options.address = address
                        .parse()
                        .map_err(|_| format!("`{address}` is not a valid address; {USAGE}"))?;
                }
            }
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_option_is_an_error_with_the_usage() {
        let read = |text: &str| Options::read(text.split_whitespace().map(str::to_owned));
        assert!(read("--refresh --figures f 0.0.0.0:80").unwrap().refresh);
        let acts = read("--keep recycle,release").unwrap().acts.unwrap();
        assert!(acts.recycle && acts.release && !acts.sweep);
        assert!(read("--keep all").unwrap_err().starts_with("--keep needs acts"));
        assert!(read("--figures").unwrap_err().contains("usage"));
        assert!(read("--quick").unwrap_err().starts_with("`--quick` is not a valid address"));
    }
}
