//! The recorded part of a subject's environment.

use std::collections::BTreeMap;

use crate::keeper::Launch;

/// Inherited variables that affect memory. Others are not recorded: a value may be a password.
const SHOWN: [&str; 13] = [
    "LANG",
    "LC_ALL",
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "GLIBC_TUNABLES",
    "PYTHONMALLOC",
    "PYTHONUNBUFFERED",
    "NODE_OPTIONS",
    "UV_THREADPOOL_SIZE",
    "GOGC",
    "GOMEMLIMIT",
    "OMP_NUM_THREADS",
    "JAVA_TOOL_OPTIONS",
];

/// Returns the variables that were set for the subject, and the inherited ones that affect memory.
pub(super) fn recorded(launch: &Launch) -> BTreeMap<String, String> {
    let inherited = SHOWN.iter().filter_map(|name| {
        let value = std::env::var_os(name)?.to_string_lossy().into_owned();
        Some(((*name).to_owned(), value))
    });
    let kept = inherited.filter(|(name, _)| !launch.remove.contains(name));
    kept.chain(launch.set.iter().cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_set_or_memory_related_variables_are_recorded() {
        let set = vec![("MINE".to_owned(), "1".to_owned())];
        let found = recorded(&Launch { set, ..Launch::default() });
        assert_eq!(found.get("MINE").map(String::as_str), Some("1"));
        assert!(!found.contains_key("HOME") && !found.contains_key("CARGO_PKG_NAME"));
    }
}
