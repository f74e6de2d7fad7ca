//! The order in which treatments are tried.

/// Returns a random order in which every repeat has each treatment once. The order of the first
/// repeat is random, the second reverses it, the third is random again, and so on. So a steady
/// drift of the machine affects all treatments equally, and paired trials are close together.
pub(crate) fn alternating(treatments: usize, repeats: u32, seed: u64) -> Vec<usize> {
    let mut random = SplitMix(seed);
    let mut order = Vec::with_capacity(treatments * repeats as usize);
    let mut block: Vec<usize> = (0..treatments).collect();
    for repeat in 0..repeats {
        if repeat % 2 == 0 {
            block.sort_unstable();
            random.shuffle(&mut block);
        } else {
            block.reverse();
        }
        order.extend(&block);
    }
    order
}

/// Returns an order in which the treatments of each repeat are in a random order of their own. So
/// the order of two equal treatments is a fair coin for each repeat: that one of them seems larger
/// in all repeats is as improbable as that many heads, however the machine drifts. Without this,
/// noise that recurs in the rhythm of the order could pass for a difference.
pub(crate) fn independent(treatments: usize, repeats: u32, seed: u64) -> Vec<usize> {
    let mut random = SplitMix(seed);
    let mut block: Vec<usize> = (0..treatments).collect();
    let mut draw = |_| {
        random.shuffle(&mut block);
        block.clone()
    };
    (0..repeats).flat_map(&mut draw).collect()
}

/// SplitMix64 (Steele, Lea and Flood, 2014): the order for a seed must be the same in every version
/// of lowtide, so the generator cannot come from a library that may change it.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn shuffle(&mut self, items: &mut [usize]) {
        for last in (1..items.len()).rev() {
            // The bias of the remainder is far below one in 2^50 for so few items.
            let chosen = (self.next() % (last as u64 + 1)) as usize;
            items.swap(last, chosen);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_repeat_runs_each_treatment_once() {
        let order = alternating(5, 7, 42);
        for block in order.chunks(5) {
            let mut sorted = block.to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2, 3, 4]);
        }
        assert_eq!(order.len(), 35);
    }

    #[test]
    fn every_second_repeat_reverses_the_order() {
        let order = alternating(4, 4, 7);
        let turned: Vec<usize> = order[..4].iter().rev().copied().collect();
        assert_eq!(order[4..8], turned[..]);
    }

    #[test]
    fn the_order_of_two_versions_is_drawn_for_each_repeat() {
        let order = independent(2, 1000, 5);
        let first: Vec<usize> = order.chunks(2).map(|pair| pair[0]).collect();
        assert!(order.chunks(2).all(|pair| pair[0] + pair[1] == 1));
        let heads = first.iter().sum::<usize>();
        assert!((450..=550).contains(&heads), "{heads}");
        let changes = first.windows(2).filter(|two| two[0] != two[1]).count();
        assert!((450..=550).contains(&changes), "{changes}");
        assert_eq!(order[..20], independent(2, 10, 5)[..], "more repeats continue the same order");
    }

    #[test]
    fn a_seed_always_yields_the_same_order() {
        // The first output of the authors' own program for this seed.
        assert_eq!(SplitMix(1_234_567).next(), 6_457_827_717_110_365_317);
        assert_eq!(alternating(4, 3, 2), [0, 1, 3, 2, 2, 3, 1, 0, 3, 2, 1, 0]);
    }
}
