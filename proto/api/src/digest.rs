//! SHA-256 in hexadecimal, of which names and uids are made. Pure.

use data_encoding::HEXLOWER;
use ring::digest::{SHA256, digest};

/// The 64 hexadecimal digits of the SHA-256 of `bytes`.
pub fn sha256_hex(bytes: &[u8]) -> String {
    HEXLOWER.encode(digest(&SHA256, bytes).as_ref())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_digest_of_nothing() {
        let expected = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(super::sha256_hex(b""), expected);
    }
}
