//! Resources that two tasks share, by kcmp(2).

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::io;

/// A resource that two tasks may share (`enum kcmp_type` of include/uapi/linux/kcmp.h).
#[derive(Debug, Clone, Copy)]
pub enum Resource {
    /// The address space: processes of `clone` with `CLONE_VM`, and of `vfork`.
    Memory = 1,
    /// Root and working directory, and the mask of new files.
    Directories = 3,
}

/// Compares the resources of two tasks. They share the resource if the result is `Equal`; otherwise
/// it is an order of all resources.
///
/// # Errors
/// Fails if a task has ended, if it may not be traced, or if the kernel has no kcmp.
#[expect(unsafe_code, reason = "kcmp(2), which neither libc nor rustix wraps")]
pub fn compare(one: u32, other: u32, what: Resource) -> io::Result<Ordering> {
    let (one, other) = (libc::c_long::from(one), libc::c_long::from(other));
    // SAFETY: with these types, kcmp takes only numbers, each as large as the `long` as which the
    // variadic `syscall` reads it, and changes nothing.
    let answer =
        unsafe { libc::syscall(libc::SYS_kcmp, one, other, what as libc::c_long, 0_u64, 0_u64) };
    match answer {
        0 => Ok(Ordering::Equal),
        1 => Ok(Ordering::Less),
        2.. => Ok(Ordering::Greater),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The address spaces of some processes.
#[derive(Debug, Default)]
pub struct AddressSpaces {
    /// The first process of each, in the order of the kernel, by what `stat` calls its image: those
    /// of different images do not share memory.
    of_image: BTreeMap<(u64, u64), Vec<u32>>,
}

impl AddressSpaces {
    /// Adds a process. Returns the process that was added before and shares its address space, if
    /// there is one. If this may not be known, it counts as one with memory of its own.
    pub fn add(&mut self, pid: u32, image: (u64, u64)) -> Option<u32> {
        if image == (0, 0) {
            return None;
        }
        let known = self.of_image.entry(image).or_default();
        let (mut from, mut to) = (0, known.len());
        while from < to {
            let middle = from + (to - from) / 2;
            match compare(known[middle], pid, Resource::Memory) {
                Ok(Ordering::Equal) => return Some(known[middle]),
                Ok(Ordering::Less) => from = middle + 1,
                Ok(Ordering::Greater) => to = middle,
                Err(_) if is_comparable(known[middle]) => return None,
                // It has ended.
                Err(_) => {
                    known.remove(middle);
                    to -= 1;
                }
            }
        }
        known.insert(from, pid);
        None
    }
}

/// Returns whether a process can still be compared, at least with itself.
fn is_comparable(pid: u32) -> bool {
    compare(pid, pid, Resource::Memory).is_ok()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;
    use crate::proc::is_gone;

    #[test]
    fn a_process_shares_memory_with_itself_and_not_with_its_child() {
        let sleep = || Command::new("sleep").arg("1000").spawn().unwrap();
        let mut children: Vec<Child> = (0..5).map(|_| sleep()).collect();
        let own = std::process::id();
        assert_eq!(compare(own, own, Resource::Memory).unwrap(), Ordering::Equal);
        let mut spaces = AddressSpaces::default();
        for child in &children {
            assert_ne!(compare(own, child.id(), Resource::Memory).unwrap(), Ordering::Equal);
            assert_eq!(spaces.add(child.id(), (1, 2)), None);
        }
        for child in &children {
            assert_eq!(spaces.add(child.id(), (1, 2)), Some(child.id()));
            assert_eq!(spaces.add(child.id(), (3, 4)), None);
        }
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(is_gone(&compare(own, child.id(), Resource::Memory).unwrap_err()));
        }
        assert_eq!(spaces.add(own, (1, 2)), None);
    }
}
