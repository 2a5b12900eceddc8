//! ES512 (RFC 7518, section 3.4): ECDSA on P-521 with SHA-512, which `ring` does not have. Signatures are deterministic (RFC 6979): they need no randomness.
//! A signature of another length than 132 bytes, or with a number outside of the curve's order, verifies nothing.

use p521::SecretKey;
use p521::ecdsa::signature::{Signer as _, Verifier as _};
use p521::ecdsa::{self, Signature};
use p521::pkcs8::DecodePrivateKey as _;

/// Length of an uncompressed point (SEC1, section 2.3.3), in bytes.
pub const POINT_LEN: usize = 1 + 2 * SCALAR_LEN;

/// Length of a private key, of a coordinate and of each half of a signature, in bytes.
const SCALAR_LEN: usize = 521_usize.div_ceil(8);

/// A public key on P-521.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct P521VerifyingKey(ecdsa::VerifyingKey);

impl P521VerifyingKey {
    /// The key of an uncompressed point; `None` if it is not [`POINT_LEN`] bytes long or not on the curve.
    pub fn from_point(point: &[u8]) -> Option<Self> {
        let uncompressed = point.len() == POINT_LEN && point.first() == Some(&4);
        let key = uncompressed.then(|| ecdsa::VerifyingKey::from_sec1_bytes(point).ok());
        key.flatten().map(Self)
    }

    /// Its uncompressed point, [`POINT_LEN`] bytes.
    pub fn point(&self) -> Vec<u8> {
        self.0.to_sec1_point(false).as_bytes().to_vec()
    }

    /// Whether `signature` (132 bytes, r and s) is this key's of `message`.
    pub fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        let parsed = Signature::from_slice(signature);
        parsed.is_ok_and(|signature| self.0.verify(message, &signature).is_ok())
    }
}

/// A private key on P-521.
pub struct P521SigningKey(ecdsa::SigningKey);

impl P521SigningKey {
    /// The key of an `ECPrivateKey` (SEC1, RFC 5915) in DER; `None` if it is of another curve, or its public half is another key's.
    pub fn from_sec1(der: &[u8]) -> Option<Self> {
        // A shorter number would be filled up: a key of another curve that does not name it.
        let full = is_of_full_width(der).then(|| SecretKey::from_sec1_der(der).ok());
        full.flatten().map(|key| Self(key.into()))
    }

    /// The key of a PKCS#8 structure in DER; `None` as in [`Self::from_sec1`].
    pub fn from_pkcs8(der: &[u8]) -> Option<Self> {
        SecretKey::from_pkcs8_der(der).ok().map(|key| Self(key.into()))
    }

    /// The public half.
    pub fn public(&self) -> P521VerifyingKey {
        P521VerifyingKey(*self.0.verifying_key())
    }

    /// Signs `message`: r and s, 132 bytes; `None` when the library fails.
    pub fn sign(&self, message: &[u8]) -> Option<Vec<u8>> {
        let signature: Signature = self.0.try_sign(message).ok()?;
        Some(signature.to_bytes().to_vec())
    }
}

/// Whether an `ECPrivateKey` in DER begins with a version and a number of [`SCALAR_LEN`] bytes.
fn is_of_full_width(sec1: &[u8]) -> bool {
    let content = match sec1 {
        [0x30, 0x81, _, content @ ..] | [0x30, 0x82, _, _, content @ ..] => content,
        [0x30, 0..=0x7f, content @ ..] => content,
        _ => return false,
    };
    match content {
        [0x02, 0x01, 0x01, 0x04, length, ..] => usize::from(*length) == SCALAR_LEN,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
