//! Variables that a study takes from a running process.
//!
//! A copy of a service that has all of its variables also has its passwords and the addresses of
//! its databases, and would do in a trial what the service does. So only variables are taken that
//! allocators, loaders and runtimes read, and those that the user names.

use std::collections::BTreeMap;
use std::io;

use lowtide_probe::proc::environ;
use lowtide_probe::target::{Target, TargetError};

/// Names of variables that decide where memory comes from and how it is kept. A `*` stands for any
/// text, at the beginning or at the end.
pub const TAKEN: [&str; 16] = [
    "GLIBC_TUNABLES",
    "MALLOC_*",
    "*MALLOC_CONF",
    "MIMALLOC_*",
    "TCMALLOC_*",
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "PYTHON*",
    "R_*",
    "RUBY*",
    "NODE_OPTIONS",
    "JAVA_TOOL_OPTIONS",
    "JDK_*",
    "PATH",
    "LANG",
    "LC_*",
];
/// Those of them that every shell sets.
const USUAL: [&str; 3] = ["PATH", "LANG", "LC_*"];
/// Beginnings of the names of libraries that are allocators.
const ALLOCATORS: [&str; 5] =
    ["libjemalloc", "libmimalloc", "libtcmalloc", "libsnmalloc", "libscudo"];

/// A variable that could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum BorrowError {
    /// The process cannot be read.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// It has no such variable.
    #[error("process {pid} was started without the variable {name}")]
    Missing {
        /// Its PID.
        pid: u32,
        /// The name.
        name: String,
    },
}

/// Returns the variables that a process was started with and that a study takes, besides those that
/// are `named`; and what was left out, as sentences.
///
/// # Errors
/// Fails if the process cannot be read, or has no variable of a name.
pub fn variables_of(
    pid: u32,
    named: &[String],
) -> Result<(BTreeMap<String, String>, Vec<String>), BorrowError> {
    let target = Target::open(pid)?;
    let all = read(&target).map_err(|error| target.failed(error))?;
    let mut taken: BTreeMap<String, String> = BTreeMap::new();
    for (name, value) in &all {
        if is_taken(name, &TAKEN) || named.contains(name) {
            // The C library returns the first of several.
            taken.entry(name.clone()).or_insert_with(|| value.clone());
        }
    }
    if let Some(name) = named.iter().find(|name| !taken.contains_key(*name)) {
        return Err(BorrowError::Missing { pid, name: name.clone() });
    }
    let notes = without_allocators(&mut taken, pid).into_iter().collect();
    Ok((taken, notes))
}

/// Returns the names of the variables that a process was started with and that decide how memory is
/// kept, besides those that every shell sets.
pub fn settings_of(target: &Target) -> Vec<String> {
    let all = read(target).unwrap_or_default().into_iter().map(|(name, _)| name);
    let mut names: Vec<String> =
        all.filter(|name| is_taken(name, &TAKEN) && !is_taken(name, &USUAL)).collect();
    names.sort();
    names.dedup();
    names
}

/// Removes the allocators among the preloaded libraries: a treatment has its own. Returns a
/// sentence on them.
fn without_allocators(taken: &mut BTreeMap<String, String>, pid: u32) -> Option<String> {
    let list = taken.get_mut("LD_PRELOAD")?;
    let is_allocator = |path: &&str| {
        let name = path.rsplit('/').next().unwrap_or_default();
        ALLOCATORS.iter().any(|begin| name.starts_with(begin))
    };
    let all = || list.split([':', ' ']).filter(|path| !path.is_empty());
    let removed: Vec<&str> = all().filter(is_allocator).collect();
    let said = (!removed.is_empty()).then(|| {
        format!(
            "process {pid} preloads {}, which the subject does not: each treatment has its own allocator",
            removed.join(", ")
        )
    });
    let kept: Vec<&str> = all().filter(|path| !is_allocator(path)).collect();
    match kept.join(":") {
        kept if kept.is_empty() => drop(taken.remove("LD_PRELOAD")),
        kept => *list = kept,
    }
    said
}

