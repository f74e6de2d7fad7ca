//! Which blocks are older than a watch.
//!
//! A block is recognised by its address and the beginning of its content. A block that was in use
//! at the address of another one, or whose beginning has changed, may be of any age.

use std::collections::BTreeMap;

use lowtide_heap::blocks::{Block, PLACE, print};

use super::type_id::{NEW, OLDER, TypeId};

/// Alignment of blocks, in bytes.
const UNIT: u64 = 8;

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
    /// Remembers blocks, which are in order.
    pub(super) fn new(
        blocks: impl Iterator<Item = Block>,
        sampling: u32,
        has_unread: bool,
    ) -> Self {
        let (mut places, mut large) = (Vec::<(u64, Vec<(u16, u16)>)>::new(), BTreeMap::new());
        for Block { at, bytes, print } in blocks {
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
