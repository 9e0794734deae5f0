//! Chance, from a seed.

/// A stream of numbers that a seed fixes (splitmix64).
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// Seeds that are near each other begin far from each other: otherwise the stream of one would be that of the next, a step later.
    pub(crate) fn new(seed: u64) -> Random {
        Random(mixed(mixed(seed).wrapping_add(0x1234_5678_9abc_def1)))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed(self.0)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % (limit.max(1) as u64)).unwrap_or(0)
    }

    /// True so many times in a thousand.
    pub(crate) fn permille(&mut self, times: usize) -> bool {
        self.below(1000) < times
    }
}

fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn lives_of_seeds_in_a_row_share_no_chance() {
        let mut seen = BTreeSet::new();
        for seed in 0..1000 {
            let mut random = Random::new(seed);
            assert!((0..100).all(|_| seen.insert(random.next())), "seed {seed} meets what another one has met");
        }
    }
}
