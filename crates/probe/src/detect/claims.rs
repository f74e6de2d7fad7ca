//! Claims on memory, and the rule that decides between them.
//!
//! Each finder of memory states how it knows the owner:
//!
//! - *Proven*: structures of the owner that refer to each other contain the addresses (the arenas
//!   and heaps of glibc, the extents of jemalloc, the pools of CPython, HotSpot's own variables,
//!   the descriptor of a thread), or the owner has named the memory, or the file of a program
//!   defines it.
//! - *Estimated*: the mapping has the size, the alignment or the position of the owner's memory.
//!   The memory of others can have the same.
//!
//! **An estimate never beats a proof**, whichever was made first. An estimate keeps what no proof
//! claims. This module is the only place that decides between claims. Between claims of one kind,
//! the one with the lower start keeps the memory that they share.

use std::ops::Range;

use lowtide_heap::ranges::{union, without};

/// A claim of an owner on memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim<O> {
    /// Its addresses.
    pub range: Range<u64>,
    /// The owner.
    pub owner: O,
    /// Whether the owner is an estimate. Otherwise, it is proven.
    pub estimated: bool,
}

/// Returns the claims without overlaps, in order of address.
pub fn resolve<O: Clone>(claims: Vec<Claim<O>>) -> Vec<Claim<O>> {
    let (estimates, proofs): (Vec<_>, Vec<_>) = claims.into_iter().partition(|c| c.estimated);
    let mut found = disjoint(proofs);
    let estimates: Vec<Claim<O>> =
        estimates.into_iter().flat_map(|claim| outside(claim, &found)).collect();
    found.extend(disjoint(estimates));
    found.sort_unstable_by_key(|claim| claim.range.start);
    found
}

/// Returns the addresses of the proven claims, in order and disjoint: no finder need search them.
pub fn proven<O>(claims: &[Claim<O>]) -> Vec<Range<u64>> {
    ranges(claims.iter().filter(|claim| !claim.estimated))
}

/// Returns the addresses of some claims, in order and disjoint.
pub(super) fn ranges<'c, O: 'c>(claims: impl Iterator<Item = &'c Claim<O>>) -> Vec<Range<u64>> {
    let ranges: Vec<Range<u64>> = claims.map(|claim| claim.range.clone()).collect();
    union(ranges)
}

/// Returns the parts of a claim outside of others, which are in order and disjoint.
fn outside<O: Clone>(claim: Claim<O>, others: &[Claim<O>]) -> Vec<Claim<O>> {
    let Claim { range, owner, estimated } = claim;
    let first = others.partition_point(|other| other.range.end <= range.start);
    let near = others[first..].iter().take_while(|other| other.range.start < range.end);
    let near: Vec<Range<u64>> = near.map(|other| other.range.clone()).collect();
    let part = |range| Claim { range, owner: owner.clone(), estimated };
    without(range, &near).into_iter().map(part).collect()
}

fn disjoint<O>(mut claims: Vec<Claim<O>>) -> Vec<Claim<O>> {
    claims.sort_by_key(|claim| claim.range.start);
    let mut end = 0;
    claims.retain_mut(|claim| {
        claim.range.start = claim.range.start.max(end);
        end = end.max(claim.range.end);
        claim.range.start < claim.range.end
    });
    claims
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(range: Range<u64>, owner: &'static str, estimated: bool) -> Claim<&'static str> {
        Claim { range, owner, estimated }
    }

    #[test]
    fn an_estimate_never_beats_a_proof_whichever_was_made_first() {
        let owners =
            ["glibc", "jemalloc", "mimalloc", "CPython", "Ruby", "HotSpot", "V8", "a stack"];
        for proven in owners {
            for estimated in owners.iter().filter(|owner| **owner != proven) {
                let proof = claim(0x3000..0x5000, proven, false);
                let estimate = claim(0x1000..0x8000, estimated, true);
                let expected = [
                    claim(0x1000..0x3000, estimated, true),
                    proof.clone(),
                    claim(0x5000..0x8000, estimated, true),
                ];
                assert_eq!(resolve(vec![proof.clone(), estimate.clone()]), expected);
                assert_eq!(resolve(vec![estimate, proof]), expected);
            }
        }
    }

    #[test]
    fn an_estimate_within_a_proof_is_dropped() {
        let claims = vec![claim(0x2000..0x3000, "stack", true), claim(0..0x9000, "glibc", false)];
        assert_eq!(resolve(claims), [claim(0..0x9000, "glibc", false)]);
    }

    #[test]
    fn memory_that_two_proofs_share_is_kept_by_the_lower_one() {
        for estimated in [false, true] {
            let claims = vec![
                claim(0x2000..0x6000, "upper", estimated),
                claim(0x1000..0x4000, "lower", estimated),
                claim(0x1000..0x2000, "inner", estimated),
            ];
            let expected = [
                claim(0x1000..0x4000, "lower", estimated),
                claim(0x4000..0x6000, "upper", estimated),
            ];
            assert_eq!(resolve(claims), expected);
        }
    }

    #[test]
    fn only_proven_claims_exclude_memory_from_a_search() {
        let claims = [
            claim(0x4000..0x5000, "glibc", false),
            claim(0x1000..0x9000, "HotSpot", true),
            claim(0x1000..0x4000, "CPython", false),
            claim(0x7000..0x8000, "Ruby", false),
        ];
        assert_eq!(proven(&claims), [0x1000..0x5000, 0x7000..0x8000]);
    }
}
