//! The requests in flight: a slot of 12 bytes for each, found by stream ID.
//!
//! Slots are in blocks of fixed size. Only a list of blocks grows, by eight bytes per 256 requests.
//! So a million requests in flight take 12.1 MB, and never twice that for a moment. A block is
//! freed when its last request ends, wherever it is.

use std::collections::VecDeque;

use crate::protocol::Ticks;

/// The highest stream ID.
const MAX_STREAM_ID: u32 = 0x7fff_ffff;
const SLOTS_PER_BLOCK: u32 = 256;

/// How far the response on a stream has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamStage {
    /// The request has its outcome, or never started.
    Closed,
    /// Nothing arrived.
    Waiting,
    /// The headers arrived, and nothing of the body.
    HeadersReceived {
        /// The status of the response.
        status: u16,
        /// The length of the body, if the headers contain it.
        length: BodyLength,
    },
    /// The body arrives in several frames; see [`super::partial_responses`].
    PartialBody,
}

/// A body length in four bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BodyLength(u32);

impl BodyLength {
    /// The length is unknown.
    pub(super) const UNKNOWN: Self = Self(u32::MAX);

    /// Returns the length, or `None` if four bytes do not suffice.
    pub(super) fn new(bytes: u64) -> Option<Self> {
        u32::try_from(bytes).ok().map(Self).filter(|length| *length != Self::UNKNOWN)
    }

    /// Returns the length in bytes, if it is known.
    pub(super) fn get(self) -> Option<u64> {
        (self != Self::UNKNOWN).then_some(u64::from(self.0))
    }
}

/// A request in flight.
#[derive(Debug, Clone, Copy)]
pub(super) struct StreamSlot {
    pub(super) started: Ticks,
    pub(super) stage: StreamStage,
}

const EMPTY: StreamSlot = StreamSlot { started: Ticks(0), stage: StreamStage::Closed };

#[derive(Debug)]
struct SlotBlock {
    slots: [StreamSlot; SLOTS_PER_BLOCK as usize],
    live: u32,
}

impl SlotBlock {
    fn empty() -> Box<Self> {
        Box::new(Self { slots: [EMPTY; SLOTS_PER_BLOCK as usize], live: 0 })
    }
}

/// All requests in flight.
#[derive(Debug)]
pub(super) struct Streams {
    /// The first block holds the oldest request in flight. Blocks without requests are `None`.
    blocks: VecDeque<Option<Box<SlotBlock>>>,
    /// The number of the first block.
    first: u32,
    /// The slot of the oldest request in flight. Slots count from 0, stream IDs are 1, 3, 5, …
    oldest: u32,
    /// The slot of the next request.
    next: u32,
    live: usize,
}

impl Default for Streams {
    fn default() -> Self {
        Self::starting_at(1)
    }
}

impl Streams {
    /// Returns an empty set whose first request gets this stream ID.
    pub(super) fn starting_at(stream: u32) -> Self {
        let next = stream / 2;
        Self { blocks: VecDeque::new(), first: next / SLOTS_PER_BLOCK, oldest: next, next, live: 0 }
    }

    /// Returns the number of requests in flight.
    pub(super) fn len(&self) -> usize {
        self.live
    }

    /// Returns how many more requests can start before the stream IDs are exhausted.
    pub(super) fn left(&self) -> usize {
        (MAX_STREAM_ID / 2 + 1 - self.next) as usize
    }

    /// Returns whether no request had this stream ID so far.
    pub(super) fn is_idle(&self, stream: u32) -> bool {
        stream.is_multiple_of(2) || stream / 2 >= self.next
    }

    /// Starts a request and returns its stream ID, or `None` if they are exhausted.
    pub(super) fn start(&mut self, started: Ticks) -> Option<u32> {
        if self.left() == 0 {
            return None;
        }
        let slot = self.next;
        let number = slot / SLOTS_PER_BLOCK;
        if self.blocks.is_empty() {
            self.first = number;
        }
        let at = (number - self.first) as usize;
        if at == self.blocks.len() {
            self.blocks.push_back(None);
        }
        let block = self.blocks[at].get_or_insert_with(SlotBlock::empty);
        block.slots[(slot % SLOTS_PER_BLOCK) as usize] =
            StreamSlot { started, stage: StreamStage::Waiting };
        block.live += 1;
        self.live += 1;
        self.next += 1;
        Some(slot * 2 + 1)
    }

    /// Returns the request with this stream ID, if it is in flight.
    pub(super) fn get(&mut self, stream: u32) -> Option<&mut StreamSlot> {
        let slot = stream / 2;
        if stream.is_multiple_of(2) {
            return None;
        }
        let at = (slot / SLOTS_PER_BLOCK).checked_sub(self.first)?;
        let block = self.blocks.get_mut(at as usize)?.as_mut()?;
        let slot = &mut block.slots[(slot % SLOTS_PER_BLOCK) as usize];
        (slot.stage != StreamStage::Closed).then_some(slot)
    }

    /// Ends a request and returns its slot, or `None` if it is not in flight.
    pub(super) fn end(&mut self, stream: u32) -> Option<StreamSlot> {
        let slot = self.get(stream)?;
        let ended = std::mem::replace(slot, EMPTY);
        let number = stream / 2;
        let at = (number / SLOTS_PER_BLOCK - self.first) as usize;
        self.live -= 1;
        if let Some(block) = &mut self.blocks[at] {
            block.live -= 1;
            // The block for the next request stays, unless it is full.
            if block.live == 0 && (number / SLOTS_PER_BLOCK + 1) * SLOTS_PER_BLOCK <= self.next {
                self.blocks[at] = None;
            }
        }
        if number == self.oldest {
            self.advance();
        }
        Some(ended)
    }

