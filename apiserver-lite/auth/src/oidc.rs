//! OpenID Connect: ID tokens of one identity provider as bearer tokens (spec: OpenID Connect API server flags). The provider is asked for its
//! keys only, and again when a token has another signature.

mod claims;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use apiserver_token::jwt::JwtError;
use apiserver_token::{Algorithm, PublicKey, jwt};
use http::Uri;
use proto_api::names::Names;
use proto_client::config::{Credential, Pem, TlsSettings};
use proto_client::transport::ClientTlsError;
use proto_client::{Client, ClientConfig, ClientError, request};
use proto_daemon::exit::chain;
use proto_daemon::tls;
use serde::Deserialize;
use serde_json::{Map, Value};
use time::OffsetDateTime;
use tokio::time::Instant;

pub use claims::{unverified_issuer, user as user_of_claims};

use crate::user::User;
use crate::webhook::{USER_AGENT, server_and_path};

/// Between two requests for the provider's keys, however many tokens have other signatures.
const ASK_INTERVAL: Duration = Duration::from_secs(10);
/// Age of the keys at which they are read again, so that a withdrawn one is forgotten.
const KEYS_AGE: Duration = Duration::from_secs(3600);
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
    pub groups_prefix: String,
    /// Claims that every token must have, with their values.
    pub required_claims: Vec<(String, String)>,
    /// Authorities of the provider's certificate; the system's when not set.
    pub ca_file: Option<PathBuf>,
    /// Names of the accepted [`Algorithm`]s of signatures.
    pub signing_algs: Vec<String>,
}

