//! The difference between two heap files: resident memory by owner, and blocks by size and type.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use lowtide_model::heap_file::{
    ComparedHeap, DIFFERENCE_SCHEMA, GroupDifference, HeapDifference, RowDifference, difference,
};
use lowtide_model::ledger::{Ledger, Row};
use lowtide_model::pins::{BlockCensus, BlockGroup};

/// One of the two files.
#[derive(Debug)]
pub struct Heap<'l> {
    /// The file and its process.
    pub compared: ComparedHeap,
    /// Its resident memory by owner.
    pub ledger: &'l Ledger,
    /// All its blocks by size and type.
    pub blocks: BlockCensus,
}

/// What decides which groups are compared: allocator, size and type.
type Key<'c> = (Option<&'c str>, u64, Option<&'c str>);

/// Compares two files. `top` is the maximum number of groups of blocks.
pub fn compare(before: Heap<'_>, after: Heap<'_>, top: usize) -> HeapDifference {
    let estimated = before.blocks.estimated || after.blocks.estimated;
    let mut notes = Vec::new();
    if before.compared.command != after.compared.command {
        notes.push("the files are of different commands".to_owned());
    }
    if before.compared.unix_s > after.compared.unix_s {
        notes.push("the second file was saved before the first one".to_owned());
    }
    HeapDifference {
        schema: DIFFERENCE_SCHEMA,
        difference_bytes: difference(before.ledger.total(), after.ledger.total()),
        ledger: rows(before.ledger, after.ledger),
        blocks: groups(&before.blocks, &after.blocks, top, estimated),
        before: before.compared,
        after: after.compared,
        notes,
    }
}

fn rows(before: &Ledger, after: &Ledger) -> Vec<RowDifference> {
    let is_in =
        |ledger: &Ledger, row: &Row| ledger.rows().iter().find(|r| is_same(r, row)).copied();
    let only_before = before.rows().iter().filter(|row| is_in(after, row).is_none());
    let mut all: Vec<Row> = after.rows().iter().chain(only_before).copied().collect();
    all.sort_by_key(|row| (row.owner, row.manager, row.state));
    let of = |row: &Row| {
        let (one, other) = (is_in(before, row), is_in(after, row));
        let bytes = |row: Option<Row>| row.map_or(0, |row| row.bytes);
        let (before_bytes, after_bytes) = (bytes(one), bytes(other));
        RowDifference {
            owner: row.owner,
            manager: row.manager,
            state: row.state,
            before_bytes,
            after_bytes,
            difference_bytes: difference(before_bytes, after_bytes),
            estimated: [one, other].into_iter().flatten().any(|row| row.estimated),
        }
    };
    all.iter().map(of).collect()
}

fn is_same(one: &Row, other: &Row) -> bool {
    (one.owner, one.manager, one.state) == (other.owner, other.manager, other.state)
}

fn groups(
    before: &BlockCensus,
    after: &BlockCensus,
    top: usize,
    estimated: bool,
) -> Vec<GroupDifference> {
    let (of_before, of_after) = (by_key(before), by_key(after));
    let keys: BTreeSet<&Key<'_>> = of_before.keys().chain(of_after.keys()).collect();
    let pair = |key: &Key<'_>| {
        let (one, other) = (of_before.get(key), of_after.get(key));
        let found = GroupDifference::new(one.copied(), other.copied())?;
        Some(GroupDifference { estimated, ..found })
    };
    let mut found: Vec<GroupDifference> = keys.into_iter().filter_map(pair).collect();
    found.retain(|group| group.difference_bytes != 0 || group.before_blocks != group.after_blocks);
    found.sort_by_key(|group| Reverse(group.difference_bytes.unsigned_abs()));
    found.truncate(top);
    found
}

/// Returns the groups by their keys, without the group of all other blocks.
fn by_key(census: &BlockCensus) -> BTreeMap<Key<'_>, &BlockGroup> {
    let is_others = |group: &BlockGroup| group.size_bytes[0] == 0 && group.blocks > 0;
    census
        .groups
        .iter()
        .filter(|group| !is_others(group))
        .map(|group| {
            let key =
                (group.allocator.as_deref(), group.size_bytes[0], group.block_type.as_deref());
            (key, group)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use lowtide_model::ledger::Owner;

    use super::*;

    fn group(bytes: u64, blocks: u64, block_type: Option<&str>) -> BlockGroup {
        BlockGroup {
            allocator: Some("glibc".to_owned()),
            size_bytes: [bytes; 2],
            block_type: block_type.map(str::to_owned),
            age: None,
            stacks: Vec::new(),
            holder: None,
            blocks,
            bytes: bytes * blocks,
            share: 0.0,
            spare_bytes: None,
            idle_bytes: None,
        }
    }

    fn heap(ledger: &Ledger, groups: Vec<BlockGroup>) -> Heap<'_> {
        let compared = ComparedHeap {
            file: "a.heap".to_owned(),
            pid: 1,
            command: vec!["server".to_owned()],
            unix_s: 0.0,
            rss_bytes: ledger.total(),
        };
        Heap { compared, ledger, blocks: BlockCensus { groups, ..BlockCensus::default() } }
    }

    #[test]
    fn the_largest_differences_come_first_and_rows_add_up() {
        let (mut less, mut more) = (Ledger::default(), Ledger::default());
        less.add(Owner::Allocated, 100);
        less.add(Owner::Stacks, 50);
        more.add(Owner::Allocated, 170);
        let before = vec![group(32, 5, None), group(64, 9, Some("C++ Gone")), group(48, 2, None)];
        let after = vec![group(32, 100, None), group(48, 2, None)];
        let found = compare(heap(&less, before), heap(&more, after), 10);
        assert_eq!(found.difference_bytes, 20);
        assert_eq!(found.ledger.iter().map(|row| row.difference_bytes).sum::<i64>(), 20);
        let found: Vec<(u64, i64)> =
            found.blocks.iter().map(|g| (g.size_bytes, g.difference_bytes)).collect();
        assert_eq!(found, [(32, 95 * 32), (64, -9 * 64)]);
    }
}
