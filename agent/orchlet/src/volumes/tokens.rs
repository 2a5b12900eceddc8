//! Tokens of pods' service accounts: asked for, renewed in time, gone on with after a restart.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agent_csi::offload;
use agent_volume::renewals::Held;
use agent_volume::sources::TokenWant;
use agent_volume::token::{Life, Moment, RETRY, Renewal};
use agent_volume::{PodVolumes, Volume};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use proto_api::Time;
use proto_api::authentication::v1::{BoundObjectReference, TokenRequest};
use proto_api::core::v1::{Pod, ServiceAccount};
use proto_client::Client;
use proto_daemon::exit::chain;

use crate::clock;
use crate::pods::ports::Line;

/// A token in use.
#[derive(Clone, Debug)]
pub struct Token {
    /// The token.
    pub text: String,
    /// When it expires, RFC 3339.
    pub expires: String,
    /// When it was issued, in seconds since 1970 by the server's clock; 0 when it does not say.
    issued_at: i64,
    renewal: Renewal,
    /// Since boot: not asked for again before.
    not_before: Duration,
}

impl Token {
    /// When it was issued, in seconds since 1970 by the server's clock; 0 when it does not say.
    pub fn issued_at(&self) -> i64 {
        self.issued_at
    }

    /// When it is looked at next, since boot.
    pub fn next_look(&self) -> Duration {
        self.renewal.boot.max(self.not_before)
    }
}

/// The tokens of a pod by what was asked for.
pub type OfPod = BTreeMap<TokenWant, Token>;

/// Who issues tokens.
pub trait Issuer: Send + Sync {
    /// Asks for a token of a service account; what was issued.
    fn issue<'a>(
        &'a self,
        namespace: &'a str,
        account: &'a str,
        request: &'a TokenRequest,
    ) -> BoxFuture<'a, Result<TokenRequest, Line>>;
}

impl Issuer for Client {
    fn issue<'a>(
        &'a self,
        namespace: &'a str,
        account: &'a str,
        request: &'a TokenRequest,
    ) -> BoxFuture<'a, Result<TokenRequest, Line>> {
        async move {
            let api = self.within::<ServiceAccount>(namespace);
            api.create_sub(account, "token", request).await.map_err(|e| chain(&e))
        }
        .boxed()
    }
}

/// The API server as one.
pub fn issuer(client: Client) -> Arc<dyn Issuer> {
    Arc::new(client)
}

/// Tokens of all pods.
pub struct Tokens {
    issuer: Option<Arc<dyn Issuer>>,
    on_disk: PodVolumes,
    /// This boot of the machine.
    boot: String,
    in_use: Mutex<BTreeMap<String, OfPod>>,
}

impl Tokens {
    /// None yet; without an issuer there never are any.
    pub fn new(issuer: Option<Arc<dyn Issuer>>, on_disk: PodVolumes, boot: String) -> Self {
        Self { issuer, on_disk, boot, in_use: Mutex::default() }
    }

    /// The tokens that a pod's volumes want; asks for those that are missing or old. One that cannot be renewed is used on: it is still
    /// good for a fifth of its life. Beside them why the first that is missing could not be had.
    pub async fn of(
        &self,
        pod: &Pod,
        volumes: &[Volume],
        wants: &BTreeSet<TokenWant>,
    ) -> (OfPod, Result<(), Line>) {
        if wants.is_empty() {
            return (OfPod::new(), Ok(()));
        }
        let uid = &pod.metadata.uid;
        let known = self.all().get(uid).cloned();
        let mut known = match known {
            Some(known) => known,
            None => self.held(uid, volumes).await,
        };
        known.retain(|want, _| wants.contains(want));
        let mut outcome = Ok(());
        for want in wants {
            let now = moment();
            let fresh = |t: &Token| !t.renewal.is_due(now) || now.boot < t.not_before;
            if known.get(want).is_some_and(fresh) {
                continue;
            }
            match (self.request(pod, want).await, known.get_mut(want)) {
                (Ok(token), _) => {
                    known.insert(want.clone(), token);
                }
                (Err(line), Some(old)) => {
                    tracing::warn!(pod = pod.metadata.name, error = line, "token is not renewed");
                    old.not_before = now.boot.saturating_add(RETRY);
                }
                (Err(line), None) => outcome = outcome.and(Err(line)),
            }
        }
        if !known.is_empty() {
            self.all().insert(uid.clone(), known.clone());
        }
        (known, outcome)
    }

