//! The command-line options.

use std::net::SocketAddr;
use std::path::PathBuf;

/// The frameworks of the post.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framework {
    Axum,
    Actix,
    Salvo,
}

impl Framework {
    const ALL: [Self; 3] = [Self::Axum, Self::Actix, Self::Salvo];

    /// Returns its name, on the command line and in responses.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Axum => "axum",
            Self::Actix => "actix",
            Self::Salvo => "salvo",
        }
    }
}

/// The command-line options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Options {
    /// The framework that serves.
    pub(crate) framework: Framework,
    /// Whether `lowtide-tokio` keeps the memory low.
    pub(crate) keep: bool,
    /// A file that always contains the counters as JSON.
    pub(crate) figures: Option<PathBuf>,
    /// The address to listen on.
    pub(crate) address: SocketAddr,
}

const USAGE: &str =
    "usage: subject-frameworks axum|actix|salvo [--keep] [--figures FILE] [ADDRESS]";

impl Options {
    /// Parses the options.
    pub(crate) fn read(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let name = words.next().ok_or(format!("the framework is missing; {USAGE}"))?;
        let framework = Framework::ALL.into_iter().find(|f| f.name() == name);
        let mut options = Self {
            framework: framework.ok_or(format!("`{name}` is not a framework; {USAGE}"))?,
            keep: false,
            figures: None,
            address: SocketAddr::from(([127, 0, 0, 1], 3000)),
        };
        while let Some(word) = words.next() {
            if word == "--keep" {
                options.keep = true;
            } else if word == "--figures" {
                let file = words.next().ok_or(format!("--figures needs a file; {USAGE}"))?;
                options.figures = Some(file.into());
            } else {
                options.address = word
                    .parse()
                    .map_err(|_| format!("`{word}` is not a valid address; {USAGE}"))?;
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
        assert_eq!(read("salvo --figures f 0.0.0.0:80").unwrap().framework, Framework::Salvo);
        assert!(read("actix --keep").unwrap().keep);
        assert!(read("").unwrap_err().contains("usage"));
        assert!(read("rocket").unwrap_err().starts_with("`rocket` is not a framework"));
        assert!(read("axum --figures").unwrap_err().contains("needs a file"));
        assert!(read("axum --quick").unwrap_err().starts_with("`--quick` is not a valid address"));
    }
}
