//! Legacy tokens in Secrets: without expiry, valid as long as the Secret contains them and the service account exists.

use proto_api::names::Names;
use serde_json::{Map, Value};

/// Service account and Secret of a legacy token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegacyToken {
    /// Namespace of both.
    pub namespace: String,
    /// Name of the Secret.
    pub secret: String,
    /// Name of the service account.
    pub account: String,
    /// Uid of the service account.
    pub account_uid: String,
}

impl LegacyToken {
    /// Whether `claims` are those of a legacy token, by their issuer, which is not a URL.
    #[must_use]
    pub fn is(names: &Names, claims: &Map<String, Value>) -> bool {
        claims.get("iss").and_then(Value::as_str) == Some(&*names.lasting_token_issuer())
    }

    /// The claims as in Kubernetes' legacy tokens: flat, below the label domain.
    #[must_use]
    pub fn claims(&self, names: &Names) -> Map<String, Value> {
        let claim = |name: &str| names.label(&format!("serviceaccount/{name}"));
        let subject = format!("system:serviceaccount:{}:{}", self.namespace, self.account);
        [
            ("iss".to_owned(), names.lasting_token_issuer()),
            (claim("namespace"), self.namespace.clone()),
            (claim("secret.name"), self.secret.clone()),
            (claim("service-account.name"), self.account.clone()),
            (claim("service-account.uid"), self.account_uid.clone()),
            ("sub".to_owned(), subject),
        ]
        .into_iter()
        .map(|(name, value)| (name, Value::String(value)))
        .collect()
    }

    /// Parses the claims; `None` if one is missing or empty.
    #[must_use]
    pub fn read(names: &Names, claims: &Map<String, Value>) -> Option<Self> {
        let claim = |name: &str| {
            let value = claims.get(&names.label(&format!("serviceaccount/{name}")))?;
            value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
        };
        Some(Self {
            namespace: claim("namespace")?,
            secret: claim("secret.name")?,
            account: claim("service-account.name")?,
            account_uid: claim("service-account.uid")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;

    use super::*;

    #[test]
    fn claims_are_kubernetes_and_round_trip() {
        let names = Names::new(Profile::Kubernetes);
        let token = LegacyToken {
            namespace: "a".into(),
            secret: "default-token-x".into(),
            account: "default".into(),
            account_uid: "u".into(),
        };
        let mut claims = token.claims(names);
        assert_eq!(claims["iss"], "kubernetes/serviceaccount");
        assert_eq!(claims["sub"], "system:serviceaccount:a:default");
        assert_eq!(claims["kubernetes.io/serviceaccount/secret.name"], "default-token-x");
        assert!(LegacyToken::is(names, &claims));
        assert_eq!(LegacyToken::read(names, &claims), Some(token));
        claims.insert("kubernetes.io/serviceaccount/service-account.uid".into(), "".into());
        assert_eq!(LegacyToken::read(names, &claims), None);
        assert!(!LegacyToken::is(Names::new(Profile::default()), &claims));
    }
}
