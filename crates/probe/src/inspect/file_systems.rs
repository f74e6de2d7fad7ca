//! The file systems of mappings whose pages are not the page cache of a disk.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use rustix::fs::{MemfdFlags, memfd_create};

use crate::proc::maps::{FileId, Mapping};
use crate::proc::mountinfo;

/// File systems that are not on a disk, by device.
#[derive(Debug, Default)]
pub(super) struct FileSystems {
    memory: BTreeSet<(u32, u32)>,
    /// Those whose pages exist in memory only, and never in swap either.
    ram: BTreeSet<(u32, u32)>,
    huge_pages: BTreeSet<(u32, u32)>,
}

impl FileSystems {
    /// Parses the text of `mountinfo`.
    pub(super) fn parse(mountinfo: &str) -> Self {
        Self {
            memory: mountinfo::devices(mountinfo, |name| matches!(name, "tmpfs" | "devtmpfs")),
            ram: mountinfo::devices(mountinfo, |name| matches!(name, "ramfs" | "rootfs")),
            huge_pages: mountinfo::devices(mountinfo, |name| name == "hugetlbfs")
                .into_iter()
                .chain(unmounted_huge_pages().iter().copied())
                .collect(),
        }
    }

    /// Returns whether the file of a mapping is memory: on tmpfs; or POSIX and System V shared
    /// memory, `memfd_create` and shared anonymous mappings, which are on a tmpfs that is not
    /// mounted.
    pub(super) fn is_memory(&self, mapping: &Mapping) -> bool {
        const NAMES: [&str; 4] = ["/dev/shm/", "/memfd:", "/SYSV", "/dev/zero"];
        let is_named = NAMES.iter().any(|begin| mapping.name.starts_with(begin));
        is_named || self.memory.contains(&mapping.file.device)
    }

    /// Returns whether the kernel cannot take back the pages of the file of a mapping: they exist
    /// in memory only.
    pub(super) fn is_ram(&self, mapping: &Mapping) -> bool {
        mapping.name.starts_with("/secretmem") || self.ram.contains(&mapping.file.device)
    }

    /// Returns whether the pages are from the pool of huge pages, which are counted separately and
    /// are not part of RSS.
    pub(super) fn is_of_huge_pages(&self, mapping: &Mapping) -> bool {
        mapping.name.starts_with("/anon_hugepage") || self.huge_pages.contains(&mapping.file.device)
    }
}

/// Returns whether a mapping is of a device whose driver pins the memory that programs map: a GPU,
/// or an RDMA adapter. (Pages that are not memory, such as registers, are not counted by the
/// kernel.)
pub(super) fn is_of_device(mapping: &Mapping) -> bool {
    const NAMES: [&str; 6] = ["nvidia", "infiniband/", "dri/", "kfd", "accel/", "vfio/"];
    let name = mapping.name.strip_prefix("/dev/");
    name.is_some_and(|name| NAMES.iter().any(|begin| name.starts_with(begin)))
}

/// Returns the devices of the kernel's internal hugetlbfs instances, one for each page size. They
/// are not mounted; `memfd_create` and System V segments use them. An empty file reveals each
/// device. They exist from the start of the kernel, so they are determined once.
pub(super) fn unmounted_huge_pages() -> &'static [(u32, u32)] {
    static DEVICES: OnceLock<Vec<(u32, u32)>> = OnceLock::new();
    DEVICES.get_or_init(find_unmounted_huge_pages)
}

fn find_unmounted_huge_pages() -> Vec<(u32, u32)> {
    let sizes = [MemfdFlags::HUGE_64KB, MemfdFlags::HUGE_2MB, MemfdFlags::HUGE_32MB];
    let sizes = sizes.into_iter().chain([MemfdFlags::HUGE_512MB, MemfdFlags::HUGE_1GB]);
    let flags = MemfdFlags::HUGETLB | MemfdFlags::CLOEXEC;
    let files = sizes.filter_map(|size| memfd_create("lowtide", flags | size).ok());
    files
        .filter_map(|file| rustix::fs::fstat(file).ok())
        .map(|stat| FileId::of_stat(&stat).device)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc::maps;

    #[test]
    fn the_memory_of_gpus_and_rdma_adapters_is_that_of_a_device() {
        let is_device = |name: &str| {
            let line = format!("7f00-8f00 rw-s 00000000 00:06 12 {name}\n");
            is_of_device(&maps::parse(&line).unwrap()[0])
        };
        let devices =
            ["/dev/nvidia0", "/dev/nvidia-uvm", "/dev/infiniband/uverbs0", "/dev/dri/card0"];
        assert!(devices.into_iter().all(is_device));
        // The last one is a disk, whose cache can be reclaimed.
        assert!(
            !["/dev/shm/nvidia", "/dev/zero", "/srv/dev/kfd", "/dev/sda"]
                .into_iter()
                .any(is_device)
        );
    }
}
