//! The different stacks of some samples, each with a number.

use std::collections::HashMap;

use super::python_frames::PythonFrames;
use super::unwind::{Frames, StackUnwinder, Walk};

/// Different stacks, up to a maximum number.
#[derive(Debug)]
pub(super) struct NumberedStacks {
    most: usize,
    /// The number of each stack, by its addresses and its functions of Python.
    numbers: HashMap<(Vec<u64>, PythonFrames), u32>,
    /// The stacks, indexed by their numbers, with the number of samples of each, which the caller
    /// counts.
    pub(super) all: Vec<(Frames, u64)>,
}

impl NumberedStacks {
    pub(super) fn new(most: usize) -> Self {
        Self { most, numbers: HashMap::new(), all: Vec::new() }
    }

    /// Begins new numbers for all stacks: the same addresses may contain other code now.
    pub(super) fn renew(&mut self) {
        self.numbers.clear();
    }

    /// Returns the number of a stack; `None` if there are too many.
    pub(super) fn number(
        &mut self,
        unwinder: &mut StackUnwinder,
        walk: Walk,
        python: PythonFrames,
    ) -> Option<u32> {
        let key = (walk.addresses, python);
        if let Some(number) = self.numbers.get(&key) {
            return Some(*number);
        }
        if self.all.len() >= self.most {
            return None;
        }
        let number = self.all.len() as u32;
        let (addresses, python) = key.clone();
        let places = unwinder.places(&addresses);
        self.all.push((Frames { addresses, places, python, is_whole: walk.is_whole }, 0));
        self.numbers.insert(key, number);
        Some(number)
    }

    /// Returns the stack with a number.
    pub(super) fn get(&self, number: u32) -> Option<&Frames> {
        self.all.get(number as usize).map(|(frames, _)| frames)
    }
}
