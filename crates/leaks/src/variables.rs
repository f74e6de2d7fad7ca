//! Names the variables of Python by which a program keeps blocks: those of modules, and the
//! attributes of classes.
//!
//! CPython keeps such names in the table of a dict (`PyDictKeysObject`), whose entries are a key
//! and a value, with or without the hash of the key before them. So the word before a pointer to a
//! value is a pointer to the name, in every version. The first entry of the table of a module is
//! `__name__`, that of a class is `__module__`; other dicts can hold data of the program, and are
//! not read.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use lowtide_heap::memory::Memory;
use lowtide_heap::pymalloc::objects;
use lowtide_probe::inspect::BlockWalk;

use crate::files::Image;
use crate::pointers::index::BlockIndex;
use crate::pointers::roots::Roots;
use crate::pointers::sources::{Pointers, pointers_to};
use crate::types::{TypeWord, type_of};

/// Maximum number of steps from a block to the variable that leads to it.
const MAX_STEPS: usize = 8;
/// Maximum number of blocks whose holders are searched for at once.
const MAX_BLOCKS: usize = 1024;
/// Maximum length of a name or path.
const MAX_TEXT: usize = 4096;
/// Number of entries of a module that are searched for its file.
const FIRST_ENTRIES: u64 = 12;

/// Finds the variables that lead to blocks.
pub(crate) struct VariableFinder<'v, M> {
    pub(crate) image: &'v Image<'v>,
    pub(crate) memory: &'v M,
    pub(crate) index: &'v BlockIndex,
    pub(crate) roots: &'v Roots,
    pub(crate) walk: &'v BlockWalk,
}

impl<M: Memory> VariableFinder<'_, M> {
    /// Returns the names of the variables that lead to some blocks, by the address of the block.
    /// `pointers` are the pointers to them.
    pub(crate) fn of(&self, blocks: &[u64], pointers: &Pointers) -> HashMap<u64, String> {
        let mut found: HashMap<u64, String> = HashMap::new();
        let mut seen = HashSet::new();
        let origins: Vec<(u64, u64)> = blocks.iter().map(|at| (*at, *at)).collect();
        let mut next = self.step(&origins, pointers, &mut seen, &mut found);
        for _ in 1..MAX_STEPS {
            // What leads to a block leads to all that it was reached from.
            next.retain(|(_, origin)| !found.contains_key(origin));
            next.truncate(MAX_BLOCKS);
            if next.is_empty() {
                break;
            }
            let of_next = self.pointers(&next);
            next = self.step(&next, &of_next, &mut seen, &mut found);
        }
        found
    }

    fn pointers(&self, blocks: &[(u64, u64)]) -> Pointers {
        let mut all: Vec<u64> = blocks.iter().map(|(at, _)| *at).collect();
        all.sort_unstable();
        all.dedup();
        let ranges = all.iter().filter_map(|at| {
            let id = self.index.starting_at(*at)?;
            Some((self.index.range(id)?, self.index.print(id)))
        });
        pointers_to(self.memory, ranges, Some(self.index), self.roots, self.walk)
    }

    /// Names the blocks that a variable holds directly, and returns the blocks that hold the
    /// others, each with the block that it was reached from.
    fn step(
        &self,
        blocks: &[(u64, u64)],
        pointers: &Pointers,
        seen: &mut HashSet<(u64, u64)>,
        found: &mut HashMap<u64, String>,
    ) -> Vec<(u64, u64)> {
        let mut next = Vec::new();
        for (block, origin) in blocks {
            for at in pointers.get(block).into_iter().flatten() {
                let Some(holder) = self.index.containing(*at).and_then(|id| self.index.range(id))
                else {
                    continue;
                };
                let step = (holder.start, *origin);
                if let Some(name) = self.variable(*at, holder.start) {
                    found.insert(*origin, name);
                } else if self.holds_objects(&holder)
                    && !self.is_link(*block, *at, holder.start)
                    && seen.insert(step)
                {
                    next.push(step);
                }
            }
        }
        next
    }

    /// Returns whether the program keeps objects in a block: in an object, or in memory of one. The
    /// frame of a call that has ended keeps pointers that hold nothing, and its code leads to it.
    /// A text or number can contain a pointer only in its unused end.
    fn holds_objects(&self, block: &Range<u64>) -> bool {
        const WITHOUT: [&str; 10] = [
            "Python builtin_function_or_method",
            "Python bytes",
            "Python code",
            "Python float",
            "Python frame",
            "Python function",
            "Python int",
            "Python str",
            "Python traceback",
            "Python type",
        ];
        let found = type_of(self.image, self.memory, block, false);
        found.is_none_or(|name| !WITHOUT.contains(&name.as_str()))
    }

    /// Returns whether a pointer at an address of one block to another is a link of the garbage
    /// collector's list of all objects (`PyGC_Head`), which holds nothing: it is in the head of an
    /// object, or the other block links back from its first words.
    fn is_link(&self, block: u64, at: u64, holder: u64) -> bool {
        const FIRST: u64 = 4 * 8;
        const FLAGS: u64 = 7;
        if at - holder >= FIRST {
            return false;
        }
        let links_back = || {
            let words = (block..block + FIRST).step_by(8).filter_map(|at| self.image.word(at));
            words.map(|word| word & !FLAGS).any(|word| (holder..holder + FIRST).contains(&word))
        };
        self.links(holder).contains(&(at - holder)) || links_back()
    }

    /// Returns the offsets of the links in the head of an object; none if it has no head. Its type
    /// is three words after them, or five in Python 3.6, where two words of state follow them.
    fn links(&self, object: u64) -> Range<u64> {
        let word = |place: u64| self.image.word(object + place * 8).unwrap_or(0);
        let is_type = |place: u64| TypeWord::Python(word(place)).name(self.image).is_some();
        let is_state = |word: u64| (word as i64) < 1 << 16;
        match () {
            () if is_type(1) => 0..0,
            () if is_type(3) || is_type(5) && is_state(word(2)) => 0..16,
            () if is_type(5) => 16..32,
            () => 0..0,
        }
    }

    /// Returns the name of the variable whose value the pointer at an address of a block is.
    fn variable(&self, at: u64, block: u64) -> Option<String> {
        let name = self.text(self.image.word(at.checked_sub(8)?)?)?;
        let table = DictTable::read(self.image, block)?;
        let [key, value] = table.entry(self.image, 0)?.map(|at| self.text(at));
        let module = value?;
        match key?.as_str() {
            "__name__" if module == "__main__" => Some(match self.file(&table) {
                Some(file) => format!("variable {name} of module __main__ ({file})"),
                None => format!("variable {name} of module __main__"),
            }),
            "__name__" => Some(format!("variable {name} of module {module}")),
            "__module__" => Some(format!("attribute {name} of a class in module {module}")),
            _ => None,
        }
    }

    /// Returns the name of the file of a module, without directories.
    fn file(&self, table: &DictTable) -> Option<String> {
        let mut entries = (0..FIRST_ENTRIES).filter_map(|place| table.entry(self.image, place));
        let [_, path] = entries.find(|[key, _]| self.text(*key).as_deref() == Some("__file__"))?;
        let path = self.text(path)?;
        path.rsplit('/').next().map(str::to_owned)
    }

    /// Returns the text of a `str` of printable ASCII characters.
    fn text(&self, at: u64) -> Option<String> {
        let of_type = self.image.word(at.checked_add(objects::TYPE)?)?;
        if !at.is_multiple_of(8) || TypeWord::Python(of_type).name(self.image)? != "Python str" {
            return None;
        }
        let length = self.image.word(at.checked_add(objects::LENGTH)?)?;
        let text = objects::ASCII_TEXTS.iter().find_map(|begin| {
            let begin = at.checked_add(*begin)?;
            self.image.text(begin, MAX_TEXT)
        })?;
        (text.len() as u64 == length).then_some(text)
    }
}

