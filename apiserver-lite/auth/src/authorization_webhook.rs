//! The authorization module `Webhook`: a remote service answers SubjectAccessReviews (`--authorization-webhook-config-file`).

use std::path::PathBuf;
use std::time::Duration;

use proto_api::names::Names;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::authorization::{AccessTarget, Attributes, Authorization, Decision};
use crate::expiring_cache::{ExpiringCache, key};
use crate::webhook::{
    ReviewError, ReviewVersion, ReviewWebhook, WebhookError, null_is_empty, read_status,
};

/// Longest review, in bytes, whose answer is kept, as in Kubernetes.
const CACHED_LEN_MAX: usize = 10_000;

/// The flags `--authorization-webhook-*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorizationWebhookSettings {
    /// Client configuration file of the service.
    pub config_file: PathBuf,
    /// The version of SubjectAccessReview that it understands.
    pub version: ReviewVersion,
    /// How long an answer that allows holds.
    pub authorized_ttl: Duration,
    /// How long another answer holds.
    pub unauthorized_ttl: Duration,
}

/// Authorizes requests by a remote service.
pub struct AuthorizationWebhook {
    webhook: ReviewWebhook,
    settings: AuthorizationWebhookSettings,
    /// Apart, so that a flood of refusals does not push out what is allowed.
    allowed: ExpiringCache<Authorization>,
    refused: ExpiringCache<Authorization>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    allowed: bool,
    denied: bool,
    #[serde(deserialize_with = "null_is_empty")]
    reason: String,
}

/// What a service's answer, a SubjectAccessReview of the version `api_version`, decides.
///
/// # Errors
/// It is no such review.
pub fn read_access_review(body: &[u8], api_version: &str) -> Result<Authorization, ReviewError> {
    Ok(read_status::<Status>(body, api_version, "SubjectAccessReview")?.decide())
}

impl Status {
    fn decide(self) -> Authorization {
        match (self.allowed, self.denied) {
            (true, true) => {
                let why = "webhook subject access review returned both allow and deny response";
                let failed = Authorization::failed(why.to_owned());
                Authorization { decision: Decision::Deny, ..failed }
            }
            (true, false) => Authorization::new(Decision::Allow, self.reason),
            (false, true) => Authorization::new(Decision::Deny, self.reason),
            (false, false) => Authorization::new(Decision::NoOpinion, self.reason),
        }
    }
}

impl AuthorizationWebhook {
    /// Reads the service's client configuration.
    ///
    /// # Errors
    /// The file or a certificate in it cannot be used.
    pub fn new(
        settings: AuthorizationWebhookSettings,
        names: &'static Names,
    ) -> Result<Self, WebhookError> {
        Ok(Self {
            webhook: ReviewWebhook::load(
                &settings.config_file,
                names,
                ("authorization", settings.version, "SubjectAccessReview"),
            )?,
            settings,
            allowed: ExpiringCache::new(),
            refused: ExpiringCache::new(),
        })
    }

    /// The service's decision; no opinion with an error when it cannot be called.
    pub async fn authorize(&self, attributes: &Attributes<'_>) -> Authorization {
        let spec = self.spec(attributes);
        let question = spec.to_string();
        let key = key(question.as_bytes());
        if let Some(known) = self.allowed.get(&key).or_else(|| self.refused.get(&key)) {
            return known;
        }
        let answer = match self.send_review(&attributes.user.name, &spec).await {
            Ok(answer) => answer,
            Err(error) => return Authorization::failed(proto_daemon::exit::chain(&error)),
        };
        let (cache, ttl) = match answer.decision {
            Decision::Allow => (&self.allowed, self.settings.authorized_ttl),
            Decision::Deny | Decision::NoOpinion => (&self.refused, self.settings.unauthorized_ttl),
        };
        if answer.error.is_empty() && question.len() < CACHED_LEN_MAX {
            cache.insert(key, answer.clone(), ttl);
        }
        answer
    }

    async fn send_review(&self, client: &str, spec: &Value) -> Result<Authorization, ReviewError> {
        Ok(self.webhook.review::<Status>(client, spec).await?.decide())
    }

