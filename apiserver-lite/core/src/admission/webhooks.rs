//! The steps MutatingAdmissionWebhook and ValidatingAdmissionWebhook: which webhooks are called for a request, what they receive, and what becomes of
//! their answers. Their configurations are followed by `crate::webhooks`.

mod match_conditions;
mod options;
mod review_call;
/// The same kind in its other versions, which webhooks with `matchPolicy: Equivalent` may name.
fn equivalents(call: &RequestContext<'_>) -> Vec<Arc<Kind>> {
    let (server, kind) = (call.server, &call.requested_version);
    let subresource = call.request.subresource.as_str();
    if kind.custom().is_none() {
        return versions::other_versions(&server.engine, server.names, kind, subresource);
    }
    let is_other = |other: &Arc<Kind>| {
        other.group == kind.group
            && other.plural() == kind.plural()
            && other.version() != kind.version()
            && (subresource.is_empty() || other.verbs(subresource).is_some())
    };
    server.definitions.served_kinds().into_iter().filter(is_other).collect()
}

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use apiserver_admission_webhooks::{
    AdmissionAttributes, FailurePolicy, MatchedVersion, Mismatch, Objects, Phase, Reinvocation,
    ResourceRef, WebhookOperation, call_failure,
};
use apiserver_schema::{Kind, Object};
use futures_util::future::join_all;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::Instant;

use self::review_call::AskError;
use crate::config::AdmissionPlugin;
use crate::context::RequestContext;
use crate::conversion;
use crate::options::{DeleteOptions, Effects};
use crate::registry;
use crate::request::Verb;
use crate::request_notes::RequestNotes;
use crate::status::{ApiError, StatusTarget};
use crate::versions;
use crate::webhooks::{OrderedWebhooks, Remote};

/// Time for all webhooks of a request, as for a request in Kubernetes: of all its attempts to write, and of all objects of a deleted collection.
const REQUEST_TIME: Duration = Duration::from_secs(60);

/// The webhooks that may be called for one request.
pub struct WebhookReview<'a> {
    call: &'a RequestContext<'a>,
    notes: &'a RequestNotes,
    ordered: Arc<OrderedWebhooks>,
    operation: WebhookOperation,
    /// Of the objects as the client sees them.
    kind: Arc<Kind>,
    /// The kinds of the same resource in other versions.
    equivalents: Vec<Arc<Kind>>,
    old: Option<&'a Object>,
    effects: Effects,
    options: Option<Box<RawValue>>,
    reinvocation: Reinvocation,
    deadline: Instant,
    /// Whether the server has made up the name of a new object: mutating webhooks see none then.
    pub has_generated_name: bool,
}

/// What a request does to which object.
pub struct Reviewed<'a> {
    /// What it does.
    pub operation: WebhookOperation,
    /// The kind of the objects of the request.
    pub kind: &'a Arc<Kind>,
    /// The stored version of the object.
    pub old: Option<&'a Object>,
    /// Whether it is a dry run.
    pub effects: Effects,
    /// The options of a deletion.
    pub deletion: Option<&'a DeleteOptions>,
}

/// Mutating webhooks are called in one round, and some of them in a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// All that apply.
    First,
    /// Those that are to be called again.
    Second,
}

impl<'a> WebhookReview<'a> {
    /// The webhooks for a request; `None` if there are none.
    ///
    /// # Errors
    /// 500 if the configurations cannot be read.
    pub fn begin(
        call: &'a RequestContext<'a>,
        reviewed: Reviewed<'a>,
    ) -> Result<Option<Self>, ApiError> {
        let server = call.server;
        let Reviewed { operation, kind, old, effects, deletion } = reviewed;
        // A webhook that cannot be called could otherwise not be removed.
        let is_configuration = kind.short_group == "admissionregistration";
        let Some(notes) = call.notes.filter(|_| !is_configuration) else { return Ok(None) };
        let current = server.webhooks.current().map_err(ApiError::internal)?;
        let Some(ordered) = current else { return Ok(None) };
        Ok(Some(Self {
            call,
            notes,
            ordered,
            operation,
            kind: kind.clone(),
            equivalents: equivalents(call),
            old,
            effects,
            options: options::document(call, operation, effects, deletion),
            reinvocation: Reinvocation::default(),
            deadline: notes.webhooks_deadline(Instant::now() + REQUEST_TIME),
            has_generated_name: false,
        }))
    }

