//! OpenID Connect: ID tokens of one identity provider as bearer tokens (spec: OpenID Connect API server flags). The provider is asked for its keys only, and again
//! when a token names one that is not known.

mod claims;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use apiserver_token::jwt::JwtError;
use apiserver_token::{PublicKey, jwt};
use http::Uri;
use proto_api::names::Names;
use proto_client::config::{Credential, Pem, TlsSettings};
use proto_client::transport::ClientTlsError;
use proto_client::{Client, ClientConfig, ClientError, request};
use serde::Deserialize;
use serde_json::{Map, Value};
use time::OffsetDateTime;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::user::User;

/// Between two requests for the provider's keys, however many unknown keys tokens name.
const FETCH_INTERVAL: Duration = Duration::from_secs(10);
/// Longest wait for the provider.
const DEADLINE: Duration = Duration::from_secs(15);
/// Most keys of a provider that are kept.
const KEYS_MAX: usize = 100;

/// The flags `--oidc-*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OidcSettings {
    /// URL of the provider, https, without the discovery path.
    pub issuer_url: String,
    /// What every token must be issued for.
    pub client_id: String,
    /// The claim with the user's name.
    pub username_claim: String,
    /// Prefix of user names; `-` for none, the issuer and `#` when not set and the claim is not `email`.
    pub username_prefix: Option<String>,
    /// The claim with the user's groups.
    pub groups_claim: Option<String>,
    /// Prefix of groups.
    pub groups_prefix: String,
    /// Claims that every token must have, with their values.
    pub required_claims: Vec<(String, String)>,
    /// Authorities of the provider's certificate; the system's when not set.
    pub ca_file: Option<PathBuf>,
    /// Accepted algorithms of signatures: RS256, ES256, ES384.
    pub signing_algs: Vec<String>,
}

