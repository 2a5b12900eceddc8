//! Keys of service account tokens: read from PEM, used with `ring` (with `p521` those on P-521), published as JWK.
//!
//! RSA and ECDSA (P-256, P-384, P-521) keys are accepted as PKCS#1, SEC1, PKCS#8, public keys and certificates, the formats in use in
//! existing clusters.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::rand::SystemRandom;
use ring::signature::{self, EcdsaKeyPair, RsaKeyPair, RsaPublicKeyComponents, UnparsedPublicKey};
use rustls_pki_types::pem::{PemObject, SectionKind};
use serde_json::{Value, json};
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey as ParsedKey;
use x509_parser::x509::SubjectPublicKeyInfo;

use crate::algorithm::Algorithm;
use crate::der::element;
use crate::es512;

/// Characters of a line of PEM (RFC 7468, section 2).
const PEM_LINE_LEN: usize = 64;

/// Shortest modulus of an RSA key that verifies signatures, in bytes.
const RSA_LEN_MIN: usize = 2048 / 8;

/// Why keys of tokens on other curves are refused.
const OTHER_CURVE: &str = "an ECDSA key that is none of P-256, P-384 and P-521";
/// Why keys of certificates on other curves are refused: what signs and serves them has `ring` only.
const OTHER_THAN_RING_HAS: &str = "an ECDSA key that is neither P-256 nor P-384";

/// Why a key file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file is not PEM.
    #[error("not a PEM file")]
    Pem(#[source] rustls_pki_types::pem::Error),
    /// The file has no section with a supported key.
    #[error("no RSA or ECDSA key found")]
    Missing,
    /// A key is damaged or of an unsupported type.
    #[error("unsupported or invalid key: {0}")]
    Rejected(String),
    /// Signing failed inside the crypto library.
    #[error("cannot sign with the key")]
    Sign,
}

/// A public key, which verifies tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey {
    id: String,
    kind: PublicKind,
    /// The only algorithm that it is for, if its JSON Web Key names one.
    only: Option<Algorithm>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PublicKind {
    Rsa { n: Vec<u8>, e: Vec<u8> },
    P256(Vec<u8>),
    P384(Vec<u8>),
    P521(es512::P521VerifyingKey),
}

/// A private key, which signs tokens.
pub struct SigningKey {
    public: PublicKey,
    pair: SigningPair,
    random: SystemRandom,
}

enum SigningPair {
    Rsa(RsaKeyPair),
    Ecdsa(EcdsaKeyPair),
    P521(es512::P521SigningKey),
}

impl PublicKey {
    /// Reads all keys of a PEM file; of a private key the public half.
    ///
    /// # Errors
    /// [`KeyError`] when the file is not PEM, or holds no key or an unusable one.
    pub fn all_from_pem(pem: &[u8]) -> Result<Vec<Self>, KeyError> {
        let mut keys = Vec::new();
        for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(pem) {
            let (kind, der) = section.map_err(KeyError::Pem)?;
            match kind {
                SectionKind::PublicKey => keys.push(Self::from_spki(&der)?),
                SectionKind::Certificate => keys.push(Self::from_certificate(&der)?),
                SectionKind::RsaPrivateKey
                | SectionKind::EcPrivateKey
                | SectionKind::PrivateKey => {
                    keys.push(SigningKey::from_der(kind, &der)?.public);
                }
                _ => {}
            }
        }
        if keys.is_empty() { Err(KeyError::Missing) } else { Ok(keys) }
    }

    fn from_certificate(der: &[u8]) -> Result<Self, KeyError> {
        let (_, certificate) = x509_parser::parse_x509_certificate(der)
            .map_err(|error| KeyError::Rejected(error.to_string()))?;
        Self::from_spki(certificate.public_key().raw)
    }

    fn from_spki(spki: &[u8]) -> Result<Self, KeyError> {
        let rejected = |text: String| KeyError::Rejected(text);
        let (_, info) =
            SubjectPublicKeyInfo::from_der(spki).map_err(|error| rejected(error.to_string()))?;
        let kind = match info.parsed().map_err(|error| rejected(error.to_string()))? {
            ParsedKey::RSA(rsa) => {
                let (n, e) = (strip_zero(rsa.modulus), strip_zero(rsa.exponent));
                if n.len() < RSA_LEN_MIN {
                    return Err(rejected(format!(
                        "an RSA key of {} bits, expected 2048 or more",
                        n.len().saturating_mul(8)
                    )));
                }
                PublicKind::Rsa { n, e }
            }
            // Other curves have points of the same lengths.
            ParsedKey::EC(point) if ec_spki(point.data()) == spki => Self::curve_of(point.data())?,
            ParsedKey::EC(_) => return Err(rejected(OTHER_CURVE.to_owned())),
            _ => return Err(rejected("neither RSA nor ECDSA".to_owned())),
        };
        Ok(Self { id: key_id(spki), kind, only: None })
    }