    /// Calls the mutating webhooks one after the other, each with the object that the one before it returned. Returns whether the object has changed.
    ///
    /// # Errors
    /// The denial of the first that denies, or the failure of the first that cannot be called and has the failure policy Fail.
    pub async fn mutate(
        &mut self,
        mut object: Option<&mut Object>,
        round: Round,
    ) -> Result<bool, ApiError> {
        let admission = &self.call.server.config.admission;
        if !admission.runs(AdmissionPlugin::MutatingAdmissionWebhook) {
            return Ok(false);
        }
        let ordered = self.ordered.clone();
        let mut changed = false;
        for (at, remote) in ordered.mutating.iter().enumerate() {
            let Phase::Mutating(policy) = remote.webhook.phase else { continue };
            let Some(version) = self.applies(remote, object.as_deref())? else { continue };
            if round == Round::Second && !self.reinvocation.is_due(at) {
                continue;
            }
            if !self.meets_conditions(remote, version, object.as_deref()).await? {
                continue;
            }
            let asked = self.ask_mutating(remote, version, object.as_deref(), (round, at)).await;
            let mutated = matches!(asked, Ok(Some(_)));
            self.note_mutation(remote, mutated, (round, at));
            // One that failed was called as well.
            self.reinvocation.called(at, policy, mutated);
            let patched = match asked {
                Ok(patched) => patched,
                Err(error) => {
                    self.settle(remote, error, (round, at))?;
                    continue;
                }
            };
            if let (Some(patched), Some(object)) = (patched, object.as_deref_mut()) {
                *object = patched;
                changed = true;
            }
        }
        Ok(changed)
    }

    /// Records that built-in steps changed the object between the rounds.
    pub fn built_in_steps_changed(&mut self) {
        self.reinvocation.changed();
    }

    /// Calls the validating webhooks concurrently.
    ///
    /// # Errors
    /// That of the first one, in their order, that denies, or cannot be called and has the failure policy Fail.
    pub async fn validate(&self, object: Option<&Object>) -> Result<(), ApiError> {
        let admission = &self.call.server.config.admission;
        if !admission.runs(AdmissionPlugin::ValidatingAdmissionWebhook) {
            return Ok(());
        }
        let mut calls = Vec::new();
        for (at, remote) in self.ordered.validating.iter().enumerate() {
            let Some(version) = self.applies(remote, object)? else { continue };
            calls.push(async move {
                if !self.meets_conditions(remote, version, object).await? {
                    return Ok(());
                }
                match self.ask_validating(remote, version, object).await {
                    Ok(()) => Ok(()),
                    Err(error) => self.settle(remote, error, (Round::First, at)),
                }
            });
        }
        join_all(calls).await.into_iter().collect()
    }

    /// The version of the resource in which a webhook is called; `None` if it is not.
    fn applies(
        &self,
        remote: &Remote,
        object: Option<&Object>,
    ) -> Result<Option<MatchedVersion>, ApiError> {
        let server = self.call.server;
        let equivalents: Vec<_> = self.equivalents.iter().map(|kind| resource_of(kind)).collect();
        let namespace = self.namespace(object);
        let attributes = AdmissionAttributes {
            operation: self.operation,
            resource: self.requested_resource(),
            subresource: &self.call.request.subresource,
            namespace,
            equivalents: &equivalents,
        };
        let labels = || {
            let found = server.find_in("", "namespaces", "", namespace);
            found.map(|found| found.object().labels())
        };
        let objects = Objects { new: object, old: self.old };
        remote.webhook.applies(&attributes, objects, labels).map_err(|why| match why {
            // No object of the request is meant.
            Mismatch::NoNamespace => {
                let about = StatusTarget { kind: "namespaces", name: namespace, group: "" };
                ApiError::denied(ApiError::not_found(about).status().clone())
            }
            Mismatch::Selector(error) => ApiError::internal(error),
        })
    }