/// Why a token of the provider, or the provider, is refused. Logged; the client only gets a 401.
#[derive(Debug, thiserror::Error)]
pub enum OidcError {
    /// The settings contradict each other or OpenID Connect.
    #[error("{0}")]
    Settings(String),
    /// The certificates of the provider's authority cannot be used.
    #[error("cannot use the certificate authority of the OpenID Connect provider")]
    Tls(#[from] ClientTlsError),
    /// The request to the provider failed.
    #[error("the request to the OpenID Connect provider failed")]
    Call(#[from] ClientError),
    /// The provider's answer is not what OpenID Connect Discovery prescribes.
    #[error("the response of the OpenID Connect provider is invalid: {0}")]
    Answer(String),
    /// The token is malformed, or no key of the provider signed it.
    #[error(transparent)]
    Token(#[from] JwtError),
    /// A claim is missing or has a wrong value.
    #[error("{0}")]
    Claim(String),
}

/// Finds the user of an ID token.
pub struct Oidc(Arc<Provider>);

/// The identity provider, as far as it is known.
struct Provider {
    settings: OidcSettings,
    /// Accepted algorithms of signatures.
    algorithms: Vec<Algorithm>,
    names: &'static Names,
    client: Client,
    keys: RwLock<Arc<[PublicKey]>>,
    /// Time of the last request for its keys.
    asked: Mutex<Option<Instant>>,
    /// Held by the task that reads the keys; other requests wait for its result.
    asking: tokio::sync::Mutex<()>,
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
    /// Checks the settings; the first token triggers the request to the provider.
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
        let algorithms = algorithms(&settings.signing_algs)?;
        if let Some(path) = &settings.ca_file {
            check_authorities(path)?;
        }
        let client = client(&settings, url, names)?;
        let (keys, asked, asking) = Default::default();
        Ok(Self(Arc::new(Provider { settings, algorithms, names, client, keys, asked, asking })))
    }

    /// The user of an ID token; `None` for a token of another issuer.
    ///
    /// # Errors
    /// Why a token of the provider is refused, or why the provider's keys are not known.
    pub async fn user(&self, token: &str, now: OffsetDateTime) -> Result<Option<User>, OidcError> {
        let settings = &self.0.settings;
        // Without a look at the claims every other bearer token would cost a signature check here.
        if claims::unverified_issuer(token).as_deref() != Some(&*settings.issuer_url) {
            return Ok(None);
        }
        let claims = self.verify(token).await?;
        claims::user(settings, &claims, now.unix_timestamp()).map(Some)
    }

    /// Verifies with the known keys, whatever the provider does. Only a token that none of them signed waits for new ones.
    async fn verify(&self, token: &str) -> Result<Map<String, Value>, OidcError> {
        let provider = &self.0;
        match provider.verify(token) {
            Err(JwtError::Signature) => {}
            outcome => {
                if outcome.is_ok() && provider.begins_asking(KEYS_AGE) {
                    tokio::spawn(provider.clone().fetch_keys());
                }
                return Ok(outcome?);
            }
        }
        let _turn = provider.asking.lock().await;
        match provider.verify(token) {
            Err(JwtError::Signature) if provider.begins_asking(ASK_INTERVAL) => {}
            outcome => return Ok(outcome?),
        }
        // A task of its own: it goes on when the client that has caused it leaves.
        let asked = tokio::spawn(provider.clone().fetch_keys()).await;
        asked.map_err(|error| OidcError::Answer(error.to_string()))??;
        Ok(provider.verify(token)?)
    }
}

impl Provider {
    fn verify(&self, token: &str) -> Result<Map<String, Value>, JwtError> {
        jwt::verify(token, &self.keys(), &self.algorithms)
    }

    fn keys(&self) -> Arc<[PublicKey]> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the last request for keys is older than `interval`; if so, records a request now.
    fn begins_asking(&self, interval: Duration) -> bool {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let begins = asked.is_none_or(|at| at.elapsed() >= interval);
        if begins {
            *asked = Some(Instant::now());
        }
        begins
    }

    /// Reads the provider's keys. If that fails, the old ones stay.
    async fn fetch_keys(self: Arc<Self>) -> Result<(), OidcError> {
        let (client, path) = self.discover().await?;
        let answer = client.call(request::get(path)).await?;
        let set: KeySet = serde_json::from_slice(&answer.body)
            .map_err(|error| OidcError::Answer(error.to_string()))?;
        let keys: Arc<[PublicKey]> =
            set.keys.iter().take(KEYS_MAX).filter_map(PublicKey::from_jwk).collect();
        let issuer = &self.settings.issuer_url;
        tracing::info!(
            issuer,
            keys = keys.len(),
            "updated the keys of the OpenID Connect provider"
        );
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys;
        Ok(())
    }

    /// Where the provider publishes its keys (OpenID Connect Discovery 1.0, section 4).
    async fn discover(&self) -> Result<(Client, String), OidcError> {
        let path = "/.well-known/openid-configuration".to_owned();
        let answer = self.client.call(request::get(path)).await?;
        let found: Discovery = serde_json::from_slice(&answer.body)
            .map_err(|error| OidcError::Answer(error.to_string()))?;
        let own = &self.settings.issuer_url;
        if found.issuer != *own {
            return Err(OidcError::Answer(format!(
                "its issuer is {:?}, not {own:?}",
                found.issuer
            )));
        }
        let uri = found.jwks_uri.parse::<Uri>().ok().filter(|u| u.scheme_str() == Some("https"));
        let uri =
            uri.ok_or_else(|| OidcError::Answer("jwks_uri is not an https URL".to_owned()))?;
        let (server, path) = server_and_path(&uri);
        Ok((client(&self.settings, server, self.names)?, path))
    }
}

/// The algorithms of `--oidc-signing-algs`.
fn algorithms(names: &[String]) -> Result<Vec<Algorithm>, OidcError> {
    let supported = |name: &String| {
        Algorithm::from_name(name).ok_or_else(|| {
            let all = Algorithm::ALL.map(Algorithm::name).join(", ");
            OidcError::Settings(format!("--oidc-signing-algs: {name:?} is not supported, of {all}"))
        })
    };
    names.iter().map(supported).collect()
}

/// The client reads the file at its first request: a wrong one is found here.
fn check_authorities(path: &Path) -> Result<(), OidcError> {
    let unusable =
        |why: String| OidcError::Settings(format!("--oidc-ca-file {}: {why}", path.display()));
    let pem = std::fs::read(path).map_err(|error| unusable(error.to_string()))?;
    tls::authorities("authority", &pem).map(drop).map_err(|error| unusable(chain(&error)))
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
    Ok(Client::new(&config, names, USER_AGENT)?.with_deadline(DEADLINE))
}

#[cfg(test)]
mod tests;
