//! Hashes of templates in the names of objects.

/// The FNV-1a hash of the parts, encoded without vowels, so that no name contains a word.
pub fn name_hash(parts: &[&[u8]]) -> String {
    const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut hash: u32 = 0x811c_9dc5;
    for byte in parts.iter().copied().flatten() {
        hash = (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    }
    // The ten digits map to different characters.
    let digit = |byte: u8| char::from(ALPHABET[usize::from(byte).rem_euclid(ALPHABET.len())]);
    hash.to_string().bytes().map(digit).collect()
}
