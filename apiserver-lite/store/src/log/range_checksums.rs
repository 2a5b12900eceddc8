//! Checksums of many ranges of the same bytes, each in a time that does not grow with its length.
//!
//! CRC-32 is linear: that of `a` and `b` together is that of `a`, shifted by the length of `b`, xor that of `b`. So the checksums of all beginnings give
//! those of all ranges.

use std::ops::Range;

use crc32fast::Hasher;

/// Distance, in bytes, of the beginnings whose checksums are kept.
const STEP: usize = 256;

/// The checksums of the ranges of some bytes.
pub struct RangeChecksums<'a> {
    bytes: &'a [u8],
    /// Of the first 0, [`STEP`], 2 [`STEP`] ... bytes.
    beginnings: Vec<u32>,
}

impl<'a> RangeChecksums<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        let mut beginnings = vec![0];
        let mut crc = Hasher::new();
        for block in bytes.chunks_exact(STEP) {
            crc.update(block);
            beginnings.push(crc.clone().finalize());
        }
        Self { bytes, beginnings }
    }

    /// The CRC-32 of a range, continued from the checksum `seed`.
    pub fn checksum(&self, range: Range<usize>, seed: u32) -> u32 {
        let len = range.len() as u64;
        shift(self.of_beginning(range.start) ^ seed, len) ^ self.of_beginning(range.end)
    }

    fn of_beginning(&self, end: usize) -> u32 {
        let block = end / STEP;
        let known = self.beginnings.get(block).copied().unwrap_or_default();
        let mut crc = Hasher::new_with_initial(known);
        crc.update(self.bytes.get(block.saturating_mul(STEP)..end).unwrap_or_default());
        crc.finalize()
    }
}

/// What `crc` adds to a checksum when `len` more bytes follow.
fn shift(crc: u32, len: u64) -> u32 {
    let mut all = Hasher::new_with_initial(crc);
    all.combine(&Hasher::new_with_initial_len(0, len));
    all.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_have_the_checksums_of_their_bytes() {
        let bytes: Vec<u8> = (0..3000_u32).map(|nth| (nth * nth % 251) as u8).collect();
        let sums = RangeChecksums::new(&bytes);
        for start in (0..=bytes.len()).step_by(37) {
            for end in (start..=bytes.len()).step_by(41).chain([bytes.len()]) {
                for seed in [0, 1, 0x9abc_def0] {
                    let mut crc = Hasher::new_with_initial(seed);
                    crc.update(&bytes[start..end]);
                    assert_eq!(sums.checksum(start..end, seed), crc.finalize(), "{start}..{end}");
                }
            }
        }
    }
}
