//! The proof that a seed gives one history: a hash of all events, in order.

/// Mixes in values, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trace(u64);

impl Default for Trace {
    fn default() -> Self {
        // The golden ratio, as in SplitMix64; any start but 0 works.
        Self(0x9e37_79b9_7f4a_7c15)
    }
}

impl Trace {
    /// Adds a value.
    pub fn add(&mut self, word: u64) {
        // The finalizer of SplitMix64 (Steele, Lea, Flood 2014) spreads each word over all bits.
        let mut z = (self.0.rotate_left(23) ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        self.0 = z ^ (z >> 31);
    }

    /// The hash of everything so far.
    pub fn hash(self) -> u64 {
        self.0
    }
}
