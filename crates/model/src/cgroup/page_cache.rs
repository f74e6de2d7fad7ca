//! The page cache of a cgroup by file.

use serde::Serialize;

/// Maximum number of files that are listed.
const MAX_LISTED: usize = 20;

/// The page cache that a cgroup is charged for, without shared memory, by file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct CgroupPageCache {
    /// Bytes of files that its processes have open or map.
    pub open_bytes: u64,
    /// The rest: of files that none of them has open, and of directories.
    pub closed_bytes: u64,
    /// Whether both are an estimate: the owner of more than 2 % is not known exactly.
    pub estimated: bool,
    /// The files that its processes have open or map, the largest first; at most 20.
    pub files: Vec<CachedFile>,
}

/// A file in the page cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CachedFile {
    /// Its path in the mount namespace of a process.
    pub path: String,
    /// The process that has it open or maps it; the first of several.
    pub pid: u32,
    /// Its bytes in the page cache, whichever cgroup is charged for them.
    pub cached_bytes: u64,
    /// Those that are to be written back, or are being written; `None` before Linux 6.5.
    pub dirty_bytes: Option<u64>,
    /// The bytes that the cgroup is charged for, from a sample of its pages; `None` if that cannot
    /// be read.
    pub charged_bytes: Option<u64>,
    /// Whether it has no name any more.
    pub deleted: bool,
}

impl CachedFile {
    /// Returns the bytes that the cgroup is charged for, at most.
    pub fn bytes(&self) -> u64 {
        self.charged_bytes.unwrap_or(self.cached_bytes)
    }
}

impl CgroupPageCache {
    /// Divides the page cache by file. `is_complete` is whether all open files are known.
    pub fn new(charged_bytes: u64, mut files: Vec<CachedFile>, is_complete: bool) -> Self {
        let open_bytes = files.iter().map(CachedFile::bytes).sum::<u64>().min(charged_bytes);
        // A sample is exact if all of it is of one cgroup.
        let is_exact = |file: &&CachedFile| {
            file.charged_bytes.is_some_and(|bytes| bytes == 0 || bytes == file.cached_bytes)
        };
        let uncertain: u64 =
            files.iter().filter(|file| !is_exact(file)).map(|file| file.cached_bytes).sum();
        let estimated = !is_complete || uncertain > charged_bytes / 50;
        files.retain(|file| file.bytes() > 0);
        files.sort_by_key(|file| std::cmp::Reverse(file.bytes()));
        files.truncate(MAX_LISTED);
        Self { open_bytes, closed_bytes: charged_bytes - open_bytes, estimated, files }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(cached_bytes: u64, charged_bytes: Option<u64>) -> CachedFile {
        let path = "/log".to_owned();
        CachedFile { path, pid: 7, cached_bytes, dirty_bytes: None, charged_bytes, deleted: false }
    }

    #[test]
    fn open_and_closed_files_add_up_to_the_page_cache() {
        let files = vec![file(30, Some(30)), file(50, Some(0)), file(20, Some(20))];
        let found = CgroupPageCache::new(100, files, true);
        assert_eq!((found.open_bytes, found.closed_bytes, found.estimated), (50, 50, false));
        assert_eq!(found.files.len(), 2, "{found:?}");
    }

    #[test]
    fn files_whose_owner_is_unknown_make_an_estimate_within_the_page_cache() {
        let found = CgroupPageCache::new(100, vec![file(300, None)], true);
        assert_eq!((found.open_bytes, found.closed_bytes, found.estimated), (100, 0, true));
    }
}
