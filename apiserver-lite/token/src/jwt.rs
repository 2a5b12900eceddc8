//! JSON Web Tokens: compact JWS.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::algorithm::Algorithm;
use crate::keys::{KeyError, PublicKey, SigningKey};

/// Longest token that is parsed, in bytes; a bound token has about 1 KiB.
pub const TOKEN_LEN_MAX: usize = 16 << 10;

/// Why a token is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JwtError {
    /// It is not three base64url parts with a valid header and claims.
    #[error("the token is malformed")]
    Malformed,
    /// Its algorithm is unknown, or not among those that are accepted.
    #[error("the signature algorithm is not accepted")]
    Algorithm,
    /// No known key verifies the signature.
    #[error("the signature does not match any key")]
    Signature,
}

#[derive(Serialize, Deserialize)]
struct Header {
    alg: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    kid: String,
    /// Extensions that a reader has to understand (RFC 7515, section 4.1.11): there are none here.
    #[serde(default, skip_serializing)]
    crit: Option<serde::de::IgnoredAny>,
}

/// Signs `claims` and returns the token in compact form.
///
/// # Errors
/// [`KeyError::Sign`] when signing fails.
pub fn sign<C: Serialize>(claims: &C, key: &SigningKey) -> Result<String, KeyError> {
    let header = Header {
        alg: key.public().algorithm().name().to_owned(),
        kid: key.public().id().to_owned(),
        crit: None,
    };
    let part = |json: Result<Vec<u8>, serde_json::Error>| {
        json.map(|bytes| URL_SAFE_NO_PAD.encode(bytes)).map_err(|_| KeyError::Sign)
    };
    let mut token = part(serde_json::to_vec(&header))?;
    token.push('.');
    token.push_str(&part(serde_json::to_vec(claims))?);
    let signature = key.sign(token.as_bytes())?;
    token.push('.');
    token.push_str(&URL_SAFE_NO_PAD.encode(signature));
    Ok(token)
}

/// Verifies the signature with `keys`, if its algorithm is among `accepted`, and returns the claims. Times and audiences are not checked.
///
/// # Errors
/// [`JwtError`] when the token is malformed or no key verifies it.
pub fn verify<C: DeserializeOwned>(
    token: &str,
    keys: &[PublicKey],
    accepted: &[Algorithm],
) -> Result<C, JwtError> {
    if token.len() > TOKEN_LEN_MAX {
        return Err(JwtError::Malformed);
    }
    let (signed, signature) = token.rsplit_once('.').ok_or(JwtError::Malformed)?;
    let (header, claims) = signed.split_once('.').ok_or(JwtError::Malformed)?;
    let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| JwtError::Malformed);
    let header: Header =
        serde_json::from_slice(&decode(header)?).map_err(|_| JwtError::Malformed)?;
    if header.crit.is_some() {
        return Err(JwtError::Malformed);
    }
    let signature = decode(signature)?;
    let algorithm = Algorithm::from_name(&header.alg).filter(|found| accepted.contains(found));
    let algorithm = algorithm.ok_or(JwtError::Algorithm)?;
    let named =
        |key: &&PublicKey| header.kid.is_empty() || key.id().is_empty() || key.id() == header.kid;
    let signed_by = |key: &PublicKey| key.verifies(algorithm, signed.as_bytes(), &signature);
    if !keys.iter().filter(named).any(signed_by) {
        return Err(JwtError::Signature);
    }
    serde_json::from_slice(&decode(claims)?).map_err(|_| JwtError::Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn key() -> SigningKey {
        SigningKey::from_pem(rcgen::KeyPair::generate().unwrap().serialize_pem().as_bytes())
            .unwrap()
    }

    #[test]
    fn round_trip() {
        let key = key();
        let token = sign(&json!({"sub": "a"}), &key).unwrap();
        assert_eq!(
            verify::<Value>(&token, std::slice::from_ref(key.public()), &Algorithm::ALL).unwrap()["sub"],
            "a"
        );
    }

    /// Tokens made by OpenSSL (`testdata/README.md`), one for each algorithm that an RSA key has, and of other keys.
    #[test]
    fn tokens_of_every_algorithm_are_verified_where_it_is_accepted() {
        let (rsa, p384) = (include_str!("../testdata/rsa.pub"), include_str!("../testdata/ec.crt"));
        let (p256, p521) =
            (include_str!("../testdata/p256.pub"), include_str!("../testdata/p521.pub"));
        let pem = [rsa, p384, p256, p521].concat();
        let keys = PublicKey::all_from_pem(pem.as_bytes()).unwrap();
        let rows: Vec<_> = include_str!("../testdata/tokens.tsv")
            .lines()
            .map(|line| line.split_once('\t').unwrap())
            .collect();
        let verified =
            |token: &str, accepted: &[Algorithm]| verify::<Value>(token, &keys, accepted);
        assert_eq!(rows.len(), 9);
        for (name, token) in rows {
            let algorithm = Algorithm::from_name(name).unwrap();
            assert_eq!(verified(token, &[algorithm]), Ok(json!({"sub": "a"})), "{name}");
            let others = Algorithm::ALL.map(|other| (other != algorithm).then_some(other));
            let others: Vec<Algorithm> = others.into_iter().flatten().collect();
            assert_eq!(verified(token, &others), Err(JwtError::Algorithm), "{name}");
            // The signature is of the header too: another algorithm in it is another text.
            for other in others {
                let (_, rest) = token.split_once('.').unwrap();
                let header = URL_SAFE_NO_PAD.encode(json!({"alg": other.name()}).to_string());
                let renamed = verified(&format!("{header}.{rest}"), &Algorithm::ALL);
                assert_eq!(renamed, Err(JwtError::Signature), "{name} as {}", other.name());
            }
        }
    }

    #[test]
    fn every_forgery_is_refused() {
        let mine = key();
        let keys = [mine.public().clone()];
        let token = sign(&json!({"sub": "a"}), &mine).unwrap();
        let stranger = sign(&json!({"sub": "a"}), &key()).unwrap();
        let verify = |token: &str| super::verify::<Value>(token, &keys, &Algorithm::ALL);
        assert_eq!(verify(&stranger), Err(JwtError::Signature));
        let mut parts: Vec<&str> = token.split('.').collect();
        let claims = URL_SAFE_NO_PAD.encode(r#"{"sub":"b"}"#);
        parts[1] = &claims;
        assert_eq!(verify(&parts.join(".")), Err(JwtError::Signature));
        let none = URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#);
        assert_eq!(verify(&format!("{none}.{claims}.")), Err(JwtError::Algorithm));
        let critical = URL_SAFE_NO_PAD.encode(r#"{"alg":"ES256","crit":["b64"]}"#);
        let critical = format!("{critical}.{claims}.AAAA");
        assert_eq!(verify(&critical), Err(JwtError::Malformed));
        for garbage in ["", "a", "a.b", "a.b.c", "....", &"x".repeat(TOKEN_LEN_MAX + 1)] {
            assert!(verify(garbage).is_err(), "{garbage:.20}");
        }
    }

    proptest! {
        #[test]
        fn no_text_is_a_token(text in "[a-zA-Z0-9_.-]{0,200}") {
            prop_assert!(verify::<Value>(&text, &[], &Algorithm::ALL).is_err());
        }
    }
}
