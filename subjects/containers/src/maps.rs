//! Maps: filled, emptied, and dropped.

use std::collections::HashMap;
use std::hint::black_box;

use dashmap::DashMap;

use crate::stage::Stage;

/// As many values in each element as make the document's 260 MB of a million.
const VALUES: usize = 20;

/// A map of what the document tried.
pub(crate) trait Map: Default {
    /// Puts elements with these keys in.
    fn fill(&mut self, keys: std::ops::Range<usize>);
    /// Removes all elements.
    fn empty(&mut self);
}

impl Map for HashMap<usize, usize> {
    fn fill(&mut self, keys: std::ops::Range<usize>) {
        self.extend(keys.map(|key| (key, key)));
    }

    fn empty(&mut self) {
        self.clear();
    }
}

impl Map for HashMap<usize, Vec<usize>> {
    fn fill(&mut self, keys: std::ops::Range<usize>) {
        for key in keys {
            self.insert(key, vec![key; VALUES]);
        }
    }

    fn empty(&mut self) {
        self.clear();
    }
}

impl Map for DashMap<usize, usize> {
    fn fill(&mut self, keys: std::ops::Range<usize>) {
        for key in keys {
            self.insert(key, key);
        }
    }

    fn empty(&mut self) {
        self.clear();
    }
}

/// One round.
pub(crate) fn round<M: Map>(stage: &Stage, count: usize) {
    let mut map = M::default();
    map.fill(0..count);
    stage.announce("filled", &format!("{count} elements"));
    map.empty();
    black_box(&map);
    stage.announce("emptied", "no element");
    drop(map);
    stage.announce("dropped", "no map");
}
