//! JSON Web Tokens: compact JWS, one algorithm per key.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::keys::{KeyError, PublicKey, SigningKey};

/// Longest token that is parsed, in bytes; a bound token has about 1 KiB.
pub const TOKEN_LEN_MAX: usize = 16 << 10;

/// Why a token is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JwtError {
    /// It is not three base64url parts with a valid header and claims.
    #[error("the token is malformed")]
    Malformed,
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
        alg: key.public().algorithm().to_owned(),
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

/// Verifies the signature with `keys` and returns the claims. Times and audiences are not checked.
///
/// # Errors
/// [`JwtError`] when the token is malformed or no key verifies it.
pub fn verify<C: DeserializeOwned>(token: &str, keys: &[PublicKey]) -> Result<C, JwtError> {
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
    let fits = |key: &&PublicKey| {
        let named = header.kid.is_empty() || key.id().is_empty() || key.id() == header.kid;
        key.algorithm() == header.alg && named
    };
    if !keys.iter().filter(fits).any(|key| key.verifies(signed.as_bytes(), &signature)) {
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
            verify::<Value>(&token, std::slice::from_ref(key.public())).unwrap()["sub"],
            "a"
        );
    }

    #[test]
    fn every_forgery_is_refused() {
        let mine = key();
        let keys = [mine.public().clone()];
        let token = sign(&json!({"sub": "a"}), &mine).unwrap();
        let stranger = sign(&json!({"sub": "a"}), &key()).unwrap();
        assert_eq!(verify::<Value>(&stranger, &keys), Err(JwtError::Signature));
        let mut parts: Vec<&str> = token.split('.').collect();
        let claims = URL_SAFE_NO_PAD.encode(r#"{"sub":"b"}"#);
        parts[1] = &claims;
        assert_eq!(verify::<Value>(&parts.join("."), &keys), Err(JwtError::Signature));
        let none = URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#);
        assert_eq!(verify::<Value>(&format!("{none}.{claims}."), &keys), Err(JwtError::Signature));
        let critical = URL_SAFE_NO_PAD.encode(r#"{"alg":"ES256","crit":["b64"]}"#);
        let critical = format!("{critical}.{claims}.AAAA");
        assert_eq!(verify::<Value>(&critical, &keys), Err(JwtError::Malformed));
        for garbage in ["", "a", "a.b", "a.b.c", "....", &"x".repeat(TOKEN_LEN_MAX + 1)] {
            assert!(verify::<Value>(garbage, &keys).is_err(), "{garbage:.20}");
        }
    }

    proptest! {
        #[test]
        fn no_text_is_a_token(text in "[a-zA-Z0-9_.-]{0,200}") {
            prop_assert!(verify::<Value>(&text, &[]).is_err());
        }
    }
}
