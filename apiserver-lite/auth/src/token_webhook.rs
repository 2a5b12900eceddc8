//! Bearer tokens that a remote service knows (`--authentication-token-webhook-config-file`).

use std::path::PathBuf;
use std::time::Duration;

use proto_api::names::Names;
use serde::Deserialize;
use serde_json::json;

use crate::expiring_cache::{ExpiringCache, key};
use crate::user::User;
use crate::webhook::{ReviewVersion, Webhook, WebhookError};

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

/// Asks the service who a token's user is.
pub struct TokenWebhook {
    webhook: Webhook,
    api_version: String,
    cache_ttl: Duration,
    answers: ExpiringCache<Option<Known>>,
}

/// The user of a token, and those of the audiences asked for that the service says the token is meant for.
type Known = (User, Vec<String>);

#[derive(Default, Deserialize)]
#[serde(default)]
struct Review {
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    authenticated: bool,
    user: ReviewedUser,
    audiences: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ReviewedUser {
    username: String,
    uid: String,
    groups: Vec<String>,
    extra: std::collections::BTreeMap<String, Vec<String>>,
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
            webhook: Webhook::load(&settings.config_file, names)?,
            api_version: format!("{}/{}", names.group("authentication"), settings.version.name()),
            cache_ttl: settings.cache_ttl,
            answers: ExpiringCache::new(),
        })
    }

    /// The user of a token, and those of `audiences` that it is meant for; `None` for a token that the service does not know.
    ///
    /// # Errors
    /// The service cannot be asked.
    pub async fn user(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<Option<Known>, WebhookError> {
        let question = json!({"token": token, "audiences": audiences});
        let key = key(question.to_string().as_bytes());
        if let Some(known) = self.answers.get(&key) {
            return Ok(known);
        }
        let review = json!({
            "apiVersion": self.api_version,
            "kind": "TokenReview",
            "metadata": {"creationTimestamp": null},
            "spec": question,
            "status": {"user": {}},
        });
        let answer = self.webhook.post(&review).await?;
        let Review { status } = serde_json::from_value(answer).map_err(WebhookError::Answer)?;
        let known = status.user_for(audiences);
        self.answers.insert(key, known.clone(), self.cache_ttl);
        Ok(known)
    }
}

impl Status {
    /// A service that knows nothing of audiences vouches for all of them.
    fn user_for(self, audiences: &[String]) -> Option<Known> {
        let meant: Vec<String> = match self.audiences.is_empty() {
            true => audiences.to_vec(),
            false => audiences.iter().filter(|one| self.audiences.contains(one)).cloned().collect(),
        };
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
        answer: impl Fn(Value) -> (u16, Value) + Send + 'static,
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
    async fn a_known_token_has_its_user_and_is_asked_for_once() {
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
            let (user, meant) =
                webhook.user("good", &audiences(&["api", "other"])).await.unwrap().unwrap();
            assert_eq!((user.name.as_str(), user.uid.as_str()), ("jane", "7"));
            assert_eq!(user.groups, ["dev", "system:authenticated"]);
            assert_eq!(user.extra["k"], ["v"]);
            assert_eq!(meant, ["api"]);
            assert_eq!(webhook.user("bad", &audiences(&["api"])).await.unwrap(), None);
        }
        assert_eq!(asked.load(Ordering::Relaxed), 2);
        assert_eq!(webhook.user("good", &audiences(&["other"])).await.unwrap(), None);
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
                2 => (500, json!({})),
                _ => (200, json!({"status": {"authenticated": true, "user": {"username": "a"}}})),
            }
        })
        .await;
        assert!(matches!(webhook.user("t", &[]).await, Err(WebhookError::Call(_))));
        assert!(matches!(webhook.user("t", &[]).await, Err(WebhookError::Answer(_))));
        // The third answer is an error that may pass: it is asked again.
        assert_eq!(webhook.user("t", &[]).await.unwrap().unwrap().0.name, "a");
    }
}
