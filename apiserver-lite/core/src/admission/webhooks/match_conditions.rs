//! Match conditions of webhooks: whether a webhook that applies to a request is called about it.

use std::sync::Arc;

use apiserver_admission_webhooks::{ConditionInput, FailurePolicy, Verdict, Version};
use apiserver_schema::{Kind, Object, Value};

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
        version: Version,
        object: Option<&Object>,
    ) -> Result<bool, ApiError> {
        let webhook = &remote.webhook;
        let Some(conditions) = webhook.conditions() else { return Ok(true) };
        let kind = self.kind_of(version);
        let new = self.tree(object, kind).await?;
        let old = self.tree(self.old, kind).await?;
        let request = self.described(version, object).request_tree().map_err(ApiError::internal)?;
        let input = ConditionInput { object: &new, old_object: &old, request: &request };
        let (configuration, name) = (&webhook.configuration, &webhook.name);
        let metrics = &self.call.server.webhooks.metrics;
        let reason = match conditions.evaluate(input) {
            Verdict::All => return Ok(true),
            Verdict::Excluded(condition) => {
                tracing::debug!(
                    configuration,
                    name,
                    condition,
                    "a match condition excludes the request"
                );
                metrics.excluded(self.counted(remote));
                return Ok(false);
            }
            Verdict::Failed(reason) => reason,
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

    /// The object as clients read it in that version; null for none.
    async fn tree(&self, object: Option<&Object>, kind: &Arc<Kind>) -> Result<Value, ApiError> {
        let Some(object) = object else { return Ok(Value::Null) };
        let shown = conversion::convert(self.call.asker(), object, kind).await?;
        Ok(self.call.server.engine.written_document(&shown))
    }
}