    /// The review's `spec`. v1beta1 calls the groups `group`.
    fn spec(&self, attributes: &Attributes<'_>) -> Value {
        let user = attributes.user;
        let groups = match self.settings.version {
            ReviewVersion::V1Beta1 => "group",
            ReviewVersion::V1 => "groups",
        };
        let mut spec = json!({"user": user.name, groups: user.groups});
        let mut add = |field: &str, value: Value| {
            if let Some(spec) = spec.as_object_mut() {
                spec.insert(field.to_owned(), value);
            }
        };
        if !user.uid.is_empty() {
            add("uid", user.uid.as_str().into());
        }
        if !user.extra.is_empty() {
            add("extra", json!(user.extra));
        }
        match attributes.subject {
            AccessTarget::Path(path) => {
                add("nonResourceAttributes", json!({"path": path, "verb": attributes.verb}));
            }
            AccessTarget::Resource { group, version, resource, subresource, namespace, name } => {
                let fields = [
                    ("namespace", namespace),
                    ("verb", attributes.verb),
                    ("group", group),
                    ("version", version),
                    ("resource", resource),
                    ("subresource", subresource),
                    ("name", name),
                ];
                let set = fields.iter().filter(|(_, value)| !value.is_empty());
                let set: serde_json::Map<String, Value> =
                    set.map(|(field, value)| ((*field).to_owned(), (*value).into())).collect();
                add("resourceAttributes", set.into());
            }
        }
        spec
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use proto_api::names::Profile;

    use super::*;
    use crate::user::User;
    use crate::webhook::testing::serve;

    async fn webhook(
        version: ReviewVersion,
        answer: impl Fn(Value) -> (u16, Value) + Send + Sync + 'static,
    ) -> AuthorizationWebhook {
        let settings = AuthorizationWebhookSettings {
            config_file: serve(answer).await,
            version,
            authorized_ttl: Duration::from_secs(300),
            unauthorized_ttl: Duration::from_secs(30),
        };
        AuthorizationWebhook::new(settings, Names::new(Profile::Kubernetes)).unwrap()
    }

    fn pods<'a>(user: &'a User, namespace: &'a str) -> Attributes<'a> {
        let subject = AccessTarget::Resource {
            group: "",
            version: "v1",
            resource: "pods",
            subresource: "",
            namespace,
            name: "",
        };
        Attributes { user, verb: "list", subject }
    }

    #[tokio::test]
    async fn access_reviews_are_cached_and_decided_by_their_status() {
        let asked = Arc::new(AtomicU32::new(0));
        let count = asked.clone();
        let webhook = webhook(ReviewVersion::V1Beta1, move |review| {
            count.fetch_add(1, Ordering::Relaxed);
            assert_eq!(review["apiVersion"], "authorization.k8s.io/v1beta1");
            assert_eq!(review["spec"]["group"], json!(["dev"]));
            let attributes = json!({"verb": "list", "version": "v1", "resource": "pods"});
            let mut asked = review["spec"]["resourceAttributes"].clone();
            let namespace = asked.as_object_mut().unwrap().remove("namespace").unwrap();
            assert_eq!(asked, attributes);
            (
                200,
                match namespace.as_str().unwrap() {
                    "yes" => json!({"status": {"allowed": true}}),
                    "no" => {
                        json!({"status": {"allowed": false, "denied": true, "reason": "never"}})
                    }
                    "both" => json!({"status": {"allowed": true, "denied": true}}),
                    _ => json!({"status": {"allowed": false, "reason": "who knows"}}),
                },
            )
        })
        .await;
        let user = User { name: "jane".into(), groups: vec!["dev".into()], ..User::default() };
        for _ in 0..2 {
            let decided = async |namespace| webhook.authorize(&pods(&user, namespace)).await;
            assert_eq!(decided("yes").await.decision, Decision::Allow);
            assert_eq!(decided("no").await, Authorization::new(Decision::Deny, "never"));
            assert_eq!(decided("x").await, Authorization::new(Decision::NoOpinion, "who knows"));
        }
        assert_eq!(asked.load(Ordering::Relaxed), 3);
        let both = webhook.authorize(&pods(&user, "both")).await;
        assert!(both.decision == Decision::Deny && !both.error.is_empty());
    }

    #[tokio::test]
    async fn non_resource_paths_are_reviewed_and_webhook_errors_do_not_allow() {
        let webhook = webhook(ReviewVersion::V1, |review| {
            assert_eq!(review["apiVersion"], "authorization.k8s.io/v1");
            assert_eq!(review["spec"]["groups"], json!([]));
            match review["spec"]["nonResourceAttributes"]["path"].as_str() {
                Some("/metrics") => (200, json!({"status": {"allowed": true}})),
                _ => (400, json!({})),
            }
        })
        .await;
        let user = User { name: "jane".into(), ..User::default() };
        let path =
            |path| Attributes { user: &user, verb: "get", subject: AccessTarget::Path(path) };
        assert_eq!(webhook.authorize(&path("/metrics")).await.decision, Decision::Allow);
        let failed = webhook.authorize(&path("/x")).await;
        assert_eq!(failed.decision, Decision::NoOpinion);
        assert!(failed.error.contains("webhook"), "{}", failed.error);
    }
}
