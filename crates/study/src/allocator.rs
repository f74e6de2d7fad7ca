//! The allocators that can be tried: their sources, and their delivery into a process.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use thiserror::Error;

use lowtide_allocators::{UnpackError, bundled};
use lowtide_probe::proc::maps::FileId;
use lowtide_probe::program::{ObjectFacts, c_library_version, version_of};

/// An allocator that is ready to be loaded into a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreatmentAllocator {
    /// Its name in tables.
    pub name: String,
    /// Its version, if its file has one.
    pub version: Option<String>,
    /// The way in which it is loaded into a process.
    pub delivery: Delivery,
}

/// The way in which an allocator is loaded into a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivery {
    /// None: it is the C library that the program is linked with.
    System,
    /// None: the program brings its own allocator, whichever it is.
    Own,
    /// Another loader starts the program, with the libraries in its directory.
    Loader {
        /// The loader.
        loader: PathBuf,
        /// The directory of its libraries.
        libraries: PathBuf,
        /// Its C library.
        library: FileId,
    },
    /// `LD_PRELOAD`.
    Preload {
        /// The library.
        path: PathBuf,
        /// Identity of that file.
        library: FileId,
    },
}

/// The name that stands for the allocator that the program brings, whichever it is.
pub(crate) const OWN: &str = "own";

/// The reason why an allocator cannot be used.
#[derive(Debug, Error)]
pub enum AllocatorError {
    /// The name is unknown.
    #[error(
        "unknown allocator `{0}`{hint}: the known ones are glibc, jemalloc, mimalloc, mimalloc2, tcmalloc, own (the allocator of the program) and all; write any other as NAME=/path/to/library.so, and another glibc as glibc=/path/to/its/directory",
        hint = similar(.0)
    )]
    Unknown(String),
    /// The list is empty.
    #[error("the list of allocators is empty: name at least one, such as glibc")]
    Empty,
    /// gperftools is not installed.
    #[error(
        "tcmalloc is not on this system: install gperftools (Debian and Ubuntu: libgoogle-perftools4 or libtcmalloc-minimal4; Fedora: gperftools-libs; Alpine: gperftools; Arch: gperftools), or use tcmalloc=/path/to/libtcmalloc.so"
    )]
    NoTcmalloc,
    /// The named file cannot be used.
    #[error("{} cannot be preloaded: {reason}", path.display())]
    NotPreloadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The named directory does not contain a glibc.
    #[error("{} contains no usable glibc: {reason}", path.display())]
    NoLoader {
        /// The directory.
        path: PathBuf,
        /// The missing part.
        reason: String,
    },
    /// A bundled library could not be unpacked.
    #[error(transparent)]
    Unpack(#[from] UnpackError),
}

/// File name of glibc's loader on this architecture.
const LOADER: &str =
    if cfg!(target_arch = "aarch64") { "ld-linux-aarch64.so.1" } else { "ld-linux-x86-64.so.2" };

/// Parses a list such as `glibc,jemalloc,NAME=/path`. `all` stands for every available allocator;
/// `notes` lists the others.
///
/// # Errors
/// Fails at the first allocator that is unknown or cannot be used.
pub(crate) fn resolve_list(
    list: &str,
    notes: &mut Vec<String>,
) -> Result<Vec<TreatmentAllocator>, AllocatorError> {
    let mut found: Vec<TreatmentAllocator> = Vec::new();
    for name in list.split(',').map(str::trim).filter(|n| !n.is_empty()) {
        let more = if name == "all" { all(notes)? } else { vec![resolve(name)?] };
        for allocator in more {
            if !found.contains(&allocator) {
                found.push(allocator);
            }
        }
    }
    if found.is_empty() { Err(AllocatorError::Empty) } else { Ok(found) }
}

fn all(notes: &mut Vec<String>) -> Result<Vec<TreatmentAllocator>, AllocatorError> {
    let mut all = vec![resolve("glibc")?];
    for library in bundled() {
        all.push(resolve(library.name())?);
    }
    match resolve("tcmalloc") {
        Ok(tcmalloc) => all.push(tcmalloc),
        Err(error @ AllocatorError::NoTcmalloc) => notes.push(error.to_string()),
        Err(error) => return Err(error),
    }
    Ok(all)
}

/// Returns the known allocator with a similar name, as a question in parentheses.
fn similar(name: &str) -> String {
    let bundled = bundled().map(|library| library.name().to_owned());
    let known = bundled.chain(["glibc", "tcmalloc", OWN].map(str::to_owned));
    let found = known.map(|known| (edits(name, &known), known)).min();
    let is_close = |(edits, known): &(usize, String)| *edits <= 2 && *edits < known.len() / 2;
    found.filter(is_close).map_or(String::new(), |(_, known)| format!(" (did you mean {known}?)"))
}

