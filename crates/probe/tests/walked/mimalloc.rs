//! A heap of mimalloc, compared with the program's own count and the memory that `mi_collect`
//! returns to the OS.

use lowtide_model::ledger::Owner;

use crate::subject::{bundled, inspect, start};

/// Allocations of the C library beside the program's, in bytes.
const OTHERS: u64 = 64 << 10;
/// Maximum difference between `mi_collect` and its prediction, in bytes.
const TOLERANCE: u64 = 64 << 10;

/// Variables that delay the return of freed memory.
const KEEP: [(&str, &str); 1] = [("MIMALLOC_PURGE_DELAY", "1000000")];

#[test]
fn allocated_bytes_are_read_to_64_kib_and_a_purge_returns_the_predicted_bytes() {
    for name in ["mimalloc", "mimalloc2"] {
        let (_home, mut subject) = start(&bundled(name), &KEEP);
        let usable = subject.usable_bytes();
        let observation = inspect(&subject);
        let allocated: u64 = observation.arenas.iter().map(|arena| arena.allocated_bytes).sum();
        assert!((usable..usable + OTHERS).contains(&allocated), "{name}: {usable}, {allocated}");
        assert!(observation.managers.is_empty(), "{name}: {:?}", observation.managers);
        assert_eq!(observation.unwalked_bytes, 0, "{name}");
        let ledger = &observation.ledger;
        assert!(ledger.bytes(Owner::Allocated) <= allocated, "{name}");
        let predicted = observation.heap.and_then(|heap| heap.purge_bytes).unwrap();
        let returned = u64::try_from(subject.purge()).unwrap();
        if name == "mimalloc" {
            // The thread that calls it returns its empty pages, too.
            let empty = observation.arenas.iter().map(|arena| arena.reclaimable_bytes);
            let agrees = |own: u64| (predicted + own).abs_diff(returned) <= TOLERANCE;
            assert!(std::iter::once(0).chain(empty).any(agrees), "{predicted}, {returned}");
        }
        let free = ledger.bytes(Owner::Reclaimable) + ledger.bytes(Owner::Fragmented);
        assert!(free > 20_000_000, "{name}: {ledger:?}");
    }
}
