//! One question to one webhook, and its answer.

use std::sync::Arc;

use apiserver_admission_webhooks::{
    AdmissionReviewVersion, Answer, ExpectedReview, FailurePolicy, KindRef, MatchedVersion, Phase,
    Review, UserInfo, changes_nothing_text, denial, dry_run_refusal, read_answer,
};
use apiserver_schema::{Kind, Object};
use bytes::Bytes;
use proto_api::meta::v1::Status;
use serde_json::value::RawValue;
use tokio::time::Instant;
use uuid::Uuid;

use super::{Round, WebhookReview, resource_of, too_late};
use crate::conversion;
use crate::options::Effects;
use crate::status::ApiError;
use crate::webhook_call::{self, NoAnswer};
use crate::webhooks::{AskedWebhook, RejectionCause, Remote};

/// A webhook does not let a request pass.
pub enum AskError {
    /// The webhook cannot be called.
    Call {
        /// Why, for the client.
        reason: String,
        /// Status code of the failure in metrics.
        code: i32,
    },
    /// It denies the request.
    Denied(Box<Status>),
    /// The request is refused whatever the failure policy says.
    Refused(ApiError),
}

impl From<ApiError> for AskError {
    fn from(error: ApiError) -> Self {
        Self::Refused(error)
    }
}

