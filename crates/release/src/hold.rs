//! A hold on all releases: no memory is released while a file exists.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::refusal::Refusal;

/// The file of a hold, unless [`VARIABLE`] names another one.
const FILE: &str = "/run/lowtide.hold";
/// The environment variable with the path of the file.
const VARIABLE: &str = "LOWTIDE_HOLD";
/// Maximum length of the part of the file that is shown, in bytes.
const MAX_REASON: u64 = 200;

/// A file that holds all releases while it exists, whatever its type. The default is
/// `/run/lowtide.hold`, or the path in the environment variable `LOWTIDE_HOLD`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    path: PathBuf,
}

impl Default for Hold {
    fn default() -> Self {
        let named = std::env::var_os(VARIABLE).filter(|path| !path.is_empty());
        Self { path: named.map_or_else(|| FILE.into(), PathBuf::from) }
    }
}

impl Hold {
    /// Returns the hold of a file.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that releases are not held now. If it is unknown whether the file exists, they are.
    ///
    /// # Errors
    /// Returns [`Refusal::Held`], with the first line of the file, if they are held.
    pub fn check(&self) -> Result<(), Refusal> {
        let reason = match fs::symlink_metadata(&self.path) {
            Err(error) if is_absent(&error) => return Ok(()),
            Err(error) => Some(format!("it is unknown whether it exists: {error}")),
            Ok(metadata) => metadata.is_file().then(|| self.reason()).flatten(),
        };
        let path = self.path.to_string_lossy().into_owned();
        Err(Refusal::Held { path, reason })
    }

    /// Returns the first line of the file, if it can be read.
    fn reason(&self) -> Option<String> {
        let mut start = Vec::new();
        self.open().ok()?.take(MAX_REASON).read_to_end(&mut start).ok()?;
        let text = String::from_utf8_lossy(&start);
        let line = text.lines().next().unwrap_or_default().trim();
        (!line.is_empty()).then(|| line.to_owned())
    }

    /// Opens the file. It may have been replaced since it was a regular one: no link is followed,
    /// and no FIFO blocks.
    fn open(&self) -> io::Result<File> {
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(&self.path)
    }
}

/// Returns whether an error means that the file does not exist.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the sentence of a refusal. `None` if releases are not held.
    fn held(path: &Path) -> Option<String> {
        let refusal = Hold::new(path).check().err()?;
        Some(refusal.to_string().replace(&path.display().to_string(), "FILE"))
    }

    #[test]
    fn a_file_holds_releases_until_it_is_removed_and_its_first_line_is_the_reason() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("hold");
        assert_eq!(held(&path), None);
        assert_eq!(held(&path.join("below")), None);
        fs::write(&path, "INC-1234: \u{1b}[2Jdb is slow\u{202e}\nmore\n").unwrap();
        let sentence = r#"releases are held by FILE ("INC-1234: \u{1b}[2Jdb is slow\u{202e}"): remove this file to permit them"#;
        assert_eq!(held(&path).as_deref(), Some(sentence));
        assert_eq!(held(&path.join("below")), None);
        fs::remove_file(&path).unwrap();
        assert_eq!(held(&path), None);
    }

    #[test]
    fn a_file_without_a_readable_first_line_holds_releases_without_a_reason() {
        let home = tempfile::tempdir().unwrap();
        let path = |name: &str| home.path().join(name);
        fs::write(path("empty"), "").unwrap();
        fs::write(path("blank"), " \nsecond\n").unwrap();
        fs::create_dir(path("directory")).unwrap();
        std::os::unix::fs::symlink("nowhere", path("dangling")).unwrap();
        std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mknodat(rustix::fs::CWD, path("fifo"), rustix::fs::FileType::Fifo, mode, 0)
            .unwrap();
        for name in ["empty", "blank", "directory", "dangling", "socket", "fifo"] {
            let sentence = "releases are held by FILE: remove this file to permit them";
            assert_eq!(held(&path(name)).as_deref(), Some(sentence), "{name}");
        }
    }

    #[test]
    fn releases_are_held_if_it_is_unknown_whether_the_file_exists() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("link");
        std::os::unix::fs::symlink(&path, &path).unwrap();
        let sentence = held(&path.join("hold")).unwrap();
        assert!(sentence.contains("it is unknown whether it exists"), "{sentence}");
    }

    #[test]
    fn a_long_first_line_is_cut() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("hold");
        fs::write(&path, "ä".repeat(100_000)).unwrap();
        let sentence = held(&path).unwrap();
        assert_eq!(sentence.matches('ä').count() as u64, MAX_REASON / 2, "{sentence}");
    }
}
