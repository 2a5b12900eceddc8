//! The prefix of an encrypted value, as Kubernetes writes it: which algorithm and which key made the bytes behind it.

/// What every encrypted value begins with. Values in clear text begin with the magic of Kubernetes' Protobuf, `k8s\0`.
const ENCRYPTED: &str = "k8s:enc:";
/// The algorithm AES-GCM, in the one version that there is.
const AES_GCM: &str = "aesgcm:v1:";
/// Longest name of a key: bounds the search for its end.
pub const NAME_LEN_MAX: usize = 253;

/// How a stored value is encrypted, by its prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Envelope<'a> {
    /// In clear text.
    Clear,
    AesGcm {
        /// Name of the key.
        name: &'a str,
        /// Nonce, text and tag.
        sealed: &'a [u8],
    },
    /// By something else.
    Unknown {
        /// The provider's name, as far as it can be read.
        provider: &'a str,
    },
}

/// Whether a value is encrypted, by whatever provider.
#[must_use]
pub fn is_encrypted(stored: &[u8]) -> bool {
    stored.starts_with(ENCRYPTED.as_bytes())
}

impl<'a> Envelope<'a> {
    /// Reads the prefix of a value.
    pub fn parse(stored: &'a [u8]) -> Self {
        let Some(rest) = stored.strip_prefix(ENCRYPTED.as_bytes()) else { return Self::Clear };
        let by_aes_gcm = rest.strip_prefix(AES_GCM.as_bytes()).and_then(split_name);
        match by_aes_gcm {
            Some((name, sealed)) => Self::AesGcm { name, sealed },
            None => Self::Unknown { provider: split_name(rest).map_or("", |(name, _)| name) },
        }
    }
}

/// The text before the first colon, and what follows it.
fn split_name(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let within = bytes.get(..bytes.len().min(NAME_LEN_MAX + 1))?;
    let colon = within.iter().position(|byte| *byte == b':')?;
    let name = std::str::from_utf8(bytes.get(..colon)?).ok().filter(|name| !name.is_empty())?;
    Some((name, bytes.get(colon.saturating_add(1)..)?))
}

/// The prefix of values that AES-GCM makes with the key of this name.
pub fn aes_gcm_prefix(name: &str) -> Vec<u8> {
    format!("{ENCRYPTED}{AES_GCM}{name}:").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_those_of_kubernetes() {
        assert_eq!(aes_gcm_prefix("key1"), b"k8s:enc:aesgcm:v1:key1:");
        let long = "n".repeat(NAME_LEN_MAX);
        let too_long = "n".repeat(NAME_LEN_MAX + 1);
        for (stored, expected) in [
            ("k8s\0...", Envelope::Clear),
            ("", Envelope::Clear),
            ("k8s:en", Envelope::Clear),
            ("k8s:enc:aesgcm:v1:key1:xyz", Envelope::AesGcm { name: "key1", sealed: b"xyz" }),
            ("k8s:enc:aesgcm:v1:key1::", Envelope::AesGcm { name: "key1", sealed: b":" }),
            ("k8s:enc:aesgcm:v1:k:", Envelope::AesGcm { name: "k", sealed: b"" }),
            (
                &format!("k8s:enc:aesgcm:v1:{long}:x"),
                Envelope::AesGcm { name: &long, sealed: b"x" },
            ),
            (&format!("k8s:enc:aesgcm:v1:{too_long}:x"), Envelope::Unknown { provider: "aesgcm" }),
            ("k8s:enc:aesgcm:v1:no end", Envelope::Unknown { provider: "aesgcm" }),
            ("k8s:enc:aesgcm:v1::x", Envelope::Unknown { provider: "aesgcm" }),
            ("k8s:enc:aesgcm:v2:key1:x", Envelope::Unknown { provider: "aesgcm" }),
            ("k8s:enc:secretbox:v1:key1:x", Envelope::Unknown { provider: "secretbox" }),
            ("k8s:enc:kms:v1:name:x", Envelope::Unknown { provider: "kms" }),
            ("k8s:enc:", Envelope::Unknown { provider: "" }),
        ] {
            assert_eq!(Envelope::parse(stored.as_bytes()), expected, "{stored:?}");
            let encrypted = !matches!(expected, Envelope::Clear);
            assert_eq!(is_encrypted(stored.as_bytes()), encrypted, "{stored:?}");
        }
        assert_eq!(
            Envelope::parse(b"k8s:enc:aesgcm:v1:\xff:x"),
            Envelope::Unknown { provider: "aesgcm" }
        );
    }
}