fn is_taken(name: &str, patterns: &[&str]) -> bool {
    patterns.iter().any(|pattern| match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(end), _) => name.ends_with(end),
        (_, Some(begin)) => name.starts_with(begin),
        _ => name == *pattern,
    })
}

/// Reads the variables that a process was started with. One that has overwritten them with a title
/// has fewer.
fn read(target: &Target) -> io::Result<Vec<(String, String)>> {
    /// What the kernel passes to a program by default: a quarter of a stack of 8 MiB.
    const MAX_BYTES: u64 = 2 << 20;
    Ok(parse(&environ::read(target.pid, MAX_BYTES)?))
}

/// Parses `NAME=value` texts, each of which ends with 0. A value that is not UTF-8 cannot be in a
/// record, and is left out.
fn parse(bytes: &[u8]) -> Vec<(String, String)> {
    let texts = bytes.split(|byte| *byte == 0).filter_map(|text| std::str::from_utf8(text).ok());
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    texts
        .filter_map(|text| text.split_once('='))
        .filter(|(name, value)| is_name(name) && !value.contains(char::is_control))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_variables_of_allocators_loaders_and_runtimes_are_taken() {
        let taken = |name: &&str| is_taken(name, &TAKEN);
        let wanted =
            ["MALLOC_ARENA_MAX", "_RJEM_MALLOC_CONF", "PYTHONMALLOC", "LC_ALL", "JDK_JAVA_OPTIONS"];
        assert!(wanted.iter().all(taken));
        let others = [
            "AWS_SECRET_ACCESS_KEY",
            "DATABASE_URL",
            "HOME",
            "MYPATH",
            "LANGUAGE_KEY",
            "REDIS_URL",
        ];
        assert!(!others.iter().any(taken));
    }

    #[test]
    fn an_overwritten_or_hostile_environment_has_only_its_valid_variables() {
        let bytes = b"A=1\0nginx: worker\0=x\0B C=2\0D=\xff\0E=a\x1b[2J\0F=x=y\0G=";
        let found = parse(bytes);
        let names: Vec<_> = found.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(names, ["A=1", "F=x=y", "G="]);
    }

    #[test]
    fn an_allocator_that_the_process_preloads_is_left_out() {
        let left = |list: &str| {
            let mut taken = BTreeMap::from([("LD_PRELOAD".to_owned(), list.to_owned())]);
            let said = without_allocators(&mut taken, 7);
            (taken.remove("LD_PRELOAD"), said.is_some())
        };
        assert_eq!(left("/usr/lib/libjemalloc.so.2"), (None, true));
        assert_eq!(
            left("/a/libx.so:/b/libmimalloc.so.2.1 y.so"),
            (Some("/a/libx.so:y.so".into()), true)
        );
        assert_eq!(left("/a/libx.so"), (Some("/a/libx.so".into()), false));
    }

    #[test]
    fn the_variables_of_a_process_are_read_and_a_missing_one_is_an_error() {
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .env_clear()
            .envs([("MALLOC_ARENA_MAX", "2"), ("SECRET", "x"), ("MODE", "fast")])
            .spawn()
            .unwrap();
        let found = variables_of(child.id(), &["MODE".to_owned()]);
        let missing = variables_of(child.id(), &["NONE".to_owned()]).unwrap_err().to_string();
        let names = settings_of(&Target::open(child.id()).unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        let (found, notes) = found.unwrap();
        let shown: Vec<_> = found.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(
            (shown, notes.len()),
            (vec!["MALLOC_ARENA_MAX=2".to_owned(), "MODE=fast".to_owned()], 0)
        );
        assert_eq!(names, ["MALLOC_ARENA_MAX"]);
        assert!(missing.ends_with("without the variable NONE"), "{missing}");
        assert!(matches!(variables_of(u32::MAX, &[]), Err(BorrowError::Target(_))));
    }
}
