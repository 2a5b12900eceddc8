//! Bootstrap tokens: decoding, expiry and signatures. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use proto_api::Time;
use proto_api::core::v1::{ConfigMap, Secret};
use ring::hmac;

const ID_LEN: usize = 6;
const SECRET_LEN: usize = 16;
/// The key of the signed content.
pub const KUBECONFIG: &str = "kubeconfig";
/// The prefix of the keys of signatures.
const SIGNATURE: &str = "jws-kubeconfig-";

/// A token decoded from its Secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Token {
    pub secret_name: String,
    /// Uid of the Secret.
    pub uid: String,
    id: String,
    secret: String,
    /// The expiry as text; anything but a time counts as expired.
    expiration: Option<String>,
    signs: bool,
    going: bool,
}

impl Token {
    /// Decodes a Secret.
    pub fn from_secret(secret: &Secret) -> Self {
        let text = |key: &str| {
            secret.data.get(key).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
        };
        Self {
            secret_name: secret.metadata.name.clone(),
            uid: secret.metadata.uid.clone(),
            id: text("token-id").unwrap_or_default(),
            secret: text("token-secret").unwrap_or_default(),
            expiration: text("expiration").filter(|text| !text.is_empty()),
            signs: text("usage-bootstrap-signing").as_deref() == Some("true"),
            going: secret.metadata.deletion_timestamp.is_some(),
        }
    }

    /// The time until the expiry, zero if expired; none without an expiry.
    pub fn time_to_expiry(&self, now: Time) -> Option<Duration> {
        let end = self.expiration.as_ref()?.parse::<Time>().ok().and_then(Time::unix);
        let left = end.map_or(0, |end| end.saturating_sub(now.unix().unwrap_or(0)));
        Some(Duration::from_secs(u64::try_from(left).unwrap_or(0)))
    }

    fn may_sign(&self, now: Time) -> bool {
        let named = self.secret_name == format!("bootstrap-token-{}", self.id);
        let lasts = self.time_to_expiry(now).is_none_or(|left| !left.is_zero());
        self.signs && !self.going && named && lasts && is_id(&self.id) && is_secret(&self.secret)
    }

    fn signature(&self, content: &str) -> String {
        signature(&self.id, &self.secret, content)
    }
}

/// Whether a text is a token's id.
pub fn is_id(text: &str) -> bool {
    is_plain(text, ID_LEN)
}

/// Whether a text is a token's secret.
pub fn is_secret(text: &str) -> bool {
    is_plain(text, SECRET_LEN)
}

fn is_plain(text: &str, len: usize) -> bool {
    text.len() == len && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
}

/// A JSON Web Signature of `content` by a token, with detached content.
pub fn signature(id: &str, secret: &str, content: &str) -> String {
    let header = format!(r#"{{"alg":"HS256","kid":"{id}"}}"#);
    let header = URL_SAFE_NO_PAD.encode(header);
    let input = format!("{header}.{}", URL_SAFE_NO_PAD.encode(content));
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let signature = URL_SAFE_NO_PAD.encode(hmac::sign(&key, input.as_bytes()));
    format!("{header}..{signature}")
}

/// The key under which a token's signature stands in the ConfigMap.
pub fn signature_key(id: &str) -> String {
    format!("{SIGNATURE}{id}")
}

/// The changes of the ConfigMap's signatures: missing ones, and obsolete ones as null.
pub fn signatures(
    info: &ConfigMap,
    tokens: &[Token],
    now: Time,
) -> BTreeMap<String, Option<String>> {
    let Some(content) = info.data.get(KUBECONFIG) else { return BTreeMap::new() };
    let signing = tokens.iter().filter(|token| token.may_sign(now));
    let wanted: BTreeMap<String, String> =
        signing.map(|token| (signature_key(&token.id), token.signature(content))).collect();
    let stale = info.data.keys().filter(|key| key.starts_with(SIGNATURE));
    let stale = stale.filter(|key| !wanted.contains_key(*key)).map(|key| (key.clone(), None));
    let fresh = wanted.iter().filter(|(key, value)| info.data.get(*key) != Some(value));
    stale.chain(fresh.map(|(key, value)| (key.clone(), Some(value.clone())))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_000;

    fn token(change: impl FnOnce(&mut Secret)) -> Token {
        let mut secret = Secret::default();
        secret.metadata.name = "bootstrap-token-abcdef".into();
        for (key, value) in [
            ("token-id", "abcdef"),
            ("token-secret", "0123456789abcdef"),
            ("usage-bootstrap-signing", "true"),
        ] {
            secret.data.insert(key.into(), value.into());
        }
        change(&mut secret);
        Token::from_secret(&secret)
    }

    fn ending(text: &str) -> Token {
        token(|secret| drop(secret.data.insert("expiration".into(), text.into())))
    }

    #[test]
    fn tokens_with_malformed_expirations_are_expired() {
        let left = |text: &str| {
            ending(text).time_to_expiry(Time::from_unix(NOW)).map(|left| left.as_secs())
        };
        assert_eq!(token(|_| {}).time_to_expiry(Time::from_unix(NOW)), None);
        assert_eq!(left(""), None);
        assert_eq!(left("1970-01-01T00:16:41Z"), Some(1));
        assert_eq!(left("1970-01-01T00:16:40Z"), Some(0));
        assert!(left("9999-12-31T23:59:59Z") > Some(0));
        let bad =
            ["tomorrow", "0001-01-01T00:00:00Z", "99999-01-01T00:00:00Z", "1e99", "\u{0}", " "];
        for bad in bad {
            assert_eq!(left(bad), Some(0), "{bad:?}");
        }
    }

    #[test]
    fn valid_tokens_sign_and_others_signatures_go() {
        let mut info = ConfigMap::default();
        let sign =
            |info: &ConfigMap, token: Token| signatures(info, &[token], Time::from_unix(NOW));
        assert!(sign(&info, token(|_| {})).is_empty(), "nothing to sign");
        info.data.insert(KUBECONFIG.into(), "content".into());
        let made = sign(&info, token(|_| {}));
        // As `printf '%s' HEADER.PAYLOAD | openssl dgst -sha256 -hmac 0123456789abcdef -binary | basenc --base64url` says.
        let expect =
            "eyJhbGciOiJIUzI1NiIsImtpZCI6ImFiY2RlZiJ9..psz1NayrXM3IaFzKZGsb5n_mBl7MjtlsZ1xE8MRmF_4";
        assert_eq!(made["jws-kubeconfig-abcdef"].as_deref(), Some(expect));
        info.data.insert("jws-kubeconfig-abcdef".into(), expect.into());
        assert!(sign(&info, token(|_| {})).is_empty(), "signed already");
        for bad in [
            ending("1970-01-01T00:00:00Z"),
            ending("never"),
            token(|secret| drop(secret.data.remove("usage-bootstrap-signing"))),
            token(|secret| drop(secret.data.insert("token-secret".into(), "short".into()))),
            token(|secret| secret.metadata.name = "other".into()),
            token(|secret| secret.metadata.deletion_timestamp = Some(Time::from_unix(1))),
        ] {
            let gone = BTreeMap::from([("jws-kubeconfig-abcdef".to_owned(), None)]);
            assert_eq!(sign(&info, bad.clone()), gone, "{bad:?}");
        }
    }
}
