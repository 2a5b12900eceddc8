//! Bearer tokens that a remote service knows (`--authentication-token-webhook-config-file`).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use proto_api::names::Names;
use serde::Deserialize;
use serde_json::json;

use crate::expiring_cache::{ExpiringCache, key};
use crate::user::User;
use crate::webhook::{
    ReviewError, ReviewVersion, ReviewWebhook, WebhookError, null_is_empty, read_status,
};

/// The flags `--authentication-token-webhook-*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenWebhookSettings {
    /// Client configuration file of the service.
    pub config_file: PathBuf,
    /// The version of TokenReview that it understands.
    pub version: ReviewVersion,
    /// How long its answers hold.
    pub cache_ttl: Duration,
}

/// Authenticates tokens by a remote service.
pub struct TokenWebhook {
    webhook: ReviewWebhook,
    cache_ttl: Duration,
    /// Apart, so that a flood of unknown tokens does not push out the known ones.
    known: ExpiringCache<TokenUser>,
    unknown: ExpiringCache<()>,
}

/// The user of a token, and those of the audiences asked for that the token is meant for.
pub type TokenUser = (User, Vec<String>);

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    authenticated: bool,
    #[serde(deserialize_with = "null_is_empty")]
    user: ReviewedUser,
    #[serde(deserialize_with = "null_is_empty")]
    audiences: Vec<String>,
    #[serde(deserialize_with = "null_is_empty")]
    error: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ReviewedUser {
    #[serde(deserialize_with = "null_is_empty")]
    username: String,
    #[serde(deserialize_with = "null_is_empty")]
    uid: String,
    #[serde(deserialize_with = "null_is_empty")]
    groups: Vec<String>,
    #[serde(deserialize_with = "null_is_empty")]
    extra: BTreeMap<String, Vec<String>>,
}

impl TokenWebhook {
    /// Reads the service's client configuration.
    ///
    /// # Errors
    /// The file or a certificate in it cannot be used.
    pub fn new(
        settings: &TokenWebhookSettings,
        names: &'static Names,
    ) -> Result<Self, WebhookError> {
        Ok(Self {
            webhook: ReviewWebhook::load(
                &settings.config_file,
                names,
                ("authentication", settings.version, "TokenReview"),
            )?,
            cache_ttl: settings.cache_ttl,
            known: ExpiringCache::new(),
            unknown: ExpiringCache::new(),
        })
    }

    /// The user of a token, and those of `audiences` that it is meant for; `None` for a token that the service does not know. A service that
    /// names no audiences vouches for `own`, those of this server. `client` is who shows the token, which is not known yet.
    ///
    /// # Errors
    /// The service cannot be called, or reports an error. Such a response is not cached.
    pub async fn user(
        &self,
        token: &str,
        audiences: &[String],
        own: &[String],
        client: &str,
    ) -> Result<Option<TokenUser>, ReviewError> {
        let question = json!({"token": token, "audiences": audiences});
        let key = key(question.to_string().as_bytes());
        if let Some(known) = self.known.get(&key) {
            return Ok(Some(known));
        }
        if self.unknown.get(&key).is_some() {
            return Ok(None);
        }
        let status: Status = self.webhook.review(client, &question).await?;
        let known = status.decide(audiences, own)?;
        match &known {
            Some(known) => self.known.insert(key, known.clone(), self.cache_ttl),
            None => self.unknown.insert(key, (), self.cache_ttl),
        }
        Ok(known)
    }
}

/// What a service's answer, a TokenReview of the version `api_version`, says of a token that was asked for with `audiences`.
///
/// # Errors
/// It is no such review, or says that the service could not decide.
pub fn read_token_review(
    body: &[u8],
    api_version: &str,
    audiences: &[String],
    own: &[String],
) -> Result<Option<TokenUser>, ReviewError> {
    read_status::<Status>(body, api_version, "TokenReview")?.decide(audiences, own)
}

impl Status {
    fn decide(
        self,
        audiences: &[String],
        own: &[String],
    ) -> Result<Option<TokenUser>, ReviewError> {
        match !self.authenticated && !self.error.is_empty() {
            true => Err(ReviewError::Undecided(self.error)),
            false => Ok(self.user_for(audiences, own)),
        }
    }

