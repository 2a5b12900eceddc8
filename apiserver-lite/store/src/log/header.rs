//! Headers of segments: the revision of the first write, and the seed of the checksums.
//!
//! A value may hold bytes that look like frames, and a torn write leaves parts of it. A seed that is known to the log's readers only keeps such bytes from
//! being valid frames: who writes a value would have to guess 32 bits.

use std::{fs::File, io, os::unix::fs::FileExt as _};

use super::Revision;

/// Of segments without a seed (formats 1 and 2).
const MAGIC_UNSEEDED: &[u8; 8] = b"orchlog1";
/// Differs from the older one in this many bits that damage does not make one out of the other.
const MAGIC: &[u8; 8] = b"ORCH LOG";
const UNSEEDED_LEN: usize = 16;
const LEN: usize = 24;

/// A whole header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Revision of the segment's first write.
    pub first: Revision,
    /// Initial value of the CRC-32 of each frame; 0 in segments of older formats.
    pub seed: u32,
    /// Length of the header in bytes: where the first frame begins.
    pub len: u64,
}

impl SegmentHeader {
    /// The header of a new segment, with a random seed.
    pub fn new(first: Revision) -> Self {
        Self { first, seed: rand::random(), len: LEN as u64 }
    }

    /// Its bytes on disk, in the format with a seed.
    pub fn encode(self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        let parts = [&MAGIC[..], &self.first.0.to_le_bytes(), &self.seed.to_le_bytes()].concat();
        let crc = crc32fast::hash(&parts).to_le_bytes();
        let all = parts.iter().chain(&crc);
        bytes.iter_mut().zip(all).for_each(|(byte, value)| *byte = *value);
        bytes
    }

    /// Reads the header of `file`; `None` if it is not whole.
    pub fn read(file: &File) -> io::Result<Option<Self>> {
        let mut bytes = [0; LEN];
        let mut len = 0;
        while let Some(rest) = bytes.get_mut(len..).filter(|rest| !rest.is_empty()) {
            match file.read_at(rest, len as u64)? {
                0 => break,
                read => len = len.saturating_add(read),
            }
        }
        Ok(Self::decode(bytes.get(..len).unwrap_or_default()))
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let first = Revision(u64::from_le_bytes(*bytes.get(8..)?.first_chunk()?));
        if bytes.starts_with(MAGIC_UNSEEDED) {
            return Some(Self { first, seed: 0, len: UNSEEDED_LEN as u64 });
        }
        let seed = u32::from_le_bytes(*bytes.get(16..)?.first_chunk()?);
        let header = Self { first, seed, len: LEN as u64 };
        bytes.starts_with(&header.encode()).then_some(header)
    }

    /// The checksum of a frame with this payload: CRC-32 that starts with the seed.
    pub fn checksum(self, payload: &[u8]) -> u32 {
        let mut crc = crc32fast::Hasher::new_with_initial(self.seed);
        crc.update(payload);
        crc.finalize()
    }
}
