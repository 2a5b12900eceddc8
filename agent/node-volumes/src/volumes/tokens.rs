//! Service account tokens of pods: requested, renewed in time, and kept over a restart of the agent.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agent_clock as clock;
use agent_host::offload;
use agent_volume::renewals::HeldToken;
use agent_volume::sources::TokenWant;
use agent_volume::token::{Moment, RETRY, TokenLifetime, TokenRenewal};
use agent_volume::{Volume, VolumesOnDisk};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use proto_api::Time;
use proto_api::authentication::v1::{BoundObjectReference, TokenRequest};
use proto_api::core::v1::{Pod, ServiceAccount};
use proto_client::{Client, ClientError};
use proto_daemon::exit::chain;

/// A service account token.
#[derive(Clone, Debug)]
pub struct IssuedToken {
    /// The token itself.
    pub text: String,
    /// When it expires, RFC 3339.
    pub expires: String,
    /// Unix time of issue by the server's clock; 0 if the token does not say.
    issued_at: i64,
    renewal: TokenRenewal,
    /// Earliest time since boot of the next request.
    not_before: Duration,
}

impl IssuedToken {
    /// Unix time of issue by the server's clock; 0 if the token does not say.
    pub fn issued_at(&self) -> i64 {
        self.issued_at
    }

    /// Time since boot when its renewal is checked next.
    pub fn next_check(&self) -> Duration {
        self.renewal.boot.max(self.not_before)
    }
}

/// The tokens of a pod by what its volumes request.
pub type PodTokens = BTreeMap<TokenWant, IssuedToken>;

/// Why there is no token. It is requested again when the volumes are set up again.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The agent has no API server.
    #[error("no API server to request a token from")]
    NoServer,
    /// The API server does not issue it.
    #[error("request a token of service account {account}")]
    Request {
        /// Name of the service account.
        account: String,
        /// Cause.
        source: ClientError,
    },
}

/// Issues service account tokens.
pub trait Issuer: Send + Sync {
    /// Requests a token of a service account.
    fn issue<'a>(
        &'a self,
        namespace: &'a str,
        account: &'a str,
        request: &'a TokenRequest,
    ) -> BoxFuture<'a, Result<TokenRequest, ClientError>>;
}

impl Issuer for Client {
    fn issue<'a>(
        &'a self,
        namespace: &'a str,
        account: &'a str,
        request: &'a TokenRequest,
    ) -> BoxFuture<'a, Result<TokenRequest, ClientError>> {
        async move {
            let api = self.within::<ServiceAccount>(namespace);
            api.create_sub(account, "token", request).await
        }
        .boxed()
    }
}

/// Issues tokens by the TokenRequest API.
pub fn issuer(client: Client) -> Arc<dyn Issuer> {
    Arc::new(client)
}

/// Tokens of all pods.
pub struct Tokens {
    issuer: Option<Arc<dyn Issuer>>,
    on_disk: VolumesOnDisk,
    /// Boot id of the machine.
    boot: String,
    in_use: Mutex<BTreeMap<String, PodTokens>>,
}

impl Tokens {
    /// Without an issuer every request fails.
    pub fn new(issuer: Option<Arc<dyn Issuer>>, on_disk: VolumesOnDisk, boot: String) -> Self {
        Self { issuer, on_disk, boot, in_use: Mutex::default() }
    }

    /// The tokens that a pod's volumes request. Missing and expiring tokens are requested; one that cannot be renewed stays in use, since a
    /// fifth of its lifetime is left. Also returns the first error about a missing token.
    pub async fn get(
        &self,
        pod: &Pod,
        volumes: &[Volume],
        wants: &BTreeSet<TokenWant>,
    ) -> (PodTokens, Result<(), TokenError>) {
        if wants.is_empty() {
            return (PodTokens::new(), Ok(()));
        }
        let uid = &pod.metadata.uid;
        let known = self.all().get(uid).cloned();
        let mut known = match known {
            Some(known) => known,
            None => self.find_on_disk(uid, volumes).await,
        };
        known.retain(|want, _| wants.contains(want));
        let mut outcome = Ok(());
        for want in wants {
            let now = moment();
            let fresh = |t: &IssuedToken| !t.renewal.is_due(now) || now.boot < t.not_before;
            if known.get(want).is_some_and(fresh) {
                continue;
            }
            match (self.request(pod, want).await, known.get_mut(want)) {
                (Ok(token), _) => {
                    known.insert(want.clone(), token);
                }
                (Err(error), Some(old)) => {
                    tracing::warn!(
                        pod = pod.metadata.name,
                        namespace = pod.metadata.namespace,
                        error = chain(&error),
                        "service account token not renewed; it stays in use and is requested again later"
                    );
                    old.not_before = now.boot.saturating_add(RETRY);
                }
                (Err(error), None) => outcome = outcome.and(Err(error)),
            }
        }
        if !known.is_empty() {
            self.all().insert(uid.clone(), known.clone());
        }
        (known, outcome)
    }

