//! What a release reads from a target and from the kernel, on any bytes.

use std::time::Duration;

use crate::clock::WorkerClock;
use crate::remote::seccomp::{Call, Filter, Instruction, decide};
use crate::stub::{StubCounts, Submitted};

/// Runs a filter on some calls: 8 bytes for each instruction.
pub fn seccomp(bytes: &[u8]) {
    let instruction = |bytes: &[u8; 8]| Instruction {
        code: u16::from_le_bytes([bytes[0], bytes[1]]),
        if_true: bytes[2],
        if_false: bytes[3],
        operand: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
    };
    let (instructions, _) = bytes.as_chunks::<8>();
    let filter = Filter::new(instructions.iter().map(instruction).collect());
    for number in [0, 9, 28, 202, u32::MAX] {
        let call = Call { number, instruction_pointer: u64::MAX, args: [u64::MAX; 6] };
        // A second filter can only forbid more.
        let alone = filter.decide(&call);
        assert!(decide(&[filter.clone(), filter.clone()], &call) <= alone);
    }
}

/// Reads the counts in the block of the stub, which the target can write, twice: no count
/// decreases, or exceeds its limit.
pub fn block(bytes: &[u8]) {
    let (first, second) = bytes.split_at(bytes.len() / 2);
    let (submitted, elapsed) = (Submitted::default(), Duration::from_secs(1));
    let mut before = StubCounts::default();
    for bytes in [first, second, bytes] {
        let counts = StubCounts::parse(bytes, WorkerClock::KERNEL);
        let counts = counts.within(&before, &submitted, elapsed);
        assert!(counts.returned_bytes == 0 && counts.skipped == 0 && counts.busy == 0);
        assert!(counts.longest <= elapsed && counts.longest >= before.longest);
        assert!(counts.lock_holds >= before.lock_holds && counts.p99() <= counts.longest);
        before = counts;
    }
}

#[cfg(test)]
mod tests {
    use lowtide_model::fuzzing::run_seeds;

    #[test]
    fn damaged_filters_end_with_a_decision() {
        run_seeds("seccomp", 300, super::seccomp);
    }

    #[test]
    fn counts_that_the_target_has_written_stay_within_their_limits() {
        run_seeds("block", 300, super::block);
    }
}