    /// Writes down when a pod's tokens are renewed. To be called when they are in their files.
    pub async fn write_down(&self, uid: &str, tokens: &OfPod) {
        if tokens.is_empty() {
            return;
        }
        let held =
            |(want, token): (&TokenWant, &Token)| Held::of(want, token.issued_at, token.renewal);
        let held = tokens.iter().map(held).collect();
        let (on_disk, boot, of) = (self.on_disk.clone(), self.boot.clone(), uid.to_owned());
        let written = offload(move || on_disk.write_renewals(&of, &boot, held)).await;
        // Without it a restart goes by what the tokens say themselves.
        if let Ok(Err(error)) = written {
            tracing::warn!(uid, %error, "when tokens are renewed is not written down");
        }
    }

    /// Forgets a pod.
    pub fn forget(&self, uid: &str) {
        self.all().remove(uid);
    }

    /// The tokens that a pod held before this process started and that are still good.
    async fn held(&self, uid: &str, volumes: &[Volume]) -> OfPod {
        let (on_disk, boot) = (self.on_disk.clone(), self.boot.clone());
        let (of, volumes) = (uid.to_owned(), volumes.to_vec());
        let found = move || (on_disk.tokens(&of, &volumes), on_disk.renewals(&of, &boot));
        let (found, written) = offload(found).await.unwrap_or_default();
        let now = moment();
        let good = found.into_iter().filter_map(|(want, text)| {
            let life = Life::of(&text)?;
            let noted = |held: &&Held| held.is_for(&want) && held.issued_at == life.issued_at;
            let renewal = match written.iter().find(noted) {
                Some(held) => held.renewal,
                // past its end by the only clock there is to go by
                None if life.expires_at <= now.unix => return None,
                None => Renewal::of_found(life, now),
            };
            let expires = Time::from_unix(life.expires_at).to_string();
            let issued_at = life.issued_at;
            Some((want, Token { text, expires, issued_at, renewal, not_before: Duration::ZERO }))
        });
        good.collect()
    }

    async fn request(&self, pod: &Pod, want: &TokenWant) -> Result<Token, Line> {
        let issuer = self.issuer.as_ref().ok_or("no API server to ask for a token")?;
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
        let asked = moment();
        let answer = issuer.issue(&pod.metadata.namespace, account, &request).await;
        let answer = answer.map_err(|e| format!("ask for a token of {account}: {e}"))?;
        let (text, expires) = (answer.status.token, answer.status.expiration_timestamp);
        // What the server gave, by its own clock from one end to the other, counted from before it was asked.
        let own = Life::of(&text);
        let secs = match (own, expires.unix()) {
            (Some(life), _) => life.expires_at.saturating_sub(life.issued_at),
            (None, Some(at)) => at.saturating_sub(asked.unix),
            (None, None) => want.expiration_secs,
        };
        let secs = if secs > 0 { secs } else { want.expiration_secs };
        let life = Duration::from_secs(u64::try_from(secs).unwrap_or(0));
        Ok(Token {
            text,
            expires: expires.to_string(),
            issued_at: own.map_or(0, |life| life.issued_at),
            renewal: Renewal::of(life, asked, spread(&pod.metadata.uid, want)),
            not_before: Duration::ZERO,
        })
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<String, OfPod>> {
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn moment() -> Moment {
    let now = clock::now();
    Moment { boot: now.boot, unix: now.unix_seconds }
}

/// A number of a token's own: the same each time, so that its renewals keep their distance from others'.
fn spread(uid: &str, want: &TokenWant) -> u64 {
    let mut hasher = DefaultHasher::new();
    (uid, want).hash(&mut hasher);
    hasher.finish()
}