    /// The curve follows from the length of an uncompressed point (SEC1 section 2.3.3).
    fn curve_of(point: &[u8]) -> Result<PublicKind, KeyError> {
        let rejected = |why: &str| KeyError::Rejected(why.to_owned());
        match point.len() {
            65 => Ok(PublicKind::P256(point.to_vec())),
            97 => Ok(PublicKind::P384(point.to_vec())),
            es512::POINT_LEN => match es512::P521VerifyingKey::from_point(point) {
                Some(key) => Ok(PublicKind::P521(key)),
                None => Err(rejected("a point that is not on P-521")),
            },
            _ => Err(rejected(OTHER_CURVE)),
        }
    }

    /// The key of a JSON Web Key for signatures; `None` for one of another type, curve or algorithm, or with another use.
    #[must_use]
    pub fn from_jwk(jwk: &Value) -> Option<Self> {
        let text = |field: &str| jwk.get(field).and_then(Value::as_str);
        let bytes = |field: &str| URL_SAFE_NO_PAD.decode(text(field)?.trim_end_matches('=')).ok();
        let kind = match (text("kty")?, text("crv")) {
            ("RSA", _) => {
                let (n, e) = (strip_zero(&bytes("n")?), strip_zero(&bytes("e")?));
                if n.len() < RSA_LEN_MIN {
                    return None;
                }
                PublicKind::Rsa { n, e }
            }
            ("EC", Some(curve)) => {
                let (x, y) = (bytes("x")?, bytes("y")?);
                let kind = Self::curve_of(&[&[4], &*x, &*y].concat()).ok()?;
                (x.len() == y.len() && kind.curve() == Some(curve)).then_some(kind)?
            }
            _ => return None,
        };
        let only = match text("alg") {
            None => None,
            Some(name) => Some(Algorithm::from_name(name)?),
        };
        let key = Self { id: text("kid").unwrap_or_default().to_owned(), kind, only };
        let is_of_the_kind = only.is_none_or(|algorithm| key.has(algorithm));
        let signs = text("use").is_none_or(|purpose| purpose == "sig");
        (signs && is_of_the_kind).then_some(key)
    }

    /// The `kid` in token headers: base64url of the SHA-256 of the public key's DER, or what a JSON Web Key says.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The algorithm of tokens that this server signs with the key.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        match self.kind {
            PublicKind::Rsa { .. } => Algorithm::Rs256,
            PublicKind::P256(_) => Algorithm::Es256,
            PublicKind::P384(_) => Algorithm::Es384,
            PublicKind::P521(_) => Algorithm::Es512,
        }
    }

    /// Whether signatures of this key may have the algorithm: one of its curve, any of RSA for an RSA key that names none.
    #[must_use]
    pub fn has(&self, algorithm: Algorithm) -> bool {
        let of_the_kind = match self.kind {
            PublicKind::Rsa { .. } => algorithm.of_rsa().is_some(),
            PublicKind::P256(_) | PublicKind::P384(_) | PublicKind::P521(_) => {
                algorithm == self.algorithm()
            }
        };
        of_the_kind && self.only.is_none_or(|only| only == algorithm)
    }

    /// Whether `signature` is this key's signature of `message` by `algorithm`.
    #[must_use]
    pub fn verifies(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        if !self.has(algorithm) {
            return false;
        }
        let outcome = match &self.kind {
            PublicKind::Rsa { n, e } => match algorithm.of_rsa() {
                Some(of_rsa) => RsaPublicKeyComponents { n, e }.verify(of_rsa, message, signature),
                None => return false,
            },
            PublicKind::P256(point) => {
                UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, point)
                    .verify(message, signature)
            }
            PublicKind::P384(point) => {
                UnparsedPublicKey::new(&signature::ECDSA_P384_SHA384_FIXED, point)
                    .verify(message, signature)
            }
            PublicKind::P521(key) => return key.verifies(message, signature),
        };
        outcome.is_ok()
    }

    /// The key as a PEM file, as openssl writes it (RFC 7468, section 13).
    #[must_use]
    pub fn pem(&self) -> String {
        let spki = match &self.kind {
            PublicKind::Rsa { n, e } => rsa_spki(&element(0x30, &[&integer(n), &integer(e)])),
            PublicKind::P256(point) | PublicKind::P384(point) => ec_spki(point),
            PublicKind::P521(key) => ec_spki(&key.point()),
        };
        let text = STANDARD.encode(spki);
        let mut lines = Vec::new();
        let mut rest = text.as_str();
        while let Some((line, behind)) = rest.split_at_checked(PEM_LINE_LEN) {
            lines.push(line);
            rest = behind;
        }
        lines.extend(Some(rest).filter(|rest| !rest.is_empty()));
        format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", lines.join("\n"))
    }

    /// The key as a JSON Web Key (RFC 7517).
    #[must_use]
    pub fn jwk(&self) -> Value {
        let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let curve = |point: &[u8]| {
            let (x, y) = point.get(1..).unwrap_or_default().split_at(point.len() / 2);
            json!({"use": "sig", "kty": "EC", "kid": self.id, "crv": self.kind.curve(), "alg": self.algorithm().name(), "x": text(x), "y": text(y)})
        };
        match &self.kind {
            PublicKind::Rsa { n, e } => {
                json!({"use": "sig", "kty": "RSA", "kid": self.id, "alg": "RS256", "n": text(n), "e": text(e)})
            }
            PublicKind::P256(point) | PublicKind::P384(point) => curve(point),
            PublicKind::P521(key) => curve(&key.point()),
        }
    }
}

