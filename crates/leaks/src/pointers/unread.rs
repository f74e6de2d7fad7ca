//! Resident memory that a search could not read.

use std::cell::Cell;
use std::ops::Range;

use lowtide_heap::memory::Memory;
use lowtide_probe::proc::maps::Mapping;

/// Memory that notes whether resident pages could not be read: the kernel denies access to those of
/// `memfd_secret`, to those of some devices, and to those with hardware errors.
pub(crate) struct NotingMemory<'m, M> {
    memory: &'m M,
    unread: Cell<Option<u64>>,
}

impl<'m, M: Memory> NotingMemory<'m, M> {
    pub(crate) fn new(memory: &'m M) -> Self {
        Self { memory, unread: Cell::new(None) }
    }

    /// Returns why pointers may be hidden, if a page could not be read.
    pub(crate) fn reason(&self, maps: &[Mapping]) -> Option<String> {
        let at = self.unread.get()?;
        let mapping = maps.iter().find(|mapping| mapping.contains(at));
        let name = mapping.map(|mapping| mapping.name.as_str()).filter(|name| !name.is_empty());
        let what = name.unwrap_or("a part of its memory");
        Some(format!("{what} is resident and cannot be read"))
    }

    /// Notes the page of an address that could not be read, unless the program has unmapped it.
    fn note(&self, at: u64) {
        let page = at - at % self.page_bytes();
        let is_resident = || !self.memory.resident(page..page + self.page_bytes()).is_empty();
        let is_unreadable = is_resident()
            && self.memory.read_resident(page, &mut [0; 8]) == 0
            && is_resident()
            && !self.memory.is_over();
        if is_unreadable {
            self.unread.set(Some(page));
        }
    }
}

impl<M: Memory> Memory for NotingMemory<'_, M> {
    fn page_bytes(&self) -> u64 {
        self.memory.page_bytes()
    }

    fn read(&self, address: u64, buffer: &mut [u8]) -> usize {
        self.memory.read(address, buffer)
    }

    fn read_resident(&self, address: u64, buffer: &mut [u8]) -> usize {
        let length = self.memory.read_resident(address, buffer);
        if length < buffer.len() && self.unread.get().is_none() {
            self.note(address.saturating_add(length as u64));
        }
        length
    }

    fn resident(&self, range: Range<u64>) -> Vec<Range<u64>> {
        self.memory.resident(range)
    }

    fn is_over(&self) -> bool {
        self.memory.is_over()
    }
}

#[cfg(test)]
mod tests {
    use lowtide_probe::proc::maps;

    use super::*;

    /// Two resident pages, of which the second cannot be read. `is_mapped` tells whether they still
    /// are resident after a read.
    struct Secret {
        is_mapped: bool,
        was_read: Cell<bool>,
    }

    impl Memory for Secret {
        fn page_bytes(&self) -> u64 {
            4096
        }

        fn read(&self, address: u64, buffer: &mut [u8]) -> usize {
            self.was_read.set(true);
            (0x2000_u64.saturating_sub(address) as usize).min(buffer.len())
        }

        fn resident(&self, range: Range<u64>) -> Vec<Range<u64>> {
            if self.is_mapped || !self.was_read.get() { vec![range] } else { Vec::new() }
        }
    }

    fn reason(is_mapped: bool, length: usize) -> Option<String> {
        let secret = Secret { is_mapped, was_read: Cell::new(false) };
        let memory = NotingMemory::new(&secret);
        memory.read_resident(0x1000, &mut vec![0; length]);
        let maps = maps::parse("1000-3000 rw-s 0 00:0f 3 /secretmem (deleted)\n").unwrap();
        memory.reason(&maps)
    }

    #[test]
    fn a_resident_page_that_cannot_be_read_is_named_and_one_that_was_unmapped_is_not() {
        assert_eq!(reason(true, 0x1000), None);
        let expected = "/secretmem (deleted) is resident and cannot be read";
        assert_eq!(reason(true, 0x2000).as_deref(), Some(expected));
        assert_eq!(reason(false, 0x2000), None);
    }
}
