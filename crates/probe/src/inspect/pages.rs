//! The owners of pages that no heap has claimed.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use lowtide_heap::memory::Memory;
use lowtide_heap::ranges::{bytes, union, without};
use lowtide_model::inspection::{MAX_NAMED, Manager, NamedMemory, Room};
use lowtide_model::ledger::{Ledger, Owner};

use super::file_systems::{FileSystems, is_of_device};
use crate::locked;
use crate::memory::{PageKind, ProcessMemory};
use crate::proc::maps::{FileId, Mapping};
use lowtide_model::runtime_kind::RuntimeKind;

use crate::detect::{self, Claim, Detected, Stack, WalkedHeaps, resolve};
use lowtide_model::allocator_kind::AllocatorKind;

/// The known facts about a process when its pages are counted.
pub(super) struct Attributor<'a> {
    pub(super) maps: &'a [Mapping],
    pub(super) detected: &'a Detected,
    /// Mappings that are stacks.
    pub(super) stacks: &'a [Claim<Stack>],
    /// The heaps that were walked and counted.
    pub(super) walked: &'a WalkedHeaps,
    /// The file systems that the process sees.
    pub(super) files: &'a FileSystems,
    /// The mappings of files that the process has locked.
    pub(super) locked_files: &'a [Range<u64>],
}

/// The owner of pages.
#[derive(Debug, Clone)]
struct PageOwner {
    owner: Owner,
    /// The manager of memory of [`Owner::Runtime`].
    manager: Option<String>,
}

/// The resident pages outside of the heap, by owner.
#[derive(Debug, Default)]
pub(super) struct Attribution {
    pub(super) ledger: Ledger,
    /// Memory of [`Owner::Runtime`] by manager.
    managers: BTreeMap<String, (u64, bool)>,
    /// Memory of [`Owner::Shared`] by the name of the file's mapping.
    shared: Named,
    /// Memory of [`Owner::File`] by the name of the file.
    files: Named,
    /// The part of [`Owner::File`] that the kernel cannot take back.
    pub(super) kept_file_bytes: u64,
    /// Variables of programs and libraries, and private copies of pages of files, by the name of
    /// the file: nearly all of [`Owner::ProgramData`].
    changed_files: Named,
    /// Memory of [`Owner::AnonymousOther`] by the name that the program gave to the mapping.
    named_anonymous: Named,
    /// Number of mappings with pages of [`Owner::AnonymousOther`].
    pub(super) anonymous_mappings: u64,
    /// The accessible mappings of owners whose memory is bounded by them.
    pub(super) rooms: BTreeMap<Owner, Room>,
    /// Resident parts of the files of which the process maps a part several times, as offsets.
    repeated: BTreeMap<FileId, Vec<Range<u64>>>,
}

/// Resident bytes and the number of mappings, by name.
#[derive(Debug, Default)]
struct Named(BTreeMap<String, NamedMemory>);

impl Named {
    fn add(&mut self, name: impl FnOnce() -> String, bytes: u64, kept_bytes: u64) {
        if bytes > 0 {
            let name = name();
            let new = || NamedMemory::new(name.clone(), 0, 0);
            let all = self.0.entry(name.clone()).or_insert_with(new);
            all.bytes += bytes;
            all.kept_bytes += kept_bytes;
            all.mappings += 1;
        }
    }

    /// Returns those with most bytes, the largest first.
    fn largest(&self) -> Vec<NamedMemory> {
        let mut all: Vec<NamedMemory> = self.0.values().cloned().collect();
        all.sort_by_key(|named| std::cmp::Reverse(named.bytes));
        all.truncate(MAX_NAMED);
        all
    }
}

impl Attribution {
    /// Adds mapped bytes to the room of an owner, and the resident part of them.
    fn add_room(&mut self, owner: Owner, mapped_bytes: u64, resident_bytes: u64) {
        let room = self.rooms.entry(owner).or_default();
        room.mapped_bytes += mapped_bytes;
        room.resident_bytes += resident_bytes;
    }

