//! Bob Jenkins' hash as in the kernel (`linux/jhash.h`), for `jhash` expressions.

/// Hash of bytes with a seed.
pub fn jhash(bytes: &[u8], seed: u32) -> u32 {
    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let start = 0xdead_beef_u32.wrapping_add(len).wrapping_add(seed);
    let (mut a, mut b, mut c) = (start, start, start);
    let mut rest = bytes;
    while rest.len() > 12 {
        let (block, after) = rest.split_at(12);
        (a, b, c) = add(block, a, b, c);
        (a, b, c) = mix(a, b, c);
        rest = after;
    }
    if rest.is_empty() {
        return c;
    }
    (a, b, c) = add(rest, a, b, c);
    last(a, b, c)
}

/// A number below `modulus`, as the kernel's `reciprocal_scale`.
pub fn scale(hash: u32, modulus: u32) -> u32 {
    (u64::from(hash).wrapping_mul(u64::from(modulus)) >> 32) as u32
}

/// Adds up to twelve bytes; missing ones count as zero.
fn add(bytes: &[u8], a: u32, b: u32, c: u32) -> (u32, u32, u32) {
    let word = |at: usize| {
        let mut word = [0; 4];
        let part = bytes.iter().skip(at.saturating_mul(4)).take(4);
        word.iter_mut().zip(part).for_each(|(to, from)| *to = *from);
        u32::from_ne_bytes(word)
    };
    (a.wrapping_add(word(0)), b.wrapping_add(word(1)), c.wrapping_add(word(2)))
}

fn mix(mut a: u32, mut b: u32, mut c: u32) -> (u32, u32, u32) {
    a = a.wrapping_sub(c) ^ c.rotate_left(4);
    c = c.wrapping_add(b);
    b = b.wrapping_sub(a) ^ a.rotate_left(6);
    a = a.wrapping_add(c);
    c = c.wrapping_sub(b) ^ b.rotate_left(8);
    b = b.wrapping_add(a);
    a = a.wrapping_sub(c) ^ c.rotate_left(16);
    c = c.wrapping_add(b);
    b = b.wrapping_sub(a) ^ a.rotate_left(19);
    a = a.wrapping_add(c);
    c = c.wrapping_sub(b) ^ b.rotate_left(4);
    b = b.wrapping_add(a);
    (a, b, c)
}

fn last(mut a: u32, mut b: u32, mut c: u32) -> u32 {
    c = (c ^ b).wrapping_sub(b.rotate_left(14));
    a = (a ^ c).wrapping_sub(c.rotate_left(11));
    b = (b ^ a).wrapping_sub(a.rotate_left(25));
    c = (c ^ b).wrapping_sub(b.rotate_left(16));
    a = (a ^ c).wrapping_sub(c.rotate_left(4));
    b = (b ^ a).wrapping_sub(a.rotate_left(14));
    (c ^ b).wrapping_sub(b.rotate_left(24))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_the_reference() {
        // Computed with hashlittle() of lookup3.c, which the kernel's version equals.
        assert_eq!(jhash(b"", 0), 0xdead_beef);
        assert_eq!(jhash(b"", 0xdead_beef), 0xbd5b_7dde);
        assert_eq!(jhash(b"Four score and seven years ago", 0), 0x1777_0551);
        assert_eq!(jhash(b"Four score and seven years ago", 1), 0xcd62_8161);
    }

    #[test]
    fn scaled_hashes_are_below_their_modulus() {
        assert_eq!((scale(0, 7), scale(u32::MAX, 7), scale(1 << 31, 7)), (0, 6, 3));
    }
}