/// Returns how many characters have to be inserted, removed or replaced to make one word of
/// another (Levenshtein distance).
fn edits(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (place, from) in from.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], place + 1);
        for (column, to) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}

/// Resolves one allocator.
///
/// # Errors
/// Fails if it is unknown or cannot be used.
pub(crate) fn resolve(text: &str) -> Result<TreatmentAllocator, AllocatorError> {
    if let Some((name, path)) = text.split_once('=') {
        let path = Path::new(path);
        return match name {
            "" => Err(AllocatorError::Unknown(text.to_owned())),
            "glibc" => other_glibc(path),
            _ => preload(name, path, None),
        };
    }
    if text == "glibc" {
        let version = system_glibc_version();
        return Ok(TreatmentAllocator {
            name: text.to_owned(),
            version,
            delivery: Delivery::System,
        });
    }
    if text == OWN {
        return Ok(TreatmentAllocator {
            name: text.to_owned(),
            version: None,
            delivery: Delivery::Own,
        });
    }
    if text == "tcmalloc" {
        let library = find_gperftools().ok_or(AllocatorError::NoTcmalloc)?;
        let version = version_of(&library, "gperftools ");
        return preload(text, &library, version);
    }
    let library = bundled().find(|b| b.name() == text);
    let library = library.ok_or_else(|| AllocatorError::Unknown(text.to_owned()))?;
    preload(text, &library.unpack()?, Some(library.version().to_owned()))
}

fn preload(
    name: &str,
    path: &Path,
    version: Option<String>,
) -> Result<TreatmentAllocator, AllocatorError> {
    let refused = |reason: String| AllocatorError::NotPreloadable { path: path.to_owned(), reason };
    let path = fs::canonicalize(path).map_err(|e| refused(e.to_string()))?;
    let open = || -> io::Result<(File, FileId)> {
        let file = File::open(&path)?;
        let id = FileId::from_metadata(&file.metadata()?);
        Ok((file, id))
    };
    let (file, library) = open().map_err(|e| refused(e.to_string()))?;
    let facts = ObjectFacts::read(&file.into()).map_err(|e| refused(e.to_string()))?;
    if !facts.is_shared {
        return Err(refused("it is a program, not a library".to_owned()));
    }
    if facts.architecture != our_architecture() {
        return Err(refused(format!("it is for another processor ({:?})", facts.architecture)));
    }
    if !facts.defines_malloc {
        return Err(refused(
            "it has no `malloc`, so it would be loaded without replacing anything".to_owned(),
        ));
    }
    // Spaces and colons separate the entries of a list of preloads.
    if path.to_string_lossy().contains([' ', ':']) {
        let reason = "its path contains a space or a colon, which the loader treats as a separator";
        return Err(refused(format!("{reason}; make a link to it elsewhere")));
    }
    try_preload(&path).map_err(refused)?;
    let delivery = Delivery::Preload { path, library };
    Ok(TreatmentAllocator { name: name.to_owned(), version, delivery })
}

fn our_architecture() -> object::Architecture {
    if cfg!(target_arch = "aarch64") {
        object::Architecture::Aarch64
    } else {
        object::Architecture::X86_64
    }
}

/// Maximum runtime of a program that does nothing, under a library that is tried.
const TRIAL_LIMIT: Duration = Duration::from_secs(10);

