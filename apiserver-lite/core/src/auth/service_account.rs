//! Service account tokens: bound to a service account and optionally to a pod, Secret or Node, signed by this server, valid only while
//! the objects they are bound to exist.

use std::sync::Arc;
use std::time::Duration;

use apiserver_auth::{KeySet, TokenKeys, User};
use apiserver_token::{Algorithm, KeyError, LegacyToken, jwt};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::ObjectLookup;
use super::settings::{ServiceAccounts, TokenExtension, TokenLookup};
use crate::record::StoredObject;
use crate::times::{now, time_of};
use proto_api::names::Names;

/// Tolerated clock difference in seconds, as in Kubernetes.
const CLOCK_SKEW_SECS: i64 = 60;
/// Range of token lifetimes in seconds that a TokenRequest may ask for.
pub const TOKEN_LIFETIME_SECS: std::ops::RangeInclusive<i64> = 600..=1 << 32;

/// The lifetime that the token volume of a pod asks for. It marks tokens of programs that may not know that tokens expire.
pub const VOLUME_TOKEN_SECS: i64 = 3607;
/// Lifetime of such a token where `--service-account-extend-token-expiration` is set: a year.
const EXTENDED_SECS: i64 = 365 * 24 * 60 * 60;

/// Issues and verifies tokens.
pub struct TokenIssuer {
    keys: TokenKeys,
    issuers: Vec<String>,
    audiences: Vec<String>,
    lookup: TokenLookup,
    lifetime_max: Option<Duration>,
    extension: TokenExtension,
    /// The label domain is the name of the claim with the bound objects.
    names: &'static Names,
}

/// A token to be issued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRequest<'a> {
    /// Namespace of the service account.
    pub namespace: &'a str,
    /// Name of the service account.
    pub account: &'a str,
    /// Uid of the service account.
    pub account_uid: &'a str,
    /// The pod, Secret or Node that the token is bound to.
    pub bound: Option<BoundObject>,
    /// Audiences; this server's when empty.
    pub audiences: Vec<String>,
    /// Lifetime in seconds.
    pub lifetime_secs: i64,
}

/// The object that a token is bound to besides its service account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundObject {
    /// `pod`, `secret` or `node`.
    pub kind: &'static str,
    /// Name, of a pod or Secret in the namespace of the service account.
    pub name: String,
    pub uid: String,
}