impl WebhookReview<'_> {
    /// Calls a mutating webhook, the one at this place in this round. Returns the changed object, if it is changed.
    pub(super) async fn ask_mutating(
        &self,
        remote: &Remote,
        version: MatchedVersion,
        object: Option<&Object>,
        position: (Round, usize),
    ) -> Result<Option<Object>, AskError> {
        let began = Instant::now();
        let patched = async {
            let answer = self.send_review(remote, version, object).await?;
            let Some(patch) = answer.patch else { return Ok(None) };
            let Some(object) = object else {
                let text = changes_nothing_text(&remote.webhook.name);
                return Err(ApiError::internal(text).into());
            };
            let patched = self.patched(object, self.kind_of(version), &patch).await?;
            self.note_patch(remote, &patch, position);
            Ok(patched)
        }
        .await;
        self.count(remote, began, patched.as_ref().err());
        patched
    }

    /// Calls a validating webhook.
    pub(super) async fn ask_validating(
        &self,
        remote: &Remote,
        version: MatchedVersion,
        object: Option<&Object>,
    ) -> Result<(), AskError> {
        let began = Instant::now();
        let asked = self.send_review(remote, version, object).await;
        self.count(remote, began, asked.as_ref().err());
        asked.map(drop)
    }

    /// The labels of a webhook's metrics.
    pub(super) fn counted<'b>(&self, remote: &'b Remote) -> AskedWebhook<'b> {
        AskedWebhook {
            name: &remote.webhook.name,
            phase: match remote.webhook.phase {
                Phase::Mutating(_) => "admit",
                Phase::Validating => "validating",
            },
            operation: self.operation.name(),
        }
    }

    fn count(&self, remote: &Remote, began: Instant, error: Option<&AskError>) {
        let fails = remote.webhook.failure_policy == FailurePolicy::Fail;
        let (code, refused) = match error {
            None => (200, None),
            Some(AskError::Call { code, .. }) => (*code, fails.then_some(RejectionCause::Call)),
            Some(AskError::Denied(status)) => (status.code, Some(RejectionCause::Denied)),
            Some(AskError::Refused(_)) => (0, Some(RejectionCause::Server)),
        };
        let metrics = &self.call.server.webhooks.metrics;
        metrics.count_call(self.counted(remote), began.elapsed(), code, refused);
    }

    async fn send_review(
        &self,
        remote: &Remote,
        version: MatchedVersion,
        object: Option<&Object>,
    ) -> Result<Answer, AskError> {
        let webhook = &remote.webhook;
        if self.effects == Effects::DryRun && !webhook.allows_dry_run {
            return Err(ApiError::bad_request(dry_run_refusal(&webhook.name)).into());
        }
        let Some(review_version) = webhook.version else {
            let known = "webhook does not accept known AdmissionReview versions (v1, v1beta1)";
            let reason = format!("could not create admission objects: {known}");
            return Err(AskError::Call { reason, code: 400 });
        };
        let time = webhook.timeout.min(self.deadline.saturating_duration_since(Instant::now()));
        if time.is_zero() {
            return Err(too_late().into());
        }
        let uid = Uuid::new_v4().to_string();
        let review = self.review(&uid, (version, review_version), object).await?;
        let answer = webhook_call::ask(self.call.asker(), remote, review, time).await;
        let body = answer.map_err(|error| match error {
            NoAnswer::Failed { reason, code } => {
                AskError::Call { reason: format!("failed to call webhook: {reason}"), code }
            }
            NoAnswer::TooMany(error) => AskError::Refused(error),
        })?;
        let asked = ExpectedReview { uid: &uid, version: review_version, phase: webhook.phase };
        let answer = read_answer(&body, asked, self.call.server.names)
            .map_err(|error| AskError::Call { reason: error.reason(), code: 503 })?;
        for (key, value) in &answer.annotations {
            self.notes.annotate(format!("{}/{key}", webhook.name), value.clone());
        }
        answer.warnings.iter().for_each(|text| self.notes.warn(text.clone()));
        match answer.allowed {
            true => Ok(answer),
            false => Err(AskError::Denied(Box::new(denial(&webhook.name, answer.status)))),
        }
    }

    /// The AdmissionReview in JSON.
    async fn review(
        &self,
        uid: &str,
        (version, review_version): (MatchedVersion, AdmissionReviewVersion),
        object: Option<&Object>,
    ) -> Result<Bytes, ApiError> {
        let kind = self.kind_of(version);
        let (new, old) = (self.document(object, kind).await?, self.document(self.old, kind).await?);
        let review = Review {
            uid,
            object: new.as_deref(),
            old_object: old.as_deref(),
            ..self.described(version, object)
        };
        let written = review.write(self.call.server.names, review_version);
        written.map(Bytes::from).map_err(ApiError::internal)
    }

    /// What a webhook is sent of the request besides its objects, for this version of the resource.
    pub(super) fn described<'b>(
        &'b self,
        version: MatchedVersion,
        object: Option<&'b Object>,
    ) -> Review<'b> {
        let resource = match version {
            MatchedVersion::Requested => self.requested_resource(),
            MatchedVersion::Equivalent(at) => {
                let found = self.equivalents.get(at).map(|kind| resource_of(kind));
                found.unwrap_or_else(|| self.requested_resource())
            }
        };
        let user = self.call.user;
        Review {
            uid: "",
            kind: reference(self.kind_of(version)),
            resource,
            request_kind: reference(&self.kind),
            request_resource: self.requested_resource(),
            subresource: &self.call.request.subresource,
            name: self.name(object),
            namespace: self.namespace(object),
            operation: self.operation,
            user: UserInfo {
                username: &user.name,
                uid: &user.uid,
                groups: &user.groups,
                extra: &user.extra,
            },
            object: None,
            old_object: None,
            dry_run: self.effects == Effects::DryRun,
            options: self.options.as_deref(),
        }
    }

    async fn document(
        &self,
        object: Option<&Object>,
        kind: &Arc<Kind>,
    ) -> Result<Option<Box<RawValue>>, ApiError> {
        let Some(object) = object else { return Ok(None) };
        let shown = conversion::convert(self.call.asker(), object, kind).await?;
        let json = self.call.server.engine.encode_json(&shown);
        let text = String::from_utf8(json).map_err(ApiError::internal)?;
        RawValue::from_string(text).map(Some).map_err(ApiError::internal)
    }
}

fn reference(kind: &Kind) -> KindRef<'_> {
    KindRef { group: &kind.group, version: kind.version(), kind: kind.kind() }
}