    /// Records when a pod's tokens are renewed. To be called after the tokens are in their files.
    pub async fn record_renewals(&self, uid: &str, tokens: &PodTokens) {
        if tokens.is_empty() {
            return;
        }
        let held = |(want, token): (&TokenWant, &IssuedToken)| {
            HeldToken::new(want, token.issued_at, token.renewal)
        };
        let held = tokens.iter().map(held).collect();
        let (on_disk, boot, of) = (self.on_disk.clone(), self.boot.clone(), uid.to_owned());
        let written = offload(move || on_disk.write_renewals(&of, &boot, held)).await;
        // Without the record a restart uses the times in the tokens.
        if let Ok(Err(error)) = written {
            tracing::warn!(uid, %error, "cannot record when service account tokens are renewed; a restart uses the times in the tokens");
        }
    }

    /// Drops the tokens of a pod.
    pub fn forget(&self, uid: &str) {
        self.all().remove(uid);
    }

    /// The valid tokens of a pod that an earlier process left in its volumes.
    async fn find_on_disk(&self, uid: &str, volumes: &[Volume]) -> PodTokens {
        let (on_disk, boot) = (self.on_disk.clone(), self.boot.clone());
        let (of, volumes) = (uid.to_owned(), volumes.to_vec());
        let found = move || (on_disk.tokens(&of, &volumes), on_disk.renewals(&of, &boot));
        let (found, written) = offload(found).await.unwrap_or_default();
        let now = moment();
        let good = found.into_iter().filter_map(|(want, text)| {
            let life = TokenLifetime::from_token(&text)?;
            let noted = |held: &&HeldToken| held.is_for(&want) && held.issued_at == life.issued_at;
            let renewal = match written.iter().find(noted) {
                Some(held) => held.renewal,
                // Expired by the wall clock, the only one to compare with.
                None if life.expires_at <= now.unix => return None,
                None => TokenRenewal::for_found_token(life, now),
            };
            let expires = Time::from_unix(life.expires_at).to_string();
            let issued_at = life.issued_at;
            Some((
                want,
                IssuedToken { text, expires, issued_at, renewal, not_before: Duration::ZERO },
            ))
        });
        good.collect()
    }

    async fn request(&self, pod: &Pod, want: &TokenWant) -> Result<IssuedToken, TokenError> {
        let issuer = self.issuer.as_ref().ok_or(TokenError::NoServer)?;
        let mut request = TokenRequest::default();
        if !want.audience.is_empty() {
            request.spec.audiences.push(want.audience.clone());
        }
        request.spec.expiration_seconds = Some(want.expiration_secs);
        request.spec.bound_object_ref = Some(BoundObjectReference {
            kind: "Pod".to_owned(),
            api_version: "v1".to_owned(),
            name: pod.metadata.name.clone(),
            uid: pod.metadata.uid.clone(),
        });
        let account = match pod.spec.service_account_name.as_str() {
            "" => "default",
            name => name,
        };
        let requested_at = moment();
        let answer = issuer.issue(&pod.metadata.namespace, account, &request).await;
        let refused = |source| TokenError::Request { account: account.to_owned(), source };
        let answer = answer.map_err(refused)?;
        let (text, expires) = (answer.status.token, answer.status.expiration_timestamp);
        // The lifetime that the server granted, by its own clock, counted from the moment before the request.
        let own = TokenLifetime::from_token(&text);
        let secs = TokenLifetime::granted_secs(own, answer.spec.expiration_seconds);
        let secs = secs.unwrap_or(want.expiration_secs);
        let life = Duration::from_secs(u64::try_from(secs).unwrap_or(0));
        Ok(IssuedToken {
            text,
            expires: expires.to_string(),
            issued_at: own.map_or(0, |life| life.issued_at),
            renewal: TokenRenewal::for_lifetime(
                life,
                requested_at,
                jitter(&pod.metadata.uid, want),
            ),
            not_before: Duration::ZERO,
        })
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<String, PodTokens>> {
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn moment() -> Moment {
    let now = clock::now();
    Moment { boot: now.boot, unix: now.unix_seconds }
}

/// A constant pseudo-random number of a token, which spreads renewals over time.
fn jitter(uid: &str, want: &TokenWant) -> u64 {
    let mut hasher = DefaultHasher::new();
    (uid, want).hash(&mut hasher);
    hasher.finish()
}
