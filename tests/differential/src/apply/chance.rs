//! pure: numbers from a seed (SplitMix64), the same in each run and with each version of any library.

/// A generator of numbers.
pub struct Chance(u64);

impl Chance {
    /// The generator of a run's seed for what `name` names.
    pub fn new(seed: u64, name: &str) -> Self {
        // FNV-1a, whose constants these are.
        let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        Self(name.bytes().fold(0xcbf2_9ce4_8422_2325 ^ seed, mix))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// True in so many of a hundred cases.
    pub fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// One of them, of which there is one.
    pub fn choose<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }

    /// At most `most` of them, in their order.
    pub fn some<T>(&mut self, mut all: Vec<T>, most: usize) -> Vec<T> {
        while all.len() > most {
            all.remove(self.below(all.len()));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_seed_and_the_name() {
        let numbers = |seed, name| {
            let mut chance = Chance::new(seed, name);
            (0..8).map(|_| chance.below(1000)).collect::<Vec<_>>()
        };
        assert_eq!(numbers(1, "pods"), numbers(1, "pods"));
        assert_ne!(numbers(1, "pods"), numbers(2, "pods"));
        assert_ne!(numbers(1, "pods"), numbers(1, "nodes"));
        assert_eq!(Chance::new(1, "a").some(vec![1, 2, 3, 4, 5], 2).len(), 2);
    }
}
