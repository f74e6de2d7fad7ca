//! The path of a cgroup, as the kernel prints it.
//!
//! Paths in `/proc/PID/cgroup` and in `mountinfo` are relative to the root of the reader's cgroup
//! namespace (cgroup_namespaces(7)). A group that is not below that root begins with a `/..` for
//! each level up to the nearest group that is above both.

use std::path::{Component, Path};

/// A path: how many levels it leads up from the root of the namespace, and the names from there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GroupPath {
    pub(crate) above: usize,
    pub(crate) names: Vec<String>,
}

/// The way from a group down to another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Descent {
    /// The number of first levels that the paths do not name: those towards the root of the
    /// namespace.
    pub(crate) unnamed: usize,
    /// The names after these levels.
    pub(crate) names: Vec<String>,
}

impl GroupPath {
    /// Parses a path; `None` if it is not absolute, or leads up after a name.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parsed = Self { above: 0, names: Vec::new() };
        let rest = Path::new(text).strip_prefix("/").ok()?;
        for part in rest.components() {
            match part {
                Component::ParentDir if parsed.names.is_empty() => parsed.above += 1,
                Component::Normal(name) => parsed.names.push(name.to_string_lossy().into_owned()),
                _ => return None,
            }
        }
        Some(parsed)
    }

    /// Returns the way from a group down to this one; `None` if it is not below that group.
    pub(crate) fn below(&self, top: &Self) -> Option<Descent> {
        let unnamed = top.above.checked_sub(self.above)?;
        match unnamed {
            0 => {
                let names = self.names.strip_prefix(top.names.as_slice())?.to_vec();
                Some(Descent { unnamed, names })
            }
            // A name after `/..` is that of a group beside the one that the way leads through.
            _ => top.names.is_empty().then(|| Descent { unnamed, names: self.names.clone() }),
        }
    }
}

impl std::fmt::Display for GroupPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.above == 0 && self.names.is_empty() {
            return f.write_str("/");
        }
        (0..self.above).try_for_each(|_| f.write_str("/.."))?;
        self.names.iter().try_for_each(|name| write!(f, "/{name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> GroupPath {
        GroupPath::parse(text).unwrap()
    }

    #[test]
    fn paths_are_printed_as_the_kernel_does() {
        for text in ["/", "/a/b", "/..", "/../../pod2/c"] {
            assert_eq!(path(text).to_string(), text);
        }
        assert_eq!(path("/a//b/").to_string(), "/a/b");
        for text in ["", "a", "/a/..", "/../a/../b"] {
            assert_eq!(GroupPath::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_group_above_the_namespace_contains_it_and_what_is_beside_it() {
        let way = |from: &str, to: &str| {
            let down = path(to).below(&path(from))?;
            Some((down.unnamed, down.names.join("/")))
        };
        let found = |unnamed, names: &str| Some((unnamed, names.to_owned()));
        assert_eq!(way("/", "/a/b"), found(0, "a/b"));
        assert_eq!(way("/a", "/a/b"), found(0, "b"));
        assert_eq!(way("/../..", "/../../pod2/c"), found(0, "pod2/c"));
        assert_eq!(way("/../../pod2", "/../../pod2/c"), found(0, "c"));
        assert_eq!(way("/../../..", "/../../pod2/c"), found(1, "pod2/c"));
        assert_eq!(way("/../..", "/x"), found(2, "x"));
        for (from, to) in [("/a", "/ab"), ("/", "/.."), ("/..", "/../.."), ("/../b", "/x")] {
            assert_eq!(way(from, to), None, "{from} {to}");
        }
    }
}