    fn add(&mut self, claim: &Claim<PageOwner>, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let PageOwner { owner, manager } = &claim.owner;
        if claim.estimated {
            self.ledger.add_estimate(*owner, bytes);
        } else {
            self.ledger.add(*owner, bytes);
        }
        if let Some(manager) = manager {
            let (of_manager, estimated) = self.managers.entry(manager.clone()).or_default();
            *of_manager += bytes;
            *estimated |= claim.estimated;
        }
    }

    /// Returns the managers, the largest first.
    pub(super) fn managers(&self) -> Vec<Manager> {
        let manager = |(name, (bytes, estimated)): (&String, &(u64, bool))| Manager {
            name: name.clone(),
            bytes: *bytes,
            estimated: *estimated,
        };
        let mut managers: Vec<Manager> = self.managers.iter().map(manager).collect();
        managers.sort_by_key(|manager| std::cmp::Reverse(manager.bytes));
        managers
    }

    /// Returns the largest shared memory, the largest first.
    pub(super) fn shared(&self) -> Vec<NamedMemory> {
        self.shared.largest()
    }

    /// Returns the largest files, the largest first.
    pub(super) fn files(&self) -> Vec<NamedMemory> {
        self.files.largest()
    }

    /// Returns the largest memory of [`Owner::AnonymousOther`] with a name, the largest first.
    pub(super) fn named_anonymous(&self) -> Vec<NamedMemory> {
        self.named_anonymous.largest()
    }

    /// Returns the bytes of pages that the process maps at several addresses, without the first
    /// address of each: RSS counts a page at each address.
    pub(super) fn mapped_again_bytes(&self) -> u64 {
        let again = |ranges: &Vec<Range<u64>>| bytes(ranges) - bytes(&union(ranges.clone()));
        self.repeated.values().map(again).sum()
    }

    /// Returns the files with most variables and private copies of pages, the largest first.
    pub(super) fn changed_files(&self) -> Vec<NamedMemory> {
        self.changed_files.largest()
    }
}

