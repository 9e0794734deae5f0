//! Chance that can be repeated.
//!
//! **Invariant:** what is drawn follows from the seed, the stream and how often was drawn before.

/// A source of numbers (SplitMix64).
#[derive(Debug, Clone)]
pub(crate) struct Dice(u64);

impl Dice {
    /// One of several independent streams of a seed.
    pub(crate) fn new(seed: u64, stream: u64) -> Dice {
        let mut dice = Dice(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ stream.wrapping_mul(0xd6e8_feb8_6659_fd93));
        dice.next();
        dice
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// 0 to `limit - 1`.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    /// `from` to `to`, both possible.
    pub(crate) fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    /// True so many times out of 100.
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// An index of a list of weights, each as often as it weighs.
    pub(crate) fn weighted(&mut self, weights: &[u64]) -> usize {
        let mut drawn = self.below(weights.iter().sum());
        for (index, weight) in weights.iter().enumerate() {
            if drawn < *weight {
                return index;
            }
            drawn -= weight;
        }
        0
    }

    /// So many bytes; half of the time they compress well.
    pub(crate) fn bytes(&mut self, length: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(length as usize + 8);
        let dull = self.chance(50);
        let word = self.next();
        while (bytes.len() as u64) < length {
            let next = if dull { word } else { self.next() };
            bytes.extend_from_slice(&next.to_le_bytes());
        }
        bytes.truncate(length as usize);
        bytes
    }
}