    /// Returns the stream ID and the start of the oldest request in flight.
    pub(super) fn oldest(&self) -> Option<(u32, Ticks)> {
        if self.live == 0 {
            return None;
        }
        let at = (self.oldest / SLOTS_PER_BLOCK).checked_sub(self.first)?;
        let block = self.blocks.get(at as usize)?.as_ref()?;
        Some((self.oldest * 2 + 1, block.slots[(self.oldest % SLOTS_PER_BLOCK) as usize].started))
    }

    /// Returns the stream IDs above `stream` that may be in flight.
    pub(super) fn above(&self, stream: u32) -> impl Iterator<Item = u32> + use<> {
        let first = stream.div_ceil(2).max(self.oldest);
        (first..self.next).map(|slot| slot * 2 + 1)
    }

    /// Returns all requests in flight.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut StreamSlot> {
        let slots = self.blocks.iter_mut().flatten().flat_map(|block| &mut block.slots);
        slots.filter(|slot| slot.stage != StreamStage::Closed)
    }

    /// Moves on to the next request in flight, and frees the blocks before it. Passes each slot
    /// once.
    fn advance(&mut self) {
        if self.live == 0 {
            self.oldest = self.next;
        }
        while self.oldest < self.next {
            let at = (self.oldest / SLOTS_PER_BLOCK - self.first) as usize;
            let Some(Some(block)) = self.blocks.get(at) else {
                self.oldest = (self.oldest / SLOTS_PER_BLOCK + 1) * SLOTS_PER_BLOCK;
                continue;
            };
            if block.slots[(self.oldest % SLOTS_PER_BLOCK) as usize].stage != StreamStage::Closed {
                break;
            }
            self.oldest += 1;
        }
        while self.first < self.oldest / SLOTS_PER_BLOCK && self.blocks.pop_front().is_some() {
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use proptest::prelude::*;

    fn held(streams: &Streams) -> usize {
        streams.blocks.iter().flatten().count()
    }

    #[test]
    fn a_request_in_flight_takes_twelve_bytes() {
        assert_eq!(size_of::<StreamSlot>(), 12);
        assert!(size_of::<SlotBlock>() <= 12 * SLOTS_PER_BLOCK as usize + 8);
    }

    #[test]
    fn a_block_is_dropped_once_all_its_streams_have_ended() {
        let mut streams = Streams::default();
        let numbers: Vec<u32> =
            (0..SLOTS_PER_BLOCK * 10).map(|n| streams.start(Ticks(n)).unwrap()).collect();
        assert_eq!((numbers[0], numbers[1], streams.len()), (1, 3, numbers.len()));
        let (keep, end) = numbers.split_first().unwrap();
        for number in end {
            assert!(streams.end(*number).is_some());
        }
        assert_eq!((held(&streams), streams.oldest()), (1, Some((1, Ticks(0)))));
        streams.end(*keep);
        assert_eq!((held(&streams), streams.oldest(), streams.blocks.len()), (0, None, 0));
        assert!(streams.end(*keep).is_none(), "once is enough");
        let next = streams.start(Ticks(7)).unwrap();
        assert_eq!((next, streams.oldest()), (SLOTS_PER_BLOCK * 20 + 1, Some((next, Ticks(7)))));
    }

    #[test]
    fn stream_ids_are_used_up_to_the_maximum() {
        let mut streams = Streams::starting_at(MAX_STREAM_ID - 2);
        assert_eq!(streams.left(), 2);
        assert_eq!(streams.start(Ticks(0)), Some(MAX_STREAM_ID - 2));
        assert_eq!(streams.start(Ticks(0)), Some(MAX_STREAM_ID));
        assert_eq!(streams.start(Ticks(0)), None);
        assert!(streams.end(MAX_STREAM_ID).is_some() && streams.end(MAX_STREAM_ID - 2).is_some());
        assert_eq!((streams.left(), streams.oldest()), (0, None));
    }

    #[test]
    fn stream_ids_without_a_request_are_idle() {
        let mut streams = Streams::default();
        streams.start(Ticks(0));
        assert!(!streams.is_idle(1));
        assert!(streams.is_idle(3) && streams.is_idle(2) && streams.is_idle(0));
        assert!(streams.get(2).is_none() && streams.get(u32::MAX).is_none());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Compares with a map: starts a request (true), or ends one in flight.
        #[test]
        fn streams_behave_like_a_map_for_any_sequence_of_starts_and_ends(
            steps in prop::collection::vec(any::<(bool, u16)>(), 1..20), many in 1..300_usize
        ) {
            let mut streams = Streams::default();
            let mut model = BTreeMap::new();
            let mut now = 0;
            for (starts, which) in steps {
                for _ in 0..many {
                    if starts {
                        now += 1;
                        model.insert(streams.start(Ticks(now)).unwrap(), Ticks(now));
                    } else if let Some((&number, &started)) =
                        model.iter().nth(usize::from(which) % model.len().max(1))
                    {
                        model.remove(&number);
                        prop_assert_eq!(streams.end(number).map(|slot| slot.started), Some(started));
                    }
                }
                prop_assert_eq!(streams.len(), model.len());
                let first = model.first_key_value().map(|(number, started)| (*number, *started));
                prop_assert_eq!(streams.oldest(), first);
                let started: Vec<_> = streams.iter_mut().map(|slot| slot.started).collect();
                prop_assert!(started.iter().eq(model.values()));
                let in_reach = model.len() + 1;
                prop_assert!(held(&streams) <= in_reach);
            }
        }
    }
}
