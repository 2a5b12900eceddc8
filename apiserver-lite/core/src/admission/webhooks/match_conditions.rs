//! Match conditions of webhooks: whether a webhook that applies to a request is called about it.

use std::sync::Arc;

use apiserver_admission_webhooks::{
    AccessAnswer, AccessInput, AccessQuestion, AccessResource, AccessSubject, ConditionInput,
    FailurePolicy, MatchResult, MatchedVersion,
};
use apiserver_auth::{AccessTarget, Attributes, Authorization, Decision, User};
use apiserver_schema::{Kind, Object, Value};

use tokio::time::timeout_at;

use super::WebhookReview;
use crate::conversion;
use crate::status::{ApiError, StatusTarget};
use crate::webhooks::Remote;

impl WebhookReview<'_> {
    /// Whether all conditions of the webhook hold; they see what the webhook would be sent. Of those that fail the failure policy says what becomes of the
    /// request: with Ignore it goes on without the webhook.
    ///
    /// # Errors
    /// 403 where conditions fail and the failure policy is Fail, as in Kubernetes; an object cannot be converted.
    pub(super) async fn meets_conditions(
        &self,
        remote: &Remote,
        version: MatchedVersion,
        object: Option<&Object>,
    ) -> Result<bool, ApiError> {
        let webhook = &remote.webhook;
        let Some(conditions) = webhook.conditions() else { return Ok(true) };
        let kind = self.kind_of(version);
        let new = self.tree(object, kind).await?;
        let old = self.tree(self.old, kind).await?;
        let request = self.described(version, object).request_tree().map_err(ApiError::internal)?;
        let mut access = self.access();
        // Each question has a price of the conditions' budget, so that there are few.
        let verdict = loop {
            let input = ConditionInput {
                object: &new,
                old_object: &old,
                request: &request,
                access: &access,
            };
            match conditions.evaluate(input) {
                MatchResult::Asks(question) => {
                    let answer = self.answer(&question).await;
                    access.answers.insert(question, answer);
                }
                verdict => break verdict,
            }
        };
        let (configuration, name) = (&webhook.configuration, &webhook.name);
        let metrics = &self.call.server.webhooks.metrics;
        let reason = match verdict {
            MatchResult::All => return Ok(true),
            MatchResult::Excluded(condition) => {
                tracing::debug!(
                    configuration,
                    name,
                    condition,
                    "a match condition excludes the request"
                );
                metrics.excluded(self.counted(remote));
                return Ok(false);
            }
            MatchResult::Asks(question) => format!("no answer to {question:?}"),
            MatchResult::Failed(reason) => reason,
        };
        metrics.condition_failed(self.counted(remote));
        if webhook.failure_policy == FailurePolicy::Ignore {
            tracing::warn!(
                configuration,
                name,
                reason,
                "a match condition of a webhook fails; the webhook is not called"
            );
            return Ok(false);
        }
        tracing::warn!(
            configuration,
            name,
            reason,
            "a match condition of a webhook fails; the request is refused"
        );
        let request = self.call.request;
        let name = self.name(object);
        let about = StatusTarget { kind: &request.resource, name, group: &request.group };
        Err(ApiError::forbidden(about, &reason))
    }

    /// What `authorizer` knows before it is asked.
    fn access(&self) -> AccessInput {
        let request = self.call.request;
        let requested = AccessResource {
            group: request.group.clone(),
            resource: request.resource.clone(),
            subresource: request.subresource.clone(),
            namespace: request.namespace.clone(),
            name: request.name.clone(),
        };
        AccessInput { requested, ..AccessInput::default() }
    }

    /// What the authorizers of the server say of a user.
    async fn answer(&self, question: &AccessQuestion) -> AccessAnswer {
        let account = question.service_account.as_ref();
        let account = account.map(|(namespace, name)| User::service_account(namespace, name));
        let account = account.map(User::authenticated);
        let subject = match &question.subject {
            AccessSubject::Path(path) => AccessTarget::Path(path),
            AccessSubject::Resource(of) => AccessTarget::Resource {
                group: &of.group,
                version: "*",
                resource: &of.resource,
                subresource: &of.subresource,
                namespace: &of.namespace,
                name: &of.name,
            },
        };
        let user = account.as_ref().unwrap_or(self.call.user);
        let attributes = Attributes { user, verb: &question.verb, subject };
        let authorized = self.call.server.authorizer.authorize(&attributes);
        let authorized = timeout_at(self.deadline, authorized).await.unwrap_or_else(|_| {
            Authorization::failed("the request's time for webhooks is used up".to_owned())
        });
        AccessAnswer {
            allowed: authorized.decision == Decision::Allow,
            reason: authorized.reason,
            error: authorized.error,
        }
    }

    /// The object as clients read it in that version; null for none.
    async fn tree(&self, object: Option<&Object>, kind: &Arc<Kind>) -> Result<Value, ApiError> {
        let Some(object) = object else { return Ok(Value::Null) };
        let shown = conversion::convert(self.call.asker(), object, kind).await?;
        let mut tree = self.call.server.engine.written_document(&shown);
        tree.parse_field_sets();
        Ok(tree)
    }
}