/// Starts a program that does nothing with the library, and reads the output of the loader, which
/// names a library that it cannot load and then continues without it. In an image without such a
/// program, the library is not tried: the loader then reports the error when the command itself
/// starts.
fn try_preload(path: &Path) -> Result<(), String> {
    let started = |error: io::Error| format!("`true` could not be started to try it ({error})");
    let spawned = Command::new("true")
        .env("LD_PRELOAD", path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut program = match spawned {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        spawned => spawned.map_err(started)?,
    };
    let deadline = Instant::now() + TRIAL_LIMIT;
    let status = loop {
        match program.try_wait().map_err(started)? {
            Some(status) => break status,
            None if Instant::now() < deadline => thread::sleep(Duration::from_millis(2)),
            None => {
                let _ = program.kill().and_then(|()| program.wait());
                return Err("a trivial program does not end with this library preloaded".to_owned());
            }
        }
    };
    let mut said = String::new();
    if let Some(stderr) = program.stderr.take() {
        let _ = stderr.take(1 << 16).read_to_string(&mut said);
    }
    if let Some(line) = said.lines().find(|l| l.contains("cannot be preloaded")) {
        let reason = line.split_once('(').map_or(line, |(_, rest)| rest);
        return Err(reason.trim_end_matches(|c| ":. )".contains(c)).replace("): ignored", ""));
    }
    if !status.success() {
        let last = said.lines().last().unwrap_or("no message");
        return Err(format!(
            "a trivial program ends with {status} with this library preloaded ({last})"
        ));
    }
    Ok(())
}

fn other_glibc(directory: &Path) -> Result<TreatmentAllocator, AllocatorError> {
    let refused = |reason: String| AllocatorError::NoLoader { path: directory.to_owned(), reason };
    let libraries = fs::canonicalize(directory).map_err(|e| {
        refused(format!(
            "{e}; unpack a libc6 package there, or name the directory of another glibc"
        ))
    })?;
    // Old versions are installed under their version number, with a link from the usual name.
    let c_library = libraries.join("libc.so.6");
    let meta = fs::metadata(&c_library)
        .map_err(|_| refused("there is no libc.so.6 in it; unpack a libc6 package and name the directory of its libraries".to_owned()))?;
    let loader = [libraries.join(LOADER), libraries.join("../../lib64").join(LOADER)]
        .into_iter()
        .find(|path| path.is_file())
        .ok_or_else(|| refused(format!("there is no {LOADER} in it")))?;
    let version = c_library_version(&c_library)
        .ok_or_else(|| refused("its libc.so.6 does not contain its version".to_owned()))?;
    let asked = Command::new(&loader)
        .arg("--verify")
        .arg(&c_library)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    // Status 2 means that the file is a library and not a program, which is equally good; 1 means
    // that it is neither.
    if !asked.is_ok_and(|status| [Some(0), Some(2)].contains(&status.code())) {
        return Err(refused(format!("its {LOADER} cannot be started")));
    }
    let delivery = Delivery::Loader { loader, libraries, library: FileId::from_metadata(&meta) };
    Ok(TreatmentAllocator { name: format!("glibc-{version}"), version: Some(version), delivery })
}

/// Returns the version of the glibc that programs on this machine are linked with.
fn system_glibc_version() -> Option<String> {
    library_directories().iter().find_map(|d| c_library_version(&d.join("libc.so.6")))
}

/// Finds gperftools as distributions install it, and prefers the full library to the minimal one.
fn find_gperftools() -> Option<PathBuf> {
    let names = [
        "libtcmalloc.so.4",
        "libtcmalloc.so",
        "libtcmalloc_minimal.so.4",
        "libtcmalloc_minimal.so",
    ];
    let directories = library_directories();
    names.iter().flat_map(|name| directories.iter().map(move |d| d.join(name))).find(|path| {
        // A system may also have those of another architecture.
        let facts = File::open(path).ok().and_then(|file| ObjectFacts::read(&file.into()).ok());
        facts.is_some_and(|facts| facts.architecture == our_architecture())
    })
}

/// Returns the directories that the loader searches, in the order of the common distributions.
fn library_directories() -> Vec<PathBuf> {
    let triplet = format!("{}-linux-gnu", std::env::consts::ARCH);
    ["/usr/local/lib", "/usr/lib", "/lib", "/usr/lib64", "/lib64"]
        .iter()
        .flat_map(|d| [Path::new(d).join(&triplet), PathBuf::from(d)])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_allocator_is_an_error_that_lists_the_known_ones() {
        let error = resolve_list("glibc,jmalloc", &mut Vec::new()).unwrap_err().to_string();
        assert!(
            error.starts_with(
                "unknown allocator `jmalloc` (did you mean jemalloc?): the known ones are glibc, jemalloc"
            ),
            "{error}"
        );
        assert!(matches!(resolve_list(" , ", &mut Vec::new()), Err(AllocatorError::Empty)));
        assert!(matches!(resolve("=/x"), Err(AllocatorError::Unknown(_))));
    }

    #[test]
    fn an_allocator_that_is_listed_twice_is_used_once() {
        let found = resolve_list("glibc,jemalloc,glibc", &mut Vec::new()).unwrap();
        let names: Vec<&str> = found.iter().map(|a| a.name.as_str()).collect();
        assert_eq!(names, ["glibc", "jemalloc"]);
    }

    #[test]
    fn a_file_that_is_not_a_library_cannot_be_preloaded() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "not a library").unwrap();
        let error = resolve(&format!("mine={}", file.path().display())).unwrap_err().to_string();
        assert!(
            error.contains("cannot be preloaded: it is not a readable program or library"),
            "{error}"
        );
        let error = resolve("mine=/no/such/file.so").unwrap_err().to_string();
        assert!(error.starts_with("/no/such/file.so cannot be preloaded: No such file"), "{error}");
    }

    #[test]
    fn a_library_without_malloc_cannot_be_preloaded() {
        let other =
            library_directories().into_iter().map(|d| d.join("libm.so.6")).find(|p| p.exists());
        let error = resolve(&format!("mine={}", other.unwrap().display())).unwrap_err().to_string();
        assert!(error.contains("it has no `malloc`"), "{error}");
    }

    #[test]
    fn a_directory_without_libc_is_not_a_glibc() {
        let directory = tempfile::tempdir().unwrap();
        let error = resolve(&format!("glibc={}", directory.path().display())).unwrap_err();
        assert!(error.to_string().contains("there is no libc.so.6 in it"), "{error}");
    }
}
