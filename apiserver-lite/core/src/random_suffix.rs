//! The random end of generated names.

use rand::RngExt as _;

/// Characters of generated names: no vowels, so that no words arise, and no characters that look alike.
const NAME_CHARACTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// The five random characters of a generated name, from Kubernetes' alphabet.
#[must_use]
pub fn random_suffix() -> String {
    let mut random = rand::rng();
    let pick = |_| {
        NAME_CHARACTERS.get(random.random_range(0..NAME_CHARACTERS.len())).copied().unwrap_or(b'x')
            as char
    };
    (0..5).map(pick).collect()
}
