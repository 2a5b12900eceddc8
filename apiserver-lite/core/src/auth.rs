//! Authentication and authorization of requests.

mod bootstrap_token;
mod impersonate;
mod node;
mod pod_references;
mod rbac;
mod service_account;
mod settings;
mod store_index;
mod websocket_token;

use std::net::IpAddr;
use std::sync::Arc;

use apiserver_auth::{ClientCertificate, Oidc, RequestHeaders, StaticTokens, TokenWebhook, User};
use http::HeaderMap;
use http::header::AUTHORIZATION;
use proto_api::names::Names;
use proto_daemon::exit::chain;

pub use apiserver_token::PublicKey;
pub use impersonate::effective as effective_user;
pub use node::{NodeAuthorizer, NodeAuthorizerError};
pub use pod_references::{ReferencedKind, claim_names, refers_to_any};
pub use rbac::{ClusterPolicy, Rbac};
pub use service_account::{
    BoundObject, TOKEN_LIFETIME_SECS, TokenIssuer, TokenRequest, VOLUME_TOKEN_SECS,
};
pub use settings::{
    Anonymous, AnonymousAccess, BootstrapTokens, ServiceAccounts, TokenExtension, TokenLookup,
};
pub use store_index::IndexError;
pub(crate) use store_index::{ObjectIndex, StoreIndex};
pub use websocket_token::{has_websocket_token, remove_websocket_tokens};

use self::websocket_token::websocket_token;
use crate::record::StoredObject;
use crate::status::ApiError;

/// The authenticators, consulted in Kubernetes' order: authenticating proxy, client certificate, then tokens; the token of a WebSocket client goes before
/// the certificate. The first one that authenticates a user decides. A refused credential is not treated as anonymous.
pub struct Authenticators {
    /// Users named by an authenticating proxy.
    pub request_headers: Option<RequestHeaders>,
    /// Users by static token.
    pub static_tokens: StaticTokens,
    /// Whether bootstrap tokens authenticate.
    pub bootstrap_tokens: BootstrapTokens,
    /// Treatment of requests without credentials.
    pub anonymous: Anonymous,
    /// Issues and verifies service account tokens.
    pub tokens: Arc<TokenIssuer>,
    /// ID tokens of an identity provider.
    pub oidc: Option<Oidc>,
    /// Tokens that a remote service knows.
    pub token_webhook: Option<TokenWebhook>,
}

/// What the connection of a request says of its client.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClientConnection<'a> {
    /// The certificate that the client has shown.
    pub certificate: Option<&'a ClientCertificate>,
    /// Whether the client is an authenticating proxy by its certificate.
    pub is_proxy: bool,
    /// The client's address.
    pub address: Option<IpAddr>,
}

/// The objects that tokens refer to.
pub trait ObjectLookup: Sync {
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
    /// Authenticates a request by its connection and headers.
    ///
    /// # Errors
    /// 401 for invalid credentials, or none where anonymous requests are not served. The reason is logged and not answered.
    pub async fn authenticate(
        &self,
        objects: &dyn ObjectLookup,
        client: ClientConnection<'_>,
        headers: &HeaderMap,
    ) -> Result<User, ApiError> {
        if client.is_proxy
            && let Some(user) = self.request_headers.as_ref().and_then(|all| all.user(headers))
        {
            return Ok(user);
        }
        // A page may name a token, and its browser adds the certificate of the user who opened the page: only the token is the page's own.
        if has_websocket_token(headers) {
            let token = websocket_token(headers).ok_or_else(ApiError::unauthorized)?;
            return self.user_of(objects, &token, &client).await;
        }
        let certificate = client.certificate;
        let certificate_user = certificate.map(|certificate| certificate.user(crate::times::now()));
        if let Some(Ok(user)) = certificate_user {
            return Ok(user.clone());
        }
        if let Some(token) = bearer(headers) {
            return self.user_of(objects, token, &client).await;
        }
        match (certificate_user, self.anonymous) {
            (Some(Err(error)), _) => {
                let reason = error.to_string();
                tracing::debug!(
                    reason,
                    "the client certificate is not valid and there is no token"
                );
                Err(ApiError::unauthorized())
            }
            (_, Anonymous::Served(_)) if !headers.contains_key(AUTHORIZATION) => {
                Ok(User::anonymous())
            }
            _ => Err(ApiError::unauthorized()),
        }
    }

    /// The user of a token that is meant for this server.
    async fn user_of(
        &self,
        objects: &dyn ObjectLookup,
        token: &str,
        client: &ClientConnection<'_>,
    ) -> Result<User, ApiError> {
        let from = client.address.map(|address| address.to_string()).unwrap_or_default();
        let found = self.token_user(objects, token, self.tokens.audiences(), &from).await;
        found.map(|(user, _)| user).ok_or_else(ApiError::unauthorized)
    }

    /// The user of a token, and those of `audiences` that the token is meant for. `client` is who asks: a remote service that knows tokens has a share for
    /// each.
    pub async fn token_user(
        &self,
        objects: &dyn ObjectLookup,
        token: &str,
        audiences: &[String],
        client: &str,
    ) -> Option<(User, Vec<String>)> {
        // What knows nothing of audiences is meant for this server.
        let own = self.tokens.audiences();
        let for_own = |user: User| {
            let meant: Vec<String> =
                audiences.iter().filter(|one| own.contains(one)).cloned().collect();
            (!meant.is_empty()).then_some((user, meant))
        };
        if let Some(user) = self.static_tokens.user_of(token) {
            return for_own(user.clone());
        }
        if self.bootstrap_tokens == BootstrapTokens::Accepted
            && let Some(user) = bootstrap_token::user_of(objects, token)
        {
            return for_own(user);
        }
        match self.tokens.authenticate(objects, token, audiences) {
            Ok(found) => return Some(found),
            Err(reason) => {
                tracing::debug!(%reason, "the bearer token is not a valid service account token; other authenticators follow")
            }
        }
        if let Some(oidc) = &self.oidc {
            match oidc.user(token, crate::times::now()).await {
                Ok(Some(user)) => return for_own(user),
                Ok(None) => {}
                Err(error) => {
                    let reason = chain(&error);
                    tracing::debug!(reason, "the ID token is not valid");
                }
            }
        }
        // It reports its failures itself.
        self.token_webhook.as_ref()?.user(token, audiences, own, client).await.ok().flatten()
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.trim().split_once(' ')?;
    (scheme.eq_ignore_ascii_case("bearer") && !token.trim().is_empty()).then(|| token.trim())
}
