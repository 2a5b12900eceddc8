//! Algorithms of JSON Web Signatures (RFC 7518, section 3.1).

use ring::signature;

/// An algorithm that verifies signatures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Ps384,
    Ps512,
    Es256,
    Es384,
    Es512,
}

impl Algorithm {
    /// All of them. Those of RSA come first.
    pub const ALL: [Self; 9] = [
        Self::Rs256,
        Self::Rs384,
        Self::Rs512,
        Self::Ps256,
        Self::Ps384,
        Self::Ps512,
        Self::Es256,
        Self::Es384,
        Self::Es512,
    ];

    /// Its `alg` in headers of tokens.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rs256 => "RS256",
            Self::Rs384 => "RS384",
            Self::Rs512 => "RS512",
            Self::Ps256 => "PS256",
            Self::Ps384 => "PS384",
            Self::Ps512 => "PS512",
            Self::Es256 => "ES256",
            Self::Es384 => "ES384",
            Self::Es512 => "ES512",
        }
    }

    /// The algorithm of that name. Names are case-sensitive.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }

    /// What `ring` verifies an RSA key's signatures with; `None` for an algorithm of ECDSA. Salts of PS* have the length of the hash (RFC 7518, section 3.5).
    pub(crate) fn of_rsa(self) -> Option<&'static signature::RsaParameters> {
        match self {
            Self::Rs256 => Some(&signature::RSA_PKCS1_2048_8192_SHA256),
            Self::Rs384 => Some(&signature::RSA_PKCS1_2048_8192_SHA384),
            Self::Rs512 => Some(&signature::RSA_PKCS1_2048_8192_SHA512),
            Self::Ps256 => Some(&signature::RSA_PSS_2048_8192_SHA256),
            Self::Ps384 => Some(&signature::RSA_PSS_2048_8192_SHA384),
            Self::Ps512 => Some(&signature::RSA_PSS_2048_8192_SHA512),
            Self::Es256 | Self::Es384 | Self::Es512 => None,
        }
    }
}
