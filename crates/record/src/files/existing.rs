//! The rule for a file that exists before lowtide writes to it.

use std::fs::File;
use std::io;

use rustix::fs::{FileType, Stat, fstat, fstatfs};

use super::UnsafePath;
use super::directory::{TrustedUsers, WRITABLE_BY_OTHERS};

/// File systems whose files are interfaces of the kernel (linux/magic.h): proc, sysfs, cgroup,
/// cgroup2, debugfs, tracefs, securityfs, selinuxfs, bpf, configfs, efivarfs, binfmt_misc.
const KERNEL: [u32; 12] = [
    0x9fa0,
    0x6265_6572,
    0x0027_e0eb,
    0x6367_7270,
    0x6462_6720,
    0x7472_6163,
    0x7363_6673,
    0xf97c_ff8c,
    0xcafe_4a11,
    0x6265_6570,
    0xde5e_81e4,
    0x4249_4e4d,
];

/// Checks that writing to an open file changes nothing that belongs to another user or to the
/// kernel.
pub(super) fn check(file: &File) -> io::Result<()> {
    let stat = fstat(file)?;
    let reason = if !is_regular(&stat) {
        UnsafePath::NotRegular
    } else if is_of_the_kernel(file)? {
        UnsafePath::KernelFile
    } else if !TrustedUsers::new()?.own(&stat) {
        UnsafePath::ForeignFile
    } else if stat.st_nlink > 1 {
        UnsafePath::HardLinks
    } else if stat.st_mode & WRITABLE_BY_OTHERS != 0 {
        UnsafePath::SharedFile
    } else {
        return Ok(());
    };
    Err(reason.into())
}

pub(super) fn is_regular(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

/// Returns whether a file is an interface of the kernel. Writing to one is an order, such as
/// `/proc/self/comm`.
fn is_of_the_kernel(file: &File) -> io::Result<bool> {
    // The field is signed, and wider on some processors. All magic numbers have 32 bits.
    let kind = fstatfs(file)?.f_type as u32;
    Ok(KERNEL.contains(&kind))
}