/// Why a token is invalid. Logged; the client only gets a 401.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Its form or signature is invalid.
    #[error(transparent)]
    Jwt(#[from] jwt::JwtError),
    /// Its issuer is not one of this server's.
    #[error("issuer {0:?} is unknown")]
    Issuer(String),
    /// It has expired or is not valid yet.
    #[error("the token has expired or is not valid yet")]
    Time,
    /// It has none of the expected audiences.
    #[error("the token has none of the expected audiences")]
    Audience,
    /// A claim is missing or has another type.
    #[error("claim {0} is missing or has the wrong type")]
    Claim(&'static str),
    /// An object it is bound to was deleted or recreated, or should be gone by now.
    #[error("bound {kind} {name:?} does not exist, has another uid or should have been deleted")]
    Gone {
        /// Kind of the object.
        kind: &'static str,
        name: String,
    },
}

impl TokenIssuer {
    /// An issuer that signs and verifies with `keys`.
    #[must_use]
    pub fn new(keys: TokenKeys, config: &ServiceAccounts, names: &'static Names) -> Self {
        let audiences =
            if config.audiences.is_empty() { &config.issuers } else { &config.audiences };
        Self {
            keys,
            issuers: config.issuers.clone(),
            audiences: audiences.clone(),
            lookup: config.lookup,
            lifetime_max: config.expiration_max,
            extension: config.extension,
            names,
        }
    }

    /// Audiences of this server.
    #[must_use]
    pub fn audiences(&self) -> &[String] {
        &self.audiences
    }

    /// The issuer of new tokens.
    #[must_use]
    pub fn issuer(&self) -> &str {
        self.issuers.first().map(String::as_str).unwrap_or_default()
    }

    /// The keys now, for the published key set.
    #[must_use]
    pub fn keys(&self) -> Arc<KeySet> {
        self.keys.current()
    }

    /// The lifetime granted to a request for `secs`, bounded by `--service-account-max-token-expiration`.
    #[must_use]
    pub fn lifetime_secs(&self, secs: i64) -> i64 {
        let max = self
            .lifetime_max
            .and_then(|max| i64::try_from(max.as_secs()).ok())
            .filter(|max| *max > 0);
        max.map_or(secs, |max| secs.min(max.max(*TOKEN_LIFETIME_SECS.start())))
    }

    /// Issues a token. `issued_secs` is the Unix time in seconds.
    ///
    /// # Errors
    /// Signing failed.
    pub fn issue(&self, request: &TokenRequest<'_>, issued_secs: i64) -> Result<String, KeyError> {
        let audiences =
            if request.audiences.is_empty() { &self.audiences } else { &request.audiences };
        let mut about = Map::new();
        about.insert("namespace".into(), json!(request.namespace));
        if let Some(bound) = &request.bound {
            about.insert(bound.kind.into(), json!({"name": bound.name, "uid": bound.uid}));
        }
        about.insert(
            "serviceaccount".into(),
            json!({"name": request.account, "uid": request.account_uid}),
        );
        let asked = issued_secs.saturating_add(request.lifetime_secs);
        let expires = match self.is_extended(request, audiences) {
            true => {
                about.insert("warnafter".into(), json!(asked));
                issued_secs.saturating_add(EXTENDED_SECS)
            }
            false => asked,
        };
        let mut claims = Map::new();
        claims.insert("aud".into(), json!(audiences));
        claims.insert("exp".into(), json!(expires));
        claims.insert("iat".into(), json!(issued_secs));
        claims.insert("iss".into(), json!(self.issuer()));
        claims.insert("jti".into(), json!(Uuid::new_v4().to_string()));
        claims.insert(self.names.label_domain().to_owned(), Value::Object(about));
        claims.insert("nbf".into(), json!(issued_secs));
        claims.insert(
            "sub".into(),
            json!(User::service_account(request.namespace, request.account).name),
        );
        jwt::sign(&claims, self.keys.current().signing())
    }

    /// Whether a token outlives what is asked for: one of a token volume, for this server only. Its pod's end ends it all the same.
    fn is_extended(&self, request: &TokenRequest<'_>, audiences: &[String]) -> bool {
        self.extension == TokenExtension::Extended
            && request.lifetime_secs == VOLUME_TOKEN_SECS
            && request.bound.as_ref().is_some_and(|bound| bound.kind == "pod")
            && audiences.iter().all(|audience| self.audiences.contains(audience))
    }

    /// Verifies a token and returns its user and those of `audiences` that the token is meant for.
    ///
    /// # Errors
    /// [`TokenError`] with the reason.
    pub fn authenticate(
        &self,
        objects: &dyn ObjectLookup,
        token: &str,
        audiences: &[String],
    ) -> Result<(User, Vec<String>), TokenError> {
        let keys = self.keys.current();
        let claims: Map<String, Value> = jwt::verify(token, keys.verifying(), &Algorithm::ALL)?;
        if LegacyToken::is(self.names, &claims) {
            return self.authenticate_legacy(objects, token, &claims, audiences);
        }
        let issuer = claims.get("iss").and_then(Value::as_str).unwrap_or_default();
        if !self.issuers.iter().any(|known| known == issuer) {
            return Err(TokenError::Issuer(issuer.to_owned()));
        }
        let at = now().unix_timestamp();
        check_time(&claims, at)?;
        let meant = meant_for(&claims, audiences)?;
        let about =
            claims.get(self.names.label_domain()).ok_or(TokenError::Claim("of the domain"))?;
        let namespace = about["namespace"].as_str().ok_or(TokenError::Claim("namespace"))?;
        let account = &about["serviceaccount"];
        let name = account["name"].as_str().ok_or(TokenError::Claim("serviceaccount"))?;
        if self.lookup == TokenLookup::Checked {
            check_exists(objects, ("serviceaccounts", "service account"), namespace, account, at)?;
            for (resource, kind, namespace) in [
                ("secrets", "secret", namespace),
                ("pods", "pod", namespace),
                ("nodes", "node", ""),
            ] {
                // The node in a pod's token says where the pod is: the token ends with the pod.
                let is_bound = kind != "node" || about.get("pod").is_none();
                if let Some(reference) = about.get(kind).filter(|_| is_bound) {
                    check_exists(objects, (resource, kind), namespace, reference, at)?;
                }
            }
        }
        let mut user = User::service_account(namespace, name).authenticated();
        user.uid = account["uid"].as_str().unwrap_or_default().to_owned();
        let domain = self.names.label_domain();
        for kind in ["pod", "node"] {
            let Some(bound) = about.get(kind) else { continue };
            for field in ["name", "uid"] {
                let value = vec![bound[field].as_str().unwrap_or_default().to_owned()];
                user.extra.insert(format!("authentication.{domain}/{kind}-{field}"), value);
            }
        }
        Ok((user, meant))
    }

    /// Verifies a legacy token, which is stored in a Secret, has no audience, and is valid as long as the Secret exists.
    fn authenticate_legacy(
        &self,
        objects: &dyn ObjectLookup,
        token: &str,
        claims: &Map<String, Value>,
        audiences: &[String],
    ) -> Result<(User, Vec<String>), TokenError> {
        let held = LegacyToken::read(self.names, claims).ok_or(TokenError::Claim("of a secret"))?;
        if self.lookup == TokenLookup::Checked {
            let account = json!({"name": held.account, "uid": held.account_uid});
            let namespace = &held.namespace;
            let resource = ("serviceaccounts", "service account");
            check_exists(objects, resource, namespace, &account, now().unix_timestamp())?;
            let secret = objects.find_in("", "secrets", namespace, &held.secret);
            let encoded = STANDARD.encode(token);
            // A finalizer keeps a deleted Secret, not its token.
            let keeps = |found: &StoredObject| {
                let secret = found.object();
                secret.str_at(&["data", "token"]) == encoded
                    && secret.str_at(&["metadata", "deletionTimestamp"]).is_empty()
            };
            if !secret.as_deref().is_some_and(keeps) {
                return Err(TokenError::Gone { kind: "secret", name: held.secret });
            }
        }
        let mut user = User::service_account(&held.namespace, &held.account).authenticated();
        user.uid = held.account_uid;
        // The token names no audience: it is meant for this server.
        let meant = audiences.iter().filter(|one| self.audiences.contains(one));
        let meant: Vec<String> = meant.cloned().collect();
        if meant.is_empty() { Err(TokenError::Audience) } else { Ok((user, meant)) }
    }
}

/// Checks the times of a token as Kubernetes does, whose clocks may differ by [`CLOCK_SKEW_SECS`].
fn check_time(claims: &Map<String, Value>, at: i64) -> Result<(), TokenError> {
    let seconds = |name: &'static str| match claims.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value.as_i64().map(Some).ok_or(TokenError::Claim(name)),
    };
    let expires = seconds("exp")?.ok_or(TokenError::Claim("exp"))?;
    let begins = [seconds("nbf")?, seconds("iat")?];
    let (earliest, latest) =
        (at.saturating_sub(CLOCK_SKEW_SECS), at.saturating_add(CLOCK_SKEW_SECS));
    match earliest > expires || begins.into_iter().flatten().any(|begins| begins > latest) {
        true => Err(TokenError::Time),
        false => Ok(()),
    }
}

