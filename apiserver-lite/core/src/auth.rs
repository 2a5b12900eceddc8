//! Authentication and authorization of requests.

mod authorize;
mod bootstrap_token;
mod certificate;
mod impersonate;
mod limits;
mod node;
mod pod_references;
mod rbac;
mod service_account;
mod settings;
mod static_token;
mod store_index;
mod user;

use std::sync::Arc;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use proto_api::names::Names;

pub use apiserver_token::{KeyError, PublicKey, SigningKey};
pub use authorize::{
    AlwaysAllow, AlwaysDeny, Attributes, Authorization, Authorizer, Chain, Decision, Masters,
    Subject, UserRules,
};
pub use certificate::ClientCertificate;
pub use impersonate::effective as effective_user;
pub use limits::{AnonymousLimit, NODE_USER_PREFIX, NodeLimit, is_health, is_node};
pub use node::{NodeAuthorizer, NodeAuthorizerError};
pub use pod_references::{Referenced, claim_names, refers_to_any};
pub use rbac::{ClusterPolicy, Rbac};
pub use service_account::{BoundObject, TOKEN_LIFETIME_SECS, TokenIssuer, TokenRequest};
pub use settings::{Anonymous, AnonymousAccess, BootstrapTokens, ServiceAccounts, TokenLookup};
pub use static_token::{StaticTokens, TokenFileError};
pub use store_index::IndexError;
pub use user::{AUTHENTICATED, MASTERS, User};

use crate::record::StoredObject;
use crate::status::ApiError;

/// The authenticators, consulted in Kubernetes' order: client certificate, then tokens. The first one that authenticates a user
/// decides. A refused credential is not treated as anonymous.
pub struct Authenticators {
    /// Users by static token.
    pub static_tokens: StaticTokens,
    /// Whether bootstrap tokens authenticate.
    pub bootstrap_tokens: BootstrapTokens,
    /// Treatment of requests without credentials.
    pub anonymous: Anonymous,
    /// Issues and verifies service account tokens.
    pub tokens: Arc<TokenIssuer>,
}

/// The objects that tokens refer to.
pub trait ObjectLookup {
    /// The naming profile.
    fn names(&self) -> &'static Names;

    /// The current version of an object by the short group (without its domain) and resource of its kind, version `v1`.
    fn find_in(
        &self,
        short_group: &str,
        resource: &str,
        namespace: &str,
        name: &str,
    ) -> Option<Arc<StoredObject>>;
}

impl Authenticators {
    /// Authenticates a request by its client certificate and headers.
    ///
    /// # Errors
    /// 401 for invalid credentials, or none where anonymous requests are not served. It contains the reason if the only credential
    /// was a client certificate.
    pub fn authenticate(
        &self,
        objects: &dyn ObjectLookup,
        certificate: Option<&ClientCertificate>,
        headers: &HeaderMap,
    ) -> Result<User, ApiError> {
        let certificate_user = certificate.map(|certificate| certificate.user(crate::times::now()));
        if let Some(Ok(user)) = certificate_user {
            return Ok(user.clone());
        }
        if let Some(token) = bearer(headers) {
            let audiences = self.tokens.audiences();
            return self
                .token_user(objects, token, audiences)
                .map(|(user, _)| user)
                .ok_or_else(ApiError::unauthorized);
        }
        match (certificate_user, self.anonymous) {
            (Some(Err(reason)), _) => Err(ApiError::unauthorized_because(reason)),
            (_, Anonymous::Served(_)) if !headers.contains_key(AUTHORIZATION) => {
                Ok(User::anonymous())
            }
            _ => Err(ApiError::unauthorized()),
        }
    }

    /// The user of a token, and those of `audiences` that the token is meant for.
    #[must_use]
    pub fn token_user(
        &self,
        objects: &dyn ObjectLookup,
        token: &str,
        audiences: &[String],
    ) -> Option<(User, Vec<String>)> {
        if let Some(user) = self.static_tokens.user_of(token) {
            return Some((user.clone(), audiences.to_vec()));
        }
        if self.bootstrap_tokens == BootstrapTokens::Accepted
            && let Some(user) = bootstrap_token::user_of(objects, token)
        {
            return Some((user, audiences.to_vec()));
        }
        match self.tokens.authenticate(objects, token, audiences) {
            Ok(found) => Some(found),
            Err(reason) => {
                tracing::debug!(%reason, "bearer token refused");
                None
            }
        }
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.trim().split_once(' ')?;
    (scheme.eq_ignore_ascii_case("bearer") && !token.trim().is_empty()).then(|| token.trim())
}