impl PublicKind {
    /// The `crv` of a JSON Web Key (RFC 7518, section 6.2.1.1); `None` of an RSA key.
    fn curve(&self) -> Option<&'static str> {
        match self {
            Self::Rsa { .. } => None,
            Self::P256(_) => Some("P-256"),
            Self::P384(_) => Some("P-384"),
            Self::P521(_) => Some("P-521"),
        }
    }
}

impl SigningKey {
    /// Reads the first private key of a PEM file.
    ///
    /// # Errors
    /// [`KeyError`] when there is none or it is unusable.
    pub fn from_pem(pem: &[u8]) -> Result<Self, KeyError> {
        for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(pem) {
            let (kind, der) = section.map_err(KeyError::Pem)?;
            if matches!(
                kind,
                SectionKind::RsaPrivateKey | SectionKind::EcPrivateKey | SectionKind::PrivateKey
            ) {
                return Self::from_der(kind, &der);
            }
        }
        Err(KeyError::Missing)
    }

    fn from_der(kind: SectionKind, der: &[u8]) -> Result<Self, KeyError> {
        match kind {
            SectionKind::RsaPrivateKey => {
                RsaKeyPair::from_der(der).map_err(rejected).map(Self::rsa)
            }
            SectionKind::EcPrivateKey => sec1_candidates(der)
                .iter()
                .find_map(|pkcs8| Self::ecdsa(pkcs8))
                .or_else(|| es512::P521SigningKey::from_sec1(der).map(Self::p521))
                .ok_or_else(|| KeyError::Rejected(OTHER_CURVE.to_owned())),
            _ if !is_ecdsa(der) => RsaKeyPair::from_pkcs8(der).map_err(rejected).map(Self::rsa),
            _ => Self::ecdsa(der)
                .or_else(|| es512::P521SigningKey::from_pkcs8(der).map(Self::p521))
                .ok_or_else(|| KeyError::Rejected(OTHER_CURVE.to_owned())),
        }
    }

    fn rsa(pair: RsaKeyPair) -> Self {
        use signature::KeyPair as _;
        let public = pair.public_key();
        let spki = rsa_spki(public.as_ref());
        let parts = RsaPublicKeyComponents::<Vec<u8>>::from(public);
        let kind = PublicKind::Rsa { n: parts.n, e: parts.e };
        Self {
            public: PublicKey { id: key_id(&spki), kind, only: None },
            pair: SigningPair::Rsa(pair),
            random: SystemRandom::new(),
        }
    }

    fn ecdsa(pkcs8: &[u8]) -> Option<Self> {
        use signature::KeyPair as _;
        let random = SystemRandom::new();
        let algorithms = [
            &signature::ECDSA_P256_SHA256_FIXED_SIGNING,
            &signature::ECDSA_P384_SHA384_FIXED_SIGNING,
        ];
        let pair =
            algorithms.iter().find_map(|a| EcdsaKeyPair::from_pkcs8(a, pkcs8, &random).ok())?;
        let point = pair.public_key().as_ref();
        let kind = PublicKey::curve_of(point).ok()?;
        let public = PublicKey { id: key_id(&ec_spki(point)), kind, only: None };
        Some(Self { public, pair: SigningPair::Ecdsa(pair), random })
    }

    fn p521(key: es512::P521SigningKey) -> Self {
        let public = key.public();
        let id = key_id(&ec_spki(&public.point()));
        let public = PublicKey { id, kind: PublicKind::P521(public), only: None };
        Self { public, pair: SigningPair::P521(key), random: SystemRandom::new() }
    }

    /// The public half.
    #[must_use]
    pub fn public(&self) -> &PublicKey {
        &self.public
    }