fn meant_for(claims: &Map<String, Value>, audiences: &[String]) -> Result<Vec<String>, TokenError> {
    let claimed: Vec<&str> = match claims.get("aud") {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(many)) => many.iter().filter_map(Value::as_str).collect(),
        _ => return Err(TokenError::Claim("aud")),
    };
    let meant: Vec<String> =
        audiences.iter().filter(|audience| claimed.contains(&audience.as_str())).cloned().collect();
    if meant.is_empty() { Err(TokenError::Audience) } else { Ok(meant) }
}

/// Checks that an object exists with the uid of the token, and that its deletion is not overdue.
fn check_exists(
    objects: &dyn ObjectLookup,
    (resource, kind): (&str, &'static str),
    namespace: &str,
    reference: &Value,
    at: i64,
) -> Result<(), TokenError> {
    let name = reference["name"].as_str().unwrap_or_default();
    let uid = reference["uid"].as_str().unwrap_or_default();
    match objects.find_in("", resource, namespace, name) {
        Some(found) if found.object().uid() == uid && !is_overdue(&found, at) => Ok(()),
        _ => Err(TokenError::Gone { kind, name: name.to_owned() }),
    }
}

/// Whether an object should have been deleted before [`CLOCK_SKEW_SECS`].
fn is_overdue(found: &StoredObject, at: i64) -> bool {
    let deleted = found.object().deletion_timestamp().and_then(time_of);
    deleted.is_some_and(|due| due.unix_timestamp() < at.saturating_sub(CLOCK_SKEW_SECS))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn times_have_a_little_slack() {
        let token = claims(json!({"exp": 1000, "nbf": 500}));
        for (at, ok) in [(440, true), (439, false), (1000, true), (1060, true), (1061, false)] {
            assert_eq!(check_time(&token, at).is_ok(), ok, "{at}");
        }
        assert_eq!(check_time(&claims(json!({})), 1), Err(TokenError::Claim("exp")));
        let ahead = claims(json!({"exp": 1000, "iat": 500}));
        assert_eq!(check_time(&ahead, 439), Err(TokenError::Time));
        for odd in [json!({"exp": "1000"}), json!({"exp": 1000, "nbf": "1"})] {
            assert!(matches!(check_time(&claims(odd), 1), Err(TokenError::Claim(_))));
        }
    }

    #[test]
    fn audiences_must_meet() {
        let ours = ["api".to_owned(), "other".to_owned()];
        assert_eq!(meant_for(&claims(json!({"aud": "api"})), &ours).unwrap(), ["api"]);
        assert_eq!(meant_for(&claims(json!({"aud": ["x", "other"]})), &ours).unwrap(), ["other"]);
        assert_eq!(meant_for(&claims(json!({"aud": ["x"]})), &ours), Err(TokenError::Audience));
        assert_eq!(meant_for(&claims(json!({})), &ours), Err(TokenError::Claim("aud")));
    }
}
