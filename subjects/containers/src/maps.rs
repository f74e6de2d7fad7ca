//! Maps: filled, emptied, and dropped.

use std::collections::HashMap;
use std::hint::black_box;

use dashmap::DashMap;

use crate::stage::Stage;

/// Number of values in each element: with these, a million elements take the post's 260 MB.
const VALUES: usize = 20;

/// A type of map that the post tests.
pub(crate) trait Map: Default {
    /// Adds elements with these keys.
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

/// Runs one round.
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
