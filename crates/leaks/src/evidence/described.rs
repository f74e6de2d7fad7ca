//! The evidence on the blocks of one group.

use std::collections::{BTreeMap, HashMap};

use lowtide_analysis::leaks::Reachability;
use lowtide_model::leaks::{BlockType, CallProof, Holder, LeakGroup, LeakStack};

use crate::group::GroupKey;
use crate::stacks::survivors::CallCount;

/// Maximum number of types and of holders that are named.
const MAX_NAMED: usize = 5;
/// How the name of a block without a type begins.
pub(super) const UNTYPED: &str = "a block of ";
/// Minimum share of the blocks for a type or holder to be named.
const MIN_SHARE: f64 = 0.05;

/// The evidence on the blocks of a group.
#[derive(Debug, Clone)]
pub struct Described {
    /// The group.
    pub(super) key: GroupKey,
    /// Their types, the most frequent first.
    pub(super) types: Vec<BlockType>,
    /// The memory that points to them, the most frequent first.
    pub(super) holders: Vec<Holder>,
    /// The roots of the paths to them, the most frequent first.
    pub(super) roots: Vec<Holder>,
    /// Whether they can be reached; `None` if that is unknown.
    pub reachability: Option<Reachability>,
    /// The stacks by which they were allocated, the most frequent first.
    pub(super) stacks: Vec<LeakStack>,
    /// The number of calls through the call site in the first of these stacks.
    pub(super) calls: Option<CallCount>,
}

impl Described {
    /// Names the variable from which the program reaches most of the blocks, or else what points to
    /// most of them.
    pub(super) fn main_holder(&self) -> Option<String> {
        const MOST: f64 = 0.5;
        let is_variable =
            |root: &&Holder| root.what.starts_with("variable ") && !is_of_interpreter(root);
        let is_named = |root: &&Holder| is_variable(root) || root.what.starts_with("attribute ");
        let named = self.holders.first().filter(is_named).filter(|found| found.share >= MOST);
        if let Some(variable) = named {
            return Some(variable.what.clone());
        }
        let is_object = self.types.first().is_some_and(|found| found.name.starts_with("Python "));
        if is_object || self.roots.first().is_some_and(is_of_interpreter) {
            return None;
        }
        let root = self.roots.first().filter(is_variable);
        let main = root.into_iter().chain(self.holders.first()).find(|found| found.share >= MOST);
        main.map(|found| found.what.clone())
    }

    /// Returns whether the blocks are objects of Python, or are held by some.
    pub(super) fn is_of_python(&self) -> bool {
        let types = self.types.iter().map(|found| &found.name);
        let mut names = types.chain(self.holders.iter().map(|holder| &holder.what));
        names.any(|name| name.starts_with("Python "))
    }

    /// Adds the variables of Python that lead to the blocks, before what points to them.
    /// `followed` are the blocks from which variables were searched for, and `names` those that
    /// were found.
    pub(super) fn name_variables(&mut self, followed: &[u64], names: &HashMap<u64, String>) {
        /// Minimum share of a variable: an old pointer can lead to another one.
        const MIN: f64 = 0.3;
        let found = followed.iter().filter_map(|at| names.get(at).cloned());
        let variables = most_frequent(found, followed.len()).into_iter();
        let variables = variables.filter(|(_, share)| *share >= MIN);
        let variables: Vec<Holder> =
            variables.map(|(what, share)| Holder { what, share }).collect();
        // The size of a part of the way says nothing beside the variable at its end.
        if !variables.is_empty() {
            self.holders.retain(|holder| !holder.what.starts_with(UNTYPED));
        }
        self.holders.splice(0..0, variables);
        self.holders.truncate(MAX_NAMED);
    }

    /// Adds the evidence to a group.
    pub fn describe(&self, group: &mut LeakGroup) {
        group.set_types(self.types.clone());
        group.holders.clone_from(&self.holders);
        group.roots.clone_from(&self.roots);
        group.stacks.clone_from(&self.stacks);
        let block_bytes = group.bytes as f64 / group.count.max(1) as f64;
        if let Some((first, counted)) = group.stacks.first_mut().zip(self.calls) {
            first.proof = Some(CallProof {
                calls: counted.calls,
                seconds: counted.seconds,
                calls_per_hour: counted.calls as f64 / counted.seconds * 3600.0,
                survivors_per_hour: group.bytes_per_hour as f64 / block_bytes.max(1.0),
            });
        }
    }
}

/// Returns whether a root is a variable of Python's interpreter: the garbage collector leads to
/// every object of Python, a free list to former ones, and its allocator to all their memory.
fn is_of_interpreter(root: &Holder) -> bool {
    let is_any = |names: [&str; 2]| names.iter().any(|name| root.what.starts_with(name));
    let is_of_file = [" of libpython", " of python"].iter().any(|file| root.what.contains(file));
    is_any(["variable _PyRuntime ", "variable free_list "])
        || root.what.starts_with("variable ") && is_of_file
}

/// Returns the most frequent names, each with its share of `all`.
pub(super) fn most_frequent(names: impl Iterator<Item = String>, all: usize) -> Vec<(String, f64)> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for name in names {
        *counts.entry(name).or_default() += 1;
    }
    let shares = counts.into_iter().map(|(name, count)| (name, count as f64 / all.max(1) as f64));
    let mut found: Vec<(String, f64)> = shares.filter(|(_, share)| *share >= MIN_SHARE).collect();
    found.sort_by(|a, b| b.1.total_cmp(&a.1));
    found.truncate(MAX_NAMED);
    found
}
