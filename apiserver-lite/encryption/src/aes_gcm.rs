//! AES-GCM with 128 or 256 bits: a nonce of 96 bits, the text, and a tag of 128 bits, as Kubernetes lays them out. Nonces are arguments.

use apiserver_store::Form;
use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::digest::{Context, SHA256};

use crate::envelope::aes_gcm_prefix;

/// Bytes of a nonce.
pub const NONCE_LEN: usize = 12;
/// Lengths of keys, in bytes. Kubernetes takes 24 as well, which `ring` has no algorithm for.
pub const KEY_LENS: [usize; 2] = [16, 32];

/// A key with its name.
pub struct AesGcmKey {
    name: String,
    form: Form,
    key: LessSafeKey,
}

/// The text cannot be sealed or opened: it is too long, or not what the key sealed for this object. Nothing more is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed;

impl AesGcmKey {
    /// `None` if the secret has none of [`KEY_LENS`].
    pub fn new(name: &str, secret: &[u8]) -> Option<Self> {
        let algorithm = match secret.len() {
            16 => &AES_128_GCM,
            32 => &AES_256_GCM,
            _ => return None,
        };
        let key = LessSafeKey::new(UnboundKey::new(algorithm, secret).ok()?);
        Some(Self { name: name.to_owned(), form: form(name, secret), key })
    }

    /// The name in the prefix of its values.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The form of its values: of its name and its bits.
    pub fn form(&self) -> Form {
        self.form
    }

    /// The whole value on disk of the object `key` with this text.
    pub fn seal(&self, key: &str, nonce: [u8; NONCE_LEN], text: &[u8]) -> Result<Vec<u8>, Failed> {
        let mut out = aes_gcm_prefix(&self.name);
        let tag_len = self.key.algorithm().tag_len();
        out.reserve(text.len().saturating_add(NONCE_LEN).saturating_add(tag_len));
        out.extend_from_slice(&nonce);
        let start = out.len();
        out.extend_from_slice(text);
        let sealed = out.get_mut(start..).ok_or(Failed)?;
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = self.key.seal_in_place_separate_tag(nonce, Aad::from(key.as_bytes()), sealed);
        out.extend_from_slice(tag.map_err(|_| Failed)?.as_ref());
        Ok(out)
    }

    /// The text of the object `key`, from what follows the prefix of its value.
    pub fn open(&self, key: &str, sealed: &[u8]) -> Result<Vec<u8>, Failed> {
        let (nonce, sealed) = sealed.split_first_chunk::<NONCE_LEN>().ok_or(Failed)?;
        let mut text = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let opened = self.key.open_in_place(nonce, Aad::from(key.as_bytes()), &mut text);
        let len = opened.map_err(|_| Failed)?.len();
        text.truncate(len);
        Ok(text)
    }
}

/// Equal for the same name and secret only; the secret cannot be derived from it, and it stays in memory.
fn form(name: &str, secret: &[u8]) -> Form {
    let mut sum = Context::new(&SHA256);
    sum.update(b"aesgcm\0");
    sum.update(name.as_bytes());
    sum.update(b"\0");
    sum.update(secret);
    let number = sum.finish().as_ref().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    // The first numbers have a meaning of their own.
    Form(number.max(1 << 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_opens_with_its_key_and_for_its_object_only() {
        for len in KEY_LENS {
            let key = AesGcmKey::new("key1", &vec![7; len]).expect("a key");
            let other = AesGcmKey::new("key1", &vec![8; len]).expect("a key");
            assert_ne!(key.form(), other.form());
            let value = key.seal("/core/secrets/a/b", [3; NONCE_LEN], b"text").expect("sealed");
            let sealed = value.strip_prefix(b"k8s:enc:aesgcm:v1:key1:").expect("prefix");
            assert_eq!(sealed.len(), NONCE_LEN + 4 + 16);
            assert_eq!(key.open("/core/secrets/a/b", sealed), Ok(b"text".to_vec()));
            assert_eq!(key.open("/core/secrets/a/c", sealed), Err(Failed), "another object");
            assert_eq!(other.open("/core/secrets/a/b", sealed), Err(Failed), "another key");
            for at in 0..sealed.len() {
                let mut damaged = sealed.to_vec();
                damaged[at] ^= 1;
                assert_eq!(key.open("/core/secrets/a/b", &damaged), Err(Failed), "byte {at}");
                assert_eq!(
                    key.open("/core/secrets/a/b", &sealed[..at]),
                    Err(Failed),
                    "cut at {at}"
                );
            }
        }
        for len in [0, 15, 17, 24, 31, 33] {
            assert!(AesGcmKey::new("key1", &vec![7; len]).is_none(), "{len}");
        }
    }

    /// Test case 14 of the specification of GCM: the sealed bytes are those that every other implementation makes.
    #[test]
    fn the_algorithm_is_the_standard_one() {
        let key = AesGcmKey::new("k", &[0; 32]).expect("a key");
        // 256 zero bits of key, a zero nonce, 16 zero bytes, no additional data.
        let value = key.seal("", [0; NONCE_LEN], &[0; 16]).expect("sealed");
        let sealed = value.strip_prefix(b"k8s:enc:aesgcm:v1:k:").expect("prefix");
        let hex: String = sealed[NONCE_LEN..].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919");
    }
}
