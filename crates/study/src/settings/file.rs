//! A study file: reads it, and replaces its parameters and placeholders.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::Settings;

/// The reason why a study file is invalid.
#[derive(Debug, Error)]
pub enum FileError {
    /// It could not be read.
    #[error("{}: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: std::io::Error,
    },
    /// It is malformed.
    #[error("{}:{line}:{column}: {message}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The column, from 1.
        column: usize,
        /// The reason.
        message: String,
    },
    /// A parameter was set that the file does not define.
    #[error("{} has no parameter `{name}`: it has {known}", path.display())]
    NoSuchParameter {
        /// The file.
        path: PathBuf,
        /// The name of the parameter.
        name: String,
        /// The parameters of the file.
        known: String,
    },
    /// A list of allocators or settings was given together with a file that describes its
    /// treatments.
    #[error("{} describes its treatments itself: choose among them with --only", .0.display())]
    DescribesTreatments(PathBuf),
}

impl Settings {
    /// Reads a study file. `set` has values for its parameters. In its strings, `{study}` is the
    /// directory of the file, and `{cache}` a directory in `cache` for data that the study can
    /// create again.
    ///
    /// # Errors
    /// Fails if it cannot be read, or is malformed; the error then has the line and the column.
    pub fn read(path: &Path, set: &[(String, String)], cache: &Path) -> Result<Self, FileError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| FileError::Unreadable { path: path.to_owned(), error })?;
        let malformed = |error: toml::de::Error| {
            let at = error.span().map_or(0, |span| span.start);
            let (line, column) = place(&text, at);
            // The parser's message may have a second line with an explanation.
            let message = error.message().trim().replace('\n', "; ");
            FileError::Malformed { path: path.to_owned(), line, column, message }
        };
        let unfilled: Self = toml::from_str(&text).map_err(malformed)?;
        let mut parameters = unfilled.parameters;
        for (name, value) in set {
            let Some(slot) = parameters.get_mut(name) else {
                let known: Vec<&str> = parameters.keys().map(String::as_str).collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                let (path, name) = (path.to_owned(), name.clone());
                return Err(FileError::NoSuchParameter { path, name, known });
            };
            *slot = toml::Value::String(value.clone());
        }
        let home = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let home = std::path::absolute(home).unwrap_or_else(|_| home.to_owned());
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let cache = cache.join("studies").join(&stem);
        let places = vec![
            ("{study}".to_owned(), home.display().to_string()),
            ("{cache}".to_owned(), cache.display().to_string()),
        ];
        let table: toml::Table = toml::from_str(&text).map_err(malformed)?;
        let table = filled_in(table, &parameters, &places);
        let mut settings: Self = table.try_into().map_err(malformed)?;
        settings.paths().for_each(|path| *path = home.join(&path));
        settings.directory.get_or_insert(home);
        settings.name.get_or_insert(stem);
        Ok(Self { parameters, places, ..settings })
    }

    /// Returns the paths, which in a file are relative to its directory.
    fn paths(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let single = [&mut self.baseline, &mut self.directory, &mut self.output];
        single.into_iter().flatten().chain(self.beside.iter_mut().flatten())
    }

    /// Checks that flags may override the settings of a file. If the file describes all its
    /// treatments, with their own commands, a list of allocators would add the bare command as the
    /// reference.
    ///
    /// # Errors
    /// Fails if they name allocators or settings, and the file names none but describes its
    /// treatments.
    pub fn admit(&self, path: &Path, flags: &Self) -> Result<(), FileError> {
        let names = |settings: &Self| settings.allocator.is_some() || settings.tune.is_some();
        match self.treatment.is_empty() || names(self) || !names(flags) {
            true => Ok(()),
            false => Err(FileError::DescribesTreatments(path.to_owned())),
        }
    }
}

/// Replaces the parameters and placeholders in all strings of a study file, but not in the
/// parameters themselves.
fn filled_in(
    table: toml::Table,
    parameters: &BTreeMap<String, toml::Value>,
    places: &[(String, String)],
) -> toml::Table {
    let parameters = parameters.iter().map(|(name, value)| {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        (format!("{{{name}}}"), text)
    });
    let values: Vec<(String, String)> = parameters.chain(places.iter().cloned()).collect();
    let fill = |(key, mut value): (String, toml::Value)| {
        if key != "parameters" {
            fill_in(&mut value, &values);
        }
        (key, value)
    };
    table.into_iter().map(fill).collect()
}

fn fill_in(value: &mut toml::Value, values: &[(String, String)]) {
    match value {
        toml::Value::String(text) => {
            for (name, value) in values {
                *text = text.replace(name.as_str(), value);
            }
        }
        toml::Value::Array(items) => items.iter_mut().for_each(|item| fill_in(item, values)),
        toml::Value::Table(items) => items.iter_mut().for_each(|(_, item)| fill_in(item, values)),
        _ => {}
    }
}

/// Returns the line and the column of a byte in a text, both from 1.
fn place(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    (line, column)
}