    fn requested_resource(&self) -> ResourceRef<'_> {
        let request = self.call.request;
        ResourceRef {
            group: &request.group,
            version: &request.version,
            resource: &request.resource,
        }
    }

    /// The namespace of the request; that of a Namespace is itself.
    fn namespace<'b>(&'b self, object: Option<&'b Object>) -> &'b str {
        let request = self.call.request;
        let is_namespace = request.group.is_empty() && request.resource == "namespaces";
        match (is_namespace, object) {
            (true, Some(object)) if request.name.is_empty() => object.name(),
            (true, _) => &request.name,
            (false, _) => &request.namespace,
        }
    }

    /// The name of the object. As in Kubernetes, that of an object of a deleted collection is left out.
    fn name<'b>(&'b self, object: Option<&'b Object>) -> &'b str {
        let request = self.call.request;
        match object {
            _ if request.verb == Verb::DeleteCollection => "",
            Some(object) if request.name.is_empty() => object.name(),
            _ => &request.name,
        }
    }

    /// The kind in which objects are sent for this version of the resource. Objects of subresources have one kind for all.
    fn kind_of(&self, version: MatchedVersion) -> &Arc<Kind> {
        match version {
            MatchedVersion::Equivalent(at)
                if Arc::ptr_eq(&self.kind, &self.call.requested_version) =>
            {
                self.equivalents.get(at).unwrap_or(&self.kind)
            }
            _ => &self.kind,
        }
    }

    /// `object` after a patch, with defaults; `None` if the patch changes nothing.
    async fn patched(
        &self,
        object: &Object,
        kind: &Arc<Kind>,
        patch: &[u8],
    ) -> Result<Option<Object>, ApiError> {
        let (asker, engine) = (self.call.asker(), &self.call.server.engine);
        let shown = conversion::convert(asker, object, kind).await?;
        let patched = engine.patch_written(&shown, patch);
        let patched = patched.map_err(ApiError::internal)?.map_err(ApiError::internal)?;
        let mut patched = patched.object;
        if patched == shown {
            return Ok(None);
        }
        engine.default(&mut patched);
        registry::default(&mut patched);
        Ok(Some(conversion::convert(asker, &patched, &object.kind).await?))
    }

    /// What becomes of the request after an error: `Ok` if it goes on without the webhook.
    fn settle(
        &self,
        remote: &Remote,
        error: AskError,
        (round, at): (Round, usize),
    ) -> Result<(), ApiError> {
        let webhook = &remote.webhook;
        let reason = match error {
            AskError::Call { reason, .. } => reason,
            AskError::Denied(status) => return Err(ApiError::denied(*status)),
            AskError::Refused(error) => return Err(error),
        };
        let (configuration, name) = (&webhook.configuration, &webhook.name);
        if webhook.failure_policy == FailurePolicy::Fail {
            tracing::warn!(
                configuration,
                name,
                reason,
                "cannot call an admission webhook; the request is rejected (failurePolicy Fail)"
            );
            return Err(ApiError::internal(call_failure(name, &reason)));
        }
        tracing::warn!(
            configuration,
            name,
            reason,
            "cannot call an admission webhook; the request is admitted (failurePolicy Ignore)"
        );
        self.call.server.webhooks.metrics.failed_open(self.counted(remote));
        let subject = match webhook.phase {
            Phase::Mutating(_) => "failed-open.mutation.webhook.admission",
            Phase::Validating => "failed-open.validation.webhook.admission",
        };
        self.annotate(subject, (round, at), name.clone());
        if Instant::now() >= self.deadline {
            return Err(too_late());
        }
        Ok(())
    }

    fn note_mutation(&self, remote: &Remote, mutated: bool, position: (Round, usize)) {
        let webhook = &remote.webhook;
        let note = json!({
            "configuration": webhook.configuration,
            "webhook": webhook.name,
            "mutated": mutated,
        });
        self.annotate("mutation.webhook.admission", position, note.to_string());
    }

    /// Records what a webhook patched, also where that changed nothing: at the audit levels that record the object of the request, of which it tells.
    fn note_patch(&self, remote: &Remote, patch: &[u8], position: (Round, usize)) {
        if !self.call.audit.records_requests() {
            return;
        }
        let Ok(patch) = serde_json::from_slice::<Vec<BTreeMap<String, Value>>>(patch) else {
            return;
        };
        let webhook = &remote.webhook;
        let note = json!({
            "configuration": webhook.configuration,
            "webhook": webhook.name,
            "patch": patch,
            "patchType": "JSONPatch",
        });
        self.annotate("patch.webhook.admission", position, note.to_string());
    }

    fn annotate(&self, subject: &str, (round, at): (Round, usize), value: String) {
        let round = if round == Round::First { 0 } else { 1 };
        let group = self.call.server.names.group(subject);
        self.notes.annotate(format!("{group}/round_{round}_index_{at}"), value);
    }
}

fn resource_of(kind: &Kind) -> ResourceRef<'_> {
    ResourceRef { group: &kind.group, version: kind.version(), resource: kind.plural() }
}

/// 504 of a request whose webhooks have taken all its time.
fn too_late() -> ApiError {
    ApiError::new(504, "Timeout", "Timeout: request did not complete within requested timeout")
}