/// Why a token of the provider, or the provider, is refused. Logged; the client only gets a 401.
#[derive(Debug, thiserror::Error)]
pub enum OidcError {
    /// The settings contradict each other or OpenID Connect.
    #[error("{0}")]
    Settings(String),
    /// The certificates of the provider's authority cannot be used.
    #[error("cannot use the authority of the identity provider")]
    Tls(#[from] ClientTlsError),
    /// The provider cannot be asked.
    #[error("the identity provider cannot be asked")]
    Call(#[from] ClientError),
    /// The provider's answer is not what OpenID Connect Discovery prescribes.
    #[error("the identity provider's answer is not valid: {0}")]
    Answer(String),
    /// The token is malformed, or no key of the provider signed it.
    #[error(transparent)]
    Token(#[from] JwtError),
    /// A claim is missing or has a wrong value.
    #[error("{0}")]
    Claim(String),
}

/// Finds the user of an ID token.
pub struct Oidc {
    settings: OidcSettings,
    names: &'static Names,
    issuer: Client,
    keys: Mutex<ProviderKeys>,
}

/// The provider's keys, as far as they are known.
#[derive(Default)]
struct ProviderKeys {
    keys: Arc<[PublicKey]>,
    /// Where they are published.
    source: Option<(Client, String)>,
    fetched: Option<Instant>,
}

#[derive(Deserialize)]
struct Discovery {
    issuer: String,
    jwks_uri: String,
}

#[derive(Deserialize)]
struct KeySet {
    keys: Vec<Value>,
}

impl Oidc {
    /// Checks the settings; the provider is asked when the first token arrives.
    ///
    /// # Errors
    /// The settings are not valid, or the CA file cannot be used.
    pub fn new(settings: OidcSettings, names: &'static Names) -> Result<Self, OidcError> {
        let invalid = |why: &str| OidcError::Settings(why.to_owned());
        let url: Uri =
            settings.issuer_url.parse().map_err(|_| invalid("--oidc-issuer-url is not a URL"))?;
        if url.scheme_str() != Some("https") {
            return Err(invalid("--oidc-issuer-url must be an https URL"));
        }
        if settings.client_id.is_empty() {
            return Err(invalid("--oidc-issuer-url and --oidc-client-id must be given together"));
        }
        if let Some(other) =
            settings.signing_algs.iter().find(|alg| !["RS256", "ES256", "ES384"].contains(&&***alg))
        {
            return Err(OidcError::Settings(format!(
                "--oidc-signing-algs: {other} is not supported, of RS256, ES256, ES384"
            )));
        }
        let issuer = client(&settings, url, names)?;
        Ok(Self { settings, names, issuer, keys: Mutex::default() })
    }

    /// The user of an ID token; `None` for a token of another issuer.
    ///
    /// # Errors
    /// Why a token of the provider is refused, or why the provider's keys are not known.
    pub async fn user(&self, token: &str, now: OffsetDateTime) -> Result<Option<User>, OidcError> {
        // Without a look at the claims every other bearer token would cost a signature check here.
        if claims::unverified_issuer(token).as_deref() != Some(&*self.settings.issuer_url) {
            return Ok(None);
        }
        let claims = self.verify(token).await?;
        claims::user(&self.settings, &claims, now.unix_timestamp()).map(Some)
    }

    async fn verify(&self, token: &str) -> Result<Map<String, Value>, OidcError> {
        let mut known = self.keys.lock().await;
        let keys = known.keys.clone();
        let is_recent = known.fetched.is_some_and(|at| at.elapsed() < FETCH_INTERVAL);
        match jwt::verify(token, &keys) {
            Err(JwtError::Signature) if !is_recent => {}
            outcome => return Ok(outcome?),
        }
        // The others wait: they may need the same new key.
        let fetched = self.fetch(&mut known).await;
        known.fetched = Some(Instant::now());
        fetched?;
        Ok(jwt::verify(token, &known.keys)?)
    }

    /// Reads the provider's keys.
    async fn fetch(&self, known: &mut ProviderKeys) -> Result<(), OidcError> {
        let (client, path) = match known.source.take() {
            Some(source) => source,
            None => self.discover().await?,
        };
        let answer = client.call(request::get(path.clone())).await?;
        let set: KeySet = serde_json::from_slice(&answer.body)
            .map_err(|error| OidcError::Answer(error.to_string()))?;
        let keys = set.keys.iter().take(KEYS_MAX).filter_map(PublicKey::from_jwk);
        let keys =
            keys.filter(|key| self.settings.signing_algs.iter().any(|a| a == key.algorithm()));
        known.keys = keys.collect();
        tracing::info!(
            issuer = self.settings.issuer_url,
            keys = known.keys.len(),
            "read the keys of the identity provider"
        );
        known.source = Some((client, path));
        Ok(())
    }

    /// Where the provider publishes its keys (OpenID Connect Discovery 1.0, section 4).
    async fn discover(&self) -> Result<(Client, String), OidcError> {
        let path = "/.well-known/openid-configuration".to_owned();
        let answer = self.issuer.call(request::get(path)).await?;
        let found: Discovery = serde_json::from_slice(&answer.body)
            .map_err(|error| OidcError::Answer(error.to_string()))?;
        if found.issuer != self.settings.issuer_url {
            let own = &self.settings.issuer_url;
            return Err(OidcError::Answer(format!(
                "its issuer is {:?}, not {own:?}",
                found.issuer
            )));
        }
        let uri: Uri = found
            .jwks_uri
            .parse()
            .map_err(|_| OidcError::Answer("jwks_uri is not a URL".to_owned()))?;
        if uri.scheme_str() != Some("https") {
            return Err(OidcError::Answer("jwks_uri is not an https URL".to_owned()));
        }
        let path = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str).to_owned();
        let mut parts = uri.into_parts();
        parts.path_and_query = Some(http::uri::PathAndQuery::from_static("/"));
        let server = Uri::from_parts(parts)
            .map_err(|_| OidcError::Answer("jwks_uri is not a URL".to_owned()))?;
        Ok((client(&self.settings, server, self.names)?, path))
    }
}

fn client(
    settings: &OidcSettings,
    server: Uri,
    names: &'static Names,
) -> Result<Client, OidcError> {
    let authority = settings.ca_file.clone().map(Pem::File);
    let config = ClientConfig {
        server,
        tls: TlsSettings { authority, ..TlsSettings::default() },
        credential: Credential::None,
        namespace: String::new(),
    };
    let client =
        Client::new(&config, names, concat!("orch-apiserver/", env!("CARGO_PKG_VERSION")))?;
    Ok(client.with_deadline(DEADLINE))
}

#[cfg(test)]
mod tests;