    /// Signs `message` in the fixed-width form of JWS.
    ///
    /// # Errors
    /// [`KeyError::Sign`] when the crypto library refuses.
    pub fn sign(&self, message: &[u8]) -> Result<Vec<u8>, KeyError> {
        match &self.pair {
            SigningPair::Rsa(pair) => {
                let mut out = vec![0; pair.public().modulus_len()];
                pair.sign(&signature::RSA_PKCS1_SHA256, &self.random, message, &mut out)
                    .map_err(|_| KeyError::Sign)?;
                Ok(out)
            }
            SigningPair::Ecdsa(pair) => {
                let signed = pair.sign(&self.random, message).map_err(|_| KeyError::Sign)?;
                Ok(signed.as_ref().to_vec())
            }
            SigningPair::P521(key) => key.sign(message).ok_or(KeyError::Sign),
        }
    }
}

/// The first private key of a PEM file as PKCS#8, in DER, for certificates. One in PKCS#1 (RSA) or SEC1 (P-256 and P-384), as openssl and kubeadm write them,
/// is wrapped. There are no certificates with keys on P-521: `ring`, which signs and serves them, does not have the curve.
///
/// # Errors
/// [`KeyError`] when there is none, or it is of another curve.
pub fn pkcs8_from_pem(pem: &[u8]) -> Result<Vec<u8>, KeyError> {
    for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(pem) {
        let (kind, der) = section.map_err(KeyError::Pem)?;
        match kind {
            SectionKind::PrivateKey => return Ok(der),
            SectionKind::RsaPrivateKey => {
                let algorithm = element(0x30, &[OID_RSA, &[0x05, 0x00]]);
                let key = element(0x04, &[&der]);
                return Ok(element(0x30, &[&[0x02, 0x01, 0x00], &algorithm, &key]));
            }
            SectionKind::EcPrivateKey => {
                let mut candidates = sec1_candidates(&der).into_iter();
                let found = candidates.find(|pkcs8| SigningKey::ecdsa(pkcs8).is_some());
                return found.ok_or_else(|| KeyError::Rejected(OTHER_THAN_RING_HAS.to_owned()));
            }
            _ => {}
        }
    }
    Err(KeyError::Missing)
}

impl std::fmt::Debug for SigningKey {
    /// Shows the id, not the key.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("SigningKey").field("id", &self.public.id).finish_non_exhaustive()
    }
}

fn rejected(error: ring::error::KeyRejected) -> KeyError {
    KeyError::Rejected(error.to_string())
}

fn key_id(spki: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(ring::digest::digest(&ring::digest::SHA256, spki))
}

fn strip_zero(number: &[u8]) -> Vec<u8> {
    let zeros = number.iter().take_while(|&&byte| byte == 0).count();
    number.get(zeros..).unwrap_or_default().to_vec()
}

/// A positive number in DER, of its bytes without leading zeros.
fn integer(number: &[u8]) -> Vec<u8> {
    // Its first bit would be a sign.
    let sign: &[u8] = if number.first().is_none_or(|first| *first >= 0x80) { &[0] } else { &[] };
    element(0x02, &[sign, number])
}

/// Object identifiers, DER with tag and length.
const OID_RSA: &[u8] = &[0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
const OID_EC: &[u8] = &[0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
const OID_P256: &[u8] = &[0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
const OID_P384: &[u8] = &[0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x22];
const OID_P521: &[u8] = &[0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x23];

fn rsa_spki(pkcs1: &[u8]) -> Vec<u8> {
    let algorithm = element(0x30, &[OID_RSA, &[0x05, 0x00]]);
    element(0x30, &[&algorithm, &element(0x03, &[&[0], pkcs1])])
}

fn ec_spki(point: &[u8]) -> Vec<u8> {
    let curve = match point.len() {
        65 => OID_P256,
        97 => OID_P384,
        _ => OID_P521,
    };
    let algorithm = element(0x30, &[OID_EC, curve]);
    element(0x30, &[&algorithm, &element(0x03, &[&[0], point])])
}

/// A SEC1 key wrapped as PKCS#8 once per curve of `ring`, because the curve may be missing in the key.
fn sec1_candidates(sec1: &[u8]) -> [Vec<u8>; 2] {
    [OID_P256, OID_P384].map(|curve| {
        let algorithm = element(0x30, &[OID_EC, curve]);
        element(0x30, &[&[0x02, 0x01, 0x00], &algorithm, &element(0x04, &[sec1])])
    })
}

/// Whether a PKCS#8 key says that it is an ECDSA key.
fn is_ecdsa(pkcs8: &[u8]) -> bool {
    pkcs8.windows(OID_EC.len()).any(|part| part == OID_EC)
}

#[cfg(test)]
mod tests;
