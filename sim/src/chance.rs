//! Chance, from a seed.
//!
//! A generator of our own (SplitMix64, Steele et al. 2014), so that a committed seed means the
//! same schedule whatever version a crate has.

/// A stream of numbers that looks random and is the same for the same seed.
#[derive(Debug, Clone)]
pub struct Chance(u64);

impl Chance {
    /// The stream of this seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`; 0 when that is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        let bound = bound.max(1) as u64;
        usize::try_from(self.bits() % bound).unwrap_or(0)
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: i64, high: i64) -> i64 {
        let span = u64::try_from(high.saturating_sub(low)).unwrap_or(0);
        let drawn = self.bits() % span.saturating_add(1);
        low.saturating_add(i64::try_from(drawn).unwrap_or(0))
    }

    /// Whether one of `of` happens; never when that is 0.
    pub fn one_in(&mut self, of: usize) -> bool {
        of > 0 && self.below(of) == 0
    }

    /// One of these; nothing when there is none.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        from.get(self.below(from.len())).copied()
    }
}
