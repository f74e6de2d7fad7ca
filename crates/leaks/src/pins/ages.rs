//! Which blocks are older than a watch.
//!
//! A block is recognised by its address and the beginning of its content. A block that was in use
//! at the address of another one, or whose beginning has changed, may be of any age.

use std::collections::BTreeMap;

use lowtide_heap::blocks::{Block, PLACE, print};
use lowtide_model::pins::BlockAge;
use lowtide_probe::inspect::BlockReader;
use lowtide_probe::target::{Target, TargetError};

use super::census::{Census, CensusBuilder, MAX_TYPES, TypeId};

/// The bits of the type of a block that are its age.
const OLDER: TypeId = 1 << 15;
const NEW: TypeId = 1 << 14;
const AGES: TypeId = OLDER | NEW;
const _: () = assert!(MAX_TYPES < NEW as usize, "the numbers of types have other bits");
/// Alignment of blocks, in bytes.
const UNIT: u64 = 8;

/// Returns the number of a type without the age of the block.
pub(super) fn type_of(type_id: TypeId) -> TypeId {
    type_id & !AGES
}

/// The address, and a hash of the beginning of the content, of each block in use at one time. A
/// small block takes 4 bytes.
#[derive(Debug)]
pub struct EarlierBlocks {
    /// The offsets of the blocks in each place, in units and in order, and their hashes.
    places: Vec<(u64, Vec<(u16, u16)>)>,
    large: BTreeMap<u64, u16>,
    /// The sampling of the walk: only these parts of the heap are known.
    pub(super) sampling: u32,
    /// Whether a part of the heap could not be read.
    pub(super) has_unread: bool,
}

impl EarlierBlocks {
    /// Reads the blocks of a process. The process is not stopped.
    ///
    /// # Errors
    /// Fails if its memory may not be read, if it has ended, or executes another program.
    pub fn read(target: &Target) -> Result<Self, TargetError> {
        let mut builder = CensusBuilder::of_content();
        BlockReader::open(target)?.walk(&mut builder)?;
        let sampling = builder.sampling;
        Ok(Self::new(&builder.build(), sampling))
    }

    fn new(census: &Census, sampling: u32) -> Self {
        let has_unread = !census.unread.is_empty();
        let (mut places, mut large) = (Vec::<(u64, Vec<(u16, u16)>)>::new(), BTreeMap::new());
        let mut cached = census.cached.iter().peekable();
        for Block { at, bytes, print } in census.blocks.iter() {
            while cached.next_if(|free| **free < at).is_some() {}
            if cached.peek() == Some(&&at) {
                continue;
            }
            if bytes >= PLACE {
                large.insert(at, print);
                continue;
            }
            let entry = (offset(at), print);
            match places.last_mut() {
                Some((place, entries)) if *place == at / PLACE => entries.push(entry),
                last => {
                    last.into_iter().for_each(|(_, entries)| entries.shrink_to_fit());
                    places.push((at / PLACE, vec![entry]));
                }
            }
        }
        Self { places, large, sampling, has_unread }
    }

    /// Returns the hash of the block that was at an address; 0 if its content could not be read.
    fn hash(&self, at: u64) -> Option<u16> {
        let place = self.places.binary_search_by_key(&(at / PLACE), |(place, _)| *place);
        let small = place.ok().and_then(|place| {
            let entries = &self.places[place].1;
            let entry = entries.binary_search_by_key(&offset(at), |(offset, _)| *offset).ok()?;
            Some(entries[entry].1)
        });
        small.or_else(|| self.large.get(&at).copied())
    }

    /// Returns the age of a block as bits of its type.
    pub(super) fn age(&self, at: u64, first: &[u8]) -> TypeId {
        match self.hash(at) {
            None => NEW,
            Some(hash) if hash == print(first) => OLDER,
            Some(_) => 0,
        }
    }
}

fn offset(at: u64) -> u16 {
    (at % PLACE / UNIT) as u16
}

impl Census {
    /// Returns the name of a type.
    pub(super) fn type_name(&self, type_id: TypeId) -> Option<&String> {
        let place = usize::from(type_of(type_id)).checked_sub(1)?;
        self.types.get(place)
    }

    /// Returns the age of a block with a type; `None` without a watch.
    pub(super) fn age(&self, type_id: TypeId) -> Option<BlockAge> {
        let age = match type_id & AGES {
            OLDER => BlockAge::BeforeWatch,
            NEW => BlockAge::SinceWatch,
            _ => BlockAge::Unknown,
        };
        self.has_ages.then_some(age)
    }
}

#[cfg(test)]
mod tests {
    use lowtide_heap::blocks::BlockVisitor;

    use super::*;

    fn census(mut builder: CensusBuilder<'_>, blocks: &[(u64, u64, u8)], cached: &[u64]) -> Census {
        for (at, bytes, content) in blocks {
            let print = builder.print(*at, &[*content; 48]);
            let block = Block { at: *at, bytes: *bytes, print };
            match *bytes >= PLACE {
                true => builder.large(block),
                false => builder.blocks(*at..*at + 8, &[block]),
            }
        }
        cached.iter().for_each(|at| builder.is_free(*at));
        builder.build()
    }

    #[test]
    fn blocks_with_the_same_address_and_content_are_older_and_those_of_caches_were_free() {
        let before = [
            (0x10010, 32, 1),
            (0x10040, 32, 1),
            (0x10080, 32, 1),
            (0x25000, 48, 1),
            (0x90000, 2 * PLACE, 1),
        ];
        let before = census(CensusBuilder::of_content(), &before, &[0x10040]);
        let earlier = EarlierBlocks::new(&before, 0);
        let after = [
            (0x10010, 32, 1),
            (0x10040, 32, 1),
            (0x10080, 32, 2),
            (0x25008, 48, 1),
            (0x90000, PLACE, 1),
            (0xd0000, PLACE, 1),
        ];
        let after = census(CensusBuilder::new(None).since(Some(&earlier)), &after, &[]);
        let ages: Vec<_> = after.blocks.iter().map(|block| after.age(block.print)).collect();
        let [older, new, unknown] =
            [BlockAge::BeforeWatch, BlockAge::SinceWatch, BlockAge::Unknown].map(Some);
        assert_eq!(ages, [older, new, unknown, new, older, new]);
        assert!(after.blocks.iter().all(|block| type_of(block.print) == 0));
        assert_eq!(Census::default().age(OLDER), None, "not watched");
    }
}