/// The table of a dict.
struct DictTable {
    /// Address of its first entry.
    entries_at: u64,
    /// Number of words of an entry: hash, key and value, or key and value.
    words: u64,
}

impl DictTable {
    /// Reads the header of the table that starts at an address; `None` if it is none, or is empty.
    fn read(image: &Image<'_>, at: u64) -> Option<Self> {
        [Self::new, Self::old].into_iter().find_map(|header| {
            let table = header(image, at)?;
            // A key is a `str`, whose type is a type.
            let [key, _] = table.entry(image, 0)?;
            let of_type = image.word(key.checked_add(objects::TYPE)?)?;
            (TypeWord::Python(of_type).name(image)? == "Python str").then_some(table)
        })
    }

    /// The table of Python 3.11 and newer: `dk_refcnt`, then bytes: `dk_log2_size`,
    /// `dk_log2_index_bytes`, `dk_kind`.
    fn new(image: &Image<'_>, at: u64) -> Option<Self> {
        const HEADER: u64 = 32;
        const WITH_HASHES: u8 = 0;
        let [log2_size, log2_index_bytes, kind, ..] = image.word(at.checked_add(8)?)?.to_le_bytes();
        let is_table = (3..32).contains(&log2_size)
            && (log2_size..log2_size + 4).contains(&log2_index_bytes)
            && kind <= 2;
        is_table.then(|| Self {
            entries_at: at + HEADER + (1 << log2_index_bytes),
            words: if kind == WITH_HASHES { 3 } else { 2 },
        })
    }

    /// The table of Python 3.6 to 3.10: `dk_refcnt`, `dk_size`.
    fn old(image: &Image<'_>, at: u64) -> Option<Self> {
        const HEADER: u64 = 40;
        let size = image.word(at.checked_add(8)?)?;
        let index_bytes = match size {
            0..=0xff => 1,
            0x100..=0xffff => 2,
            _ => 4,
        };
        let is_table = size.is_power_of_two() && (8..1 << 32).contains(&size);
        is_table.then(|| Self { entries_at: at + HEADER + size * index_bytes, words: 3 })
    }

    /// Returns the addresses of the key and the value of an entry.
    fn entry(&self, image: &Image<'_>, place: u64) -> Option<[u64; 2]> {
        let at = self.entries_at + (place * self.words + self.words - 2) * 8;
        Some([image.word(at)?, image.word(at + 8)?])
    }
}