impl Attributor<'_> {
    /// Counts the resident pages outside of the heap, by owner.
    pub(super) fn attribute(&self, memory: &ProcessMemory) -> io::Result<Attribution> {
        let page = memory.page_bytes();
        let exact = &self.walked.areas;
        let taken: Vec<Range<u64>> = exact.iter().map(|area| whole_pages(area, page)).collect();
        let allocators = self.walked.allocators.clone();
        let claims = self.claims(
            memory,
            &WalkedHeaps { allocators, areas: taken.clone(), ..WalkedHeaps::default() },
        );
        let mut found = Attribution { repeated: repeated(self.maps), ..Attribution::default() };
        // The heap has counted its own bytes; the rest of its first and last page is padding.
        for (exact, whole) in exact.iter().zip(&taken) {
            if exact != whole {
                let bytes = |range: &Range<u64>| -> u64 {
                    let pages = memory.resident(range.clone());
                    pages.iter().map(|p| p.end.min(range.end) - p.start.max(range.start)).sum()
                };
                found.ledger.add(Owner::Metadata, bytes(whole).saturating_sub(bytes(exact)));
            }
        }
        for mapping in self.maps {
            let before = found.ledger.bytes(Owner::AnonymousOther);
            for part in without(mapping.start..mapping.end, &taken) {
                self.count(memory, mapping, part, &claims, &mut found)?;
            }
            let bytes = found.ledger.bytes(Owner::AnonymousOther) - before;
            found.anonymous_mappings += u64::from(bytes > 0);
            if let Some(name) = mapping.given_name() {
                found.named_anonymous.add(|| name.to_owned(), bytes, 0);
            }
        }
        Ok(found)
    }

    /// Returns the owners of private memory that is not backed by a file, in order of address and
    /// disjoint.
    fn claims(&self, memory: &ProcessMemory, walked: &WalkedHeaps) -> Vec<Claim<PageOwner>> {
        let areas = detect::areas(memory, self.detected, self.maps, self.stacks, walked);
        let claim = |range, owner, manager, estimated| Claim {
            range,
            owner: PageOwner { owner, manager },
            estimated,
        };
        let managed = areas.into_iter().map(|area| {
            let (owner, manager) = match area.owner {
                // glibc has given it this name, and the walk has not found it.
                detect::AreaOwner::Allocator(AllocatorKind::Glibc) => (Owner::Unattributed, None),
                owner => (Owner::Runtime, Some(owner.name().to_owned())),
            };
            claim(area.range, owner, manager, area.estimated)
        });
        let stacks = self.stacks.iter();
        let stacks = stacks.map(|s| claim(s.range.clone(), Owner::Stacks, None, s.estimated));
        let data = self.detected.zeroed_data.iter();
        let data = data.map(|range| claim(range.clone(), Owner::ProgramData, None, false));
        resolve(managed.chain(stacks).chain(data).collect())
    }

    fn count(
        &self,
        memory: &ProcessMemory,
        mapping: &Mapping,
        part: Range<u64>,
        claims: &[Claim<PageOwner>],
        found: &mut Attribution,
    ) -> io::Result<()> {
        if mapping.name == "[vvar]"
            || mapping.name == "[vvar_vclock]"
            || mapping.name == "[vsyscall]"
            || self.files.is_of_huge_pages(mapping)
        {
            // Pages that the kernel does not count.
            return Ok(());
        }
        let is_private = mapping.permissions.ends_with('p');
        if mapping.has_file() || !is_private || mapping.name == "[vdso]" {
            return self.count_of_file(memory, mapping, part, found);
        }
        let unclaimed = self.unclaimed(mapping);
        let data = |found: &Attribution| found.ledger.bytes(Owner::ProgramData);
        let before = data(found);
        // Without access, none of it becomes resident.
        let is_accessible = !mapping.permissions.starts_with("---");
        if is_accessible {
            let mut add = |claim: Option<&Claim<PageOwner>>, bytes| {
                found.add_room(claim.map_or(unclaimed, |claim| claim.owner.owner), bytes, 0);
            };
            shares(part.clone(), claims, &mut add);
        }
        for run in memory.resident(part) {
            shares(run, claims, &mut |claim, bytes| {
                let owner = claim.map_or(unclaimed, |claim| claim.owner.owner);
                match claim {
                    Some(claim) => found.add(claim, bytes),
                    None => found.ledger.add(owner, bytes),
                }
                if is_accessible {
                    found.add_room(owner, 0, bytes);
                }
            });
        }
        let bytes = data(found) - before;
        if bytes > 0
            && let Some(file) = self.file_before(mapping)
        {
            found.changed_files.add(|| name_of_file(file), bytes, 0);
        }
        Ok(())
    }

    /// Returns the mapping of a program or library whose variables without initial values (`.bss`)
    /// follow it, in a mapping without a file.
    fn file_before(&self, mapping: &Mapping) -> Option<&Mapping> {
        let place = self.maps.partition_point(|other| other.end <= mapping.start);
        let before = self.maps[..place].last()?;
        (before.end == mapping.start && before.has_file()).then_some(before)
    }

    /// Counts the pages of a mapping of a file or of shared memory.
    fn count_of_file(
        &self,
        memory: &ProcessMemory,
        mapping: &Mapping,
        part: Range<u64>,
        found: &mut Attribution,
    ) -> io::Result<()> {
        let of_file = self.claim_of_file(mapping);
        let (mut of_file_bytes, mut changed_bytes) = (0, 0);
        let mapped_bytes = part.end - part.start;
        for pages in memory.pages(part)? {
            let bytes = pages.range.end - pages.range.start;
            match pages.kind {
                PageKind::File => {
                    found.add(&of_file, bytes);
                    of_file_bytes += bytes;
                    if let Some(parts) = found.repeated.get_mut(&mapping.file) {
                        let begin = mapping
                            .offset
                            .saturating_add(pages.range.start.saturating_sub(mapping.start));
                        parts.push(begin..begin.saturating_add(bytes));
                    }
                }
                // Pages of a file that were written to, and thus became private to the process.
                PageKind::Anonymous => {
                    found.ledger.add(Owner::ProgramData, bytes);
                    changed_bytes += bytes;
                }
                PageKind::Swapped => {}
            }
        }
        found.changed_files.add(|| name_of_file(mapping), changed_bytes, 0);
        if mapping.permissions.starts_with("rw-p") || mapping.permissions.starts_with("rwxp") {
            found.add_room(Owner::ProgramData, mapped_bytes, changed_bytes);
        } else if of_file.owner.owner == Owner::Shared {
            found.add_room(Owner::Shared, mapped_bytes, of_file_bytes);
        }
        match of_file.owner.owner {
            Owner::Shared => found.shared.add(|| self.name_of_shared(mapping), of_file_bytes, 0),
            Owner::File => {
                let kept_bytes = if self.is_kept(mapping) { of_file_bytes } else { 0 };
                found.kept_file_bytes += kept_bytes;
                found.files.add(|| name_of_file(mapping), of_file_bytes, kept_bytes);
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns the owner of the pages that a mapping shares with its file.
    fn claim_of_file(&self, mapping: &Mapping) -> Claim<PageOwner> {
        let is_private = mapping.permissions.ends_with('p');
        let is_shared = !is_private && !mapping.has_file() || self.files.is_memory(mapping);
        let is_java = detect::is_java_heap_file(mapping) && self.detected.has(RuntimeKind::HotSpot);
        let owner = match () {
            () if is_java => Owner::Runtime,
            () if is_of_device(mapping) => Owner::Device,
            () if is_shared => Owner::Shared,
            () => Owner::File,
        };
        let manager = is_java.then(|| RuntimeKind::HotSpot.name().to_owned());
        Claim {
            range: mapping.start..mapping.end,
            owner: PageOwner { owner, manager },
            estimated: false,
        }
    }

    /// Returns whether the kernel cannot take back the pages of the file of a mapping.
    fn is_kept(&self, mapping: &Mapping) -> bool {
        self.files.is_ram(mapping) || locked::has(self.locked_files, mapping.start)
    }

    /// Returns the name of shared memory: by its program if that is known, else by its mapping.
    fn name_of_shared(&self, mapping: &Mapping) -> String {
        let is_postgres = self.detected.has(RuntimeKind::Postgres);
        let is_segment = ["/dev/zero", "/SYSV", "/dev/shm/PostgreSQL", "/anon_hugepage"]
            .iter()
            .any(|begin| mapping.name.starts_with(begin));
        if is_postgres && is_segment {
            return "PostgreSQL's shared memory (shared_buffers)".to_owned();
        }
        match mapping.name.trim_end_matches(" (deleted)") {
            "" | "/dev/zero" => "shared anonymous memory".to_owned(),
            name => name.to_owned(),
        }
    }

    /// Returns the owner of private memory if nothing else is known about it.
    fn unclaimed(&self, mapping: &Mapping) -> Owner {
        let is_heap = mapping.name == "[heap]";
        match () {
            // A heap that was not walked. In one that was walked, it is memory that the program
            // allocated with `brk` itself.
            () if is_heap && self.walked.allocators.is_empty() => Owner::Unattributed,
            () => Owner::AnonymousOther,
        }
    }
}

/// Returns the files of which a part is mapped several times, without any pages.
fn repeated(maps: &[Mapping]) -> BTreeMap<FileId, Vec<Range<u64>>> {
    let of_files = maps.iter().filter(|mapping| mapping.has_file());
    let mut parts: Vec<(FileId, u64, u64)> =
        of_files.map(|m| (m.file, m.offset, m.offset.saturating_add(m.end - m.start))).collect();
    parts.sort_unstable();
    let mut found = BTreeMap::new();
    let mut last: Option<(FileId, u64)> = None;
    for (file, start, end) in parts {
        let of_same = last.filter(|(other, _)| *other == file).map(|(_, end)| end);
        if of_same.is_some_and(|end| start < end) {
            found.insert(file, Vec::new());
        }
        last = Some((file, end.max(of_same.unwrap_or(0))));
    }
    found
}

fn name_of_file(mapping: &Mapping) -> String {
    mapping.name.trim_end_matches(" (deleted)").to_owned()
}

/// Splits a range among its claims, which are in order of address and disjoint. Passes the claim
/// and the number of bytes of each part to `each`: no claim for a part between claims.
fn shares<'c>(
    run: Range<u64>,
    claims: &'c [Claim<PageOwner>],
    each: &mut dyn FnMut(Option<&'c Claim<PageOwner>>, u64),
) {
    let mut at = run.start;
    let first = claims.partition_point(|claim| claim.range.end <= run.start);
    for claim in claims[first..].iter().take_while(|claim| claim.range.start < run.end) {
        let (start, end) = (claim.range.start.max(at), claim.range.end.min(run.end));
        if start >= end {
            continue;
        }
        each(None, start - at);
        each(Some(claim), end - start);
        at = end;
    }
    each(None, run.end.saturating_sub(at));
}

fn whole_pages(range: &Range<u64>, page: u64) -> Range<u64> {
    range.start - range.start % page..range.end.next_multiple_of(page)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc::maps;

    #[test]
    fn only_pages_that_are_mapped_again_count_as_repeated() {
        let maps = "7f00000-7f04000 rw-s 00000000 00:01 12 /memfd:a\n\
                    7f10000-7f14000 rw-s 00002000 00:01 12 /memfd:a\n\
                    7f20000-7f24000 rw-s 00000000 00:01 13 /memfd:b\n\
                    7f30000-7f34000 rw-s 00004000 00:01 13 /memfd:b\n";
        let [a, b] = [12, 13].map(|inode| FileId { device: (0, 1), inode });
        let repeated = repeated(&maps::parse(maps).unwrap());
        let mut found = Attribution { repeated, ..Attribution::default() };
        assert_eq!(found.repeated.keys().collect::<Vec<_>>(), [&a]);
        assert!(!found.repeated.contains_key(&b));
        // Two of four pages are the same, and one of them is mapped a third time.
        found.repeated.insert(a, vec![0x2000..0x6000, 0..0x4000, 0x2000..0x3000]);
        assert_eq!(found.mapped_again_bytes(), 0x3000);
    }

    #[test]
    fn a_run_of_pages_is_divided_among_owners_without_loss_or_overlap() {
        let claim = |range, owner, manager: Option<&str>| Claim {
            range,
            owner: PageOwner { owner, manager: manager.map(str::to_owned) },
            estimated: manager.is_some(),
        };
        let claims = [
            claim(0x2000..0x4000, Owner::Stacks, None),
            claim(0x6000..0x9000, Owner::Runtime, Some("Go")),
        ];
        let mut found = Attribution::default();
        let share_out = |run, found: &mut Attribution| {
            shares(run, &claims, &mut |claim, bytes| match claim {
                Some(claim) => found.add(claim, bytes),
                None => found.ledger.add(Owner::AnonymousOther, bytes),
            });
        };
        share_out(0x1000..0x8000, &mut found);
        assert_eq!(found.ledger.bytes(Owner::Stacks), 0x2000);
        assert_eq!(found.ledger.bytes(Owner::Runtime), 0x2000);
        assert_eq!(found.ledger.bytes(Owner::AnonymousOther), 0x3000);
        assert_eq!(found.ledger.total(), 0x7000);
        let go = Manager { name: "Go".to_owned(), bytes: 0x2000, estimated: true };
        assert_eq!(found.managers(), [go]);
        share_out(0x9000..0xa000, &mut found);
        assert_eq!(found.ledger.bytes(Owner::AnonymousOther), 0x4000);
    }
}