    fn user_for(self, audiences: &[String], own: &[String]) -> Option<TokenUser> {
        let named = if self.audiences.is_empty() { own } else { &self.audiences };
        let meant: Vec<String> =
            audiences.iter().filter(|one| named.contains(one)).cloned().collect();
        if !self.authenticated || (meant.is_empty() && !audiences.is_empty()) {
            return None;
        }
        let ReviewedUser { username: name, uid, groups, extra } = self.user;
        Some((User { name, uid, groups, extra }.authenticated(), meant))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use proto_api::names::Profile;
    use serde_json::Value;

    use super::*;
    use crate::webhook::testing::serve;

    async fn webhook(
        version: ReviewVersion,
        answer: impl Fn(Value) -> (u16, Value) + Send + Sync + 'static,
    ) -> TokenWebhook {
        let config_file = serve(answer).await;
        let settings =
            TokenWebhookSettings { config_file, version, cache_ttl: Duration::from_secs(120) };
        TokenWebhook::new(&settings, Names::new(Profile::Kubernetes)).unwrap()
    }

    fn audiences(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[tokio::test]
    async fn a_known_token_has_its_user_and_is_reviewed_once() {
        let asked = Arc::new(AtomicU32::new(0));
        let count = asked.clone();
        let webhook = webhook(ReviewVersion::V1, move |review| {
            count.fetch_add(1, Ordering::Relaxed);
            assert_eq!(review["apiVersion"], "authentication.k8s.io/v1");
            assert_eq!(review["kind"], "TokenReview");
            let known = review["spec"]["token"] == "good";
            let user =
                json!({"username": "jane", "uid": "7", "groups": ["dev"], "extra": {"k": ["v"]}});
            (200, json!({"status": {"authenticated": known, "user": user, "audiences": ["api"]}}))
        })
        .await;
        for _ in 0..2 {
            let (user, meant) = webhook
                .user("good", &audiences(&["api", "other"]), &[], "c")
                .await
                .unwrap()
                .unwrap();
            assert_eq!((user.name.as_str(), user.uid.as_str()), ("jane", "7"));
            assert_eq!(user.groups, ["dev", "system:authenticated"]);
            assert_eq!(user.extra["k"], ["v"]);
            assert_eq!(meant, ["api"]);
            assert_eq!(webhook.user("bad", &audiences(&["api"]), &[], "c").await.unwrap(), None);
        }
        assert_eq!(asked.load(Ordering::Relaxed), 2);
        assert_eq!(webhook.user("good", &audiences(&["other"]), &[], "c").await.unwrap(), None);
    }

    #[tokio::test]
    async fn failures_are_errors_and_are_not_kept() {
        let asked = Arc::new(AtomicU32::new(0));
        let count = asked.clone();
        let webhook = webhook(ReviewVersion::V1Beta1, move |review| {
            assert_eq!(review["apiVersion"], "authentication.k8s.io/v1beta1");
            match count.fetch_add(1, Ordering::Relaxed) {
                0 => (403, json!({})),
                1 => (200, json!({"status": {"authenticated": "yes"}})),
                2 => (200, json!({"status": {"authenticated": false, "error": "no directory"}})),
                3 => (200, json!({"kind": "Status", "status": {}})),
                4 => (500, json!({})),
                _ => {
                    let user = json!({"username": "a", "groups": null, "extra": null});
                    let status = json!({"authenticated": true, "user": user, "audiences": null});
                    (200, json!({"status": status}))
                }
            }
        })
        .await;
        let own = audiences(&["api"]);
        let ask = async || webhook.user("t", &own, &own, "c").await;
        assert!(matches!(ask().await, Err(ReviewError::Call(_))));
        assert!(matches!(ask().await, Err(ReviewError::Answer(_))));
        assert!(matches!(ask().await, Err(ReviewError::Undecided(_))));
        assert!(matches!(ask().await, Err(ReviewError::Kind(..))));
        // A 500 may be transient: the request is retried.
        assert_eq!(ask().await.unwrap().unwrap().0.name, "a");
        // The service names no audiences: the token is meant for this server only.
        let other = webhook.user("t", &audiences(&["vault"]), &own, "c").await;
        assert_eq!(other.unwrap(), None);
    }

    /// Many clients with one token are one question; a client with many tokens leaves room to others.
    #[tokio::test]
    async fn equal_reviews_are_sent_once_and_one_client_cannot_take_all_of_them() {
        let asked = Arc::new(AtomicU32::new(0));
        let count = asked.clone();
        let known = webhook(ReviewVersion::V1, move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            (200, json!({"status": {"authenticated": true, "user": {"username": "jane"}}}))
        })
        .await;
        let known = Arc::new(known);
        let mut all = tokio::task::JoinSet::new();
        for nth in 0..50 {
            let known = known.clone();
            all.spawn(async move {
                let client = format!("client-{nth}");
                known.user("t", &audiences(&["api"]), &audiences(&["api"]), &client).await
            });
        }
        while let Some(answer) = all.join_next().await {
            assert_eq!(answer.unwrap().unwrap().unwrap().0.name, "jane");
        }
        assert_eq!(asked.load(Ordering::Relaxed), 1);

        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (config_file, _silent) =
            (crate::webhook::testing::config(silent.local_addr().unwrap()), silent);
        let settings = TokenWebhookSettings {
            config_file,
            version: ReviewVersion::V1,
            cache_ttl: Duration::ZERO,
        };
        let stuck = TokenWebhook::new(&settings, Names::new(Profile::Kubernetes)).unwrap();
        let stuck = Arc::new(stuck);
        let ask = |token: String, client: &'static str| {
            let stuck = stuck.clone();
            async move { stuck.user(&token, &[], &[], client).await }
        };
        let mut flood = tokio::task::JoinSet::new();
        for nth in 0..200 {
            flood.spawn(ask(format!("t{nth}"), "flood"));
        }
        let mut busy = 0;
        while busy < 200 - 128 {
            let refused = flood.join_next().await.unwrap().unwrap();
            assert!(matches!(refused, Err(ReviewError::Busy)), "{refused:?}");
            busy += 1;
        }
        let other = tokio::time::timeout(Duration::from_millis(50), ask("t".into(), "other")).await;
        assert!(other.is_err(), "it is on its way, not refused");
    }
}
