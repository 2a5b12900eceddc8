//! Admission: rules that need other objects. The steps run in order, after defaulting and before validation, and may change the
//! object. Webhooks of the cluster are called between the steps that complete an object and those that only check it, and, about what is to be stored, after
//! validation. Fields whose feature gate is off are dropped before the steps that only check.

mod certificates;
mod default_classes;
mod escalation_check;
mod ingresses;
mod limit_ranges;
mod mountable_secrets;
mod namespaces;
mod node_taint;
mod nodes;
mod pod_node_selector;
mod pod_security;
mod pods;
mod priority_classes;
mod runtime_class;
mod service_accounts;
mod storage;
mod webhooks;

use apiserver_schema::update::Subresource;
use apiserver_schema::{DroppedField, Object};

use self::webhooks::Round;
use crate::config::AdmissionPlugin;
use crate::context::RequestContext;
use crate::options::{DeleteOptions, Effects};
use crate::status::ApiError;

pub use apiserver_admission_webhooks::WebhookOperation;
pub use namespaces::namespace_of;
pub use webhooks::{Reviewed, WebhookReview};

/// The operation to be admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Create,
    /// It is replaced or patched.
    Update,
    UpdateSubresource,
}

/// Runs all steps on `object`. `old` is the stored version of an update. Gives warnings for the client. After webhooks have changed the object, `settle`
/// sets what they may not decide.
///
/// # Errors
/// The 403, 404 or 422 of the first step that refuses, and what webhooks say.
pub async fn admit(
    call: &RequestContext<'_>,
    operation: Operation,
    object: &mut Object,
    old: Option<&Object>,
    webhooks: Option<(&mut WebhookReview<'_>, &RestoreFields<'_>)>,
) -> Result<Vec<String>, ApiError> {
    complete(call, operation, object, old).await?;
    if let Some((review, settle)) = webhooks {
        // Boxed, so that the futures of requests without webhooks stay small.
        Box::pin(ask_mutating(call, (operation, old), object, review, settle)).await?;
    }
    // What is checked is what will be stored. Of an update only that is left here which webhooks have added to what its request may change.
    let dropped = call.server.engine.drop_disabled(object, old);
    let is_written = |field: &&DroppedField| {
        operation == Operation::UpdateSubresource || field.is_part_of(Subresource::Main)
    };
    warn_of_dropped(call, dropped.iter().filter(is_written));
    check(call, operation, object, old).await
}

/// Warns the client of fields that are not stored because their feature gate is off.
pub fn warn_of_dropped<'a>(
    call: &RequestContext<'_>,
    dropped: impl IntoIterator<Item = &'a DroppedField>,
) {
    let Some(notes) = call.notes else { return };
    dropped.into_iter().for_each(|field| notes.warn(field.warning()));
}

/// Sets what webhooks may not decide in an object that they changed.
pub type RestoreFields<'a> = dyn Fn(&mut Object) -> Result<(), ApiError> + Send + Sync + 'a;

/// Calls the mutating webhooks. When they change the object, the built-in steps run again, and then once more the webhooks that want to see later changes.
async fn ask_mutating(
    call: &RequestContext<'_>,
    (operation, old): (Operation, Option<&Object>),
    object: &mut Object,
    review: &mut WebhookReview<'_>,
    settle: &RestoreFields<'_>,
) -> Result<(), ApiError> {
    for round in [Round::First, Round::Second] {
        let withheld = Withheld::take(operation, object, review.has_generated_name);
        let changed = review.mutate(Some(&mut *object), round).await?;
        withheld.put_back(object);
        if !changed {
            return Ok(());
        }
        settle(object)?;
        let before = object.clone();
        complete(call, operation, object, old).await?;
        if *object != before {
            review.built_in_steps_changed();
        }
    }
    Ok(())
}

/// What a new object gets only after mutating webhooks in Kubernetes, and what they do not see therefore.
struct Withheld {
    fields: Vec<(&'static str, apiserver_schema::Value)>,
    generated_name: String,
}

impl Withheld {
    fn take(operation: Operation, object: &mut Object, has_generated_name: bool) -> Self {
        let mut withheld = Self { fields: Vec::new(), generated_name: String::new() };
        if operation != Operation::Create {
            return withheld;
        }
        for field in ["uid", "creationTimestamp"] {
            let value = object.metadata_mut().remove(field);
            withheld.fields.extend(value.map(|value| (field, value)));
        }
        if has_generated_name {
            object.name().clone_into(&mut withheld.generated_name);
            object.set_meta_str("name", "");
        }
        withheld
    }

    fn put_back(self, object: &mut Object) {
        for (field, value) in self.fields {
            object.metadata_mut().insert(field, value);
        }
        if object.name().is_empty() && !self.generated_name.is_empty() {
            object.set_meta_str("name", &self.generated_name);
        }
    }
}

/// Runs node restriction and the webhooks for an object that is not stored: of a subresource, or a review.
///
/// # Errors
/// 403, and what webhooks say.
pub async fn admit_unstored(
    call: &RequestContext<'_>,
    operation: WebhookOperation,
    object: &mut Object,
    old: Option<&Object>,
    effects: Effects,
) -> Result<(), ApiError> {
    nodes::admit_unstored(call, operation, object)?;
    let kind = object.kind.clone();
    let reviewed = Reviewed { operation, kind: &kind, old, effects, deletion: None };
    let Some(mut review) = WebhookReview::begin(call, reviewed)? else { return Ok(()) };
    let ask = async {
        if review.mutate(Some(&mut *object), Round::First).await? {
            review.mutate(Some(&mut *object), Round::Second).await?;
        }
        review.validate(Some(&*object)).await
    };
    Box::pin(ask).await
}

/// Calls the webhooks for the deletion of `old`.
///
/// # Errors
/// What webhooks say.
pub async fn ask_about_deletion(
    call: &RequestContext<'_>,
    old: &Object,
    options: &DeleteOptions,
) -> Result<(), ApiError> {
    let reviewed = Reviewed {
        operation: WebhookOperation::Delete,
        kind: &call.requested_version,
        old: Some(old),
        effects: options.effects,
        deletion: Some(options),
    };
    let Some(mut review) = WebhookReview::begin(call, reviewed)? else { return Ok(()) };
    let ask = async {
        review.mutate(None, Round::First).await?;
        review.validate(None).await
    };
    Box::pin(ask).await
}

/// The steps that may change the object, as far as they are Kubernetes' mutating plugins.
async fn complete(
    call: &RequestContext<'_>,
    operation: Operation,
    object: &mut Object,
    old: Option<&Object>,
) -> Result<(), ApiError> {
    let runs = |plugin| call.server.config.admission.runs(plugin);
    nodes::admit(call, object, old)?;
    if operation == Operation::Create {
        namespaces::admit_create(call, object)?;
        storage::admit_create(call, object);
        if object.kind.is("networking", "Ingress") && runs(AdmissionPlugin::DefaultIngressClass) {
            ingresses::admit_create(call, object)?;
        }
        if object.kind.is("", "Node") && runs(AdmissionPlugin::TaintNodesByCondition) {
            node_taint::admit_create(call, object);
        }
    }
    if object.kind.is("", "Pod") {
        admit_pod(call, operation, object, old).await?;
    }
    // Kubernetes sets these defaults before all others, which neither read nor set requests and limits, and refuses by limits only
    // after them.
    match runs(AdmissionPlugin::LimitRanger) {
        true => limit_ranges::set_pod_defaults(call, operation, object),
        false => Ok(()),
    }
}

/// The steps that only check the object.
async fn check(
    call: &RequestContext<'_>,
    operation: Operation,
    object: &Object,
    old: Option<&Object>,
) -> Result<Vec<String>, ApiError> {
    let runs = |plugin| call.server.config.admission.runs(plugin);
    if runs(AdmissionPlugin::LimitRanger) {
        limit_ranges::check(call, operation, object, old).await?;
    }
    if let (true, Operation::Update, Some(old)) =
        (object.kind.is("", "PersistentVolumeClaim"), operation, old)
        && runs(AdmissionPlugin::PersistentVolumeClaimResize)
    {
        storage::admit_update(call, object, old)?;
    }
    if object.kind.is("scheduling", "PriorityClass") && runs(AdmissionPlugin::Priority) {
        priority_classes::admit(call, operation, object)?;
    }
    escalation_check::admit(call, object, old).await?;
    if object.kind.is("certificates", "CertificateSigningRequest") {
        certificates::admit(call, operation, object, old).await?;
    }
    let mut warnings = match runs(AdmissionPlugin::PodSecurity) {
        true => pod_security::admit(call, operation, object, old).await?,
        false => Vec::new(),
    };
    if operation == Operation::Create {
        warnings.extend(ingresses::class_warning(call, object));
    }
    Ok(warnings)
}

async fn admit_pod(
    call: &RequestContext<'_>,
    operation: Operation,
    pod: &mut Object,
    old: Option<&Object>,
) -> Result<(), ApiError> {
    let admission = &call.server.config.admission;
    let limits_secrets = admission.runs(AdmissionPlugin::ServiceAccount);
    match (operation, old) {
        (Operation::Create, _) => {
            if limits_secrets {
                service_accounts::admit(call, pod).await?;
            }
            if admission.runs(AdmissionPlugin::PodNodeSelector) {
                pod_node_selector::admit(call, pod)?;
            }
            if admission.runs(AdmissionPlugin::RuntimeClass) {
                runtime_class::admit(call, pod)?;
            }
            pods::admit_create(call, pod)
        }
        (Operation::Update, Some(old)) => {
            pods::admit_update(call.server, pod, old);
            Ok(())
        }
        (Operation::UpdateSubresource, _) if call.request.subresource == "ephemeralcontainers" => {
            pods::check_privileged(call, pod, old)?;
            if limits_secrets {
                service_accounts::admit_ephemeral(call, pod).await?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Runs the steps for deletions.
///
/// # Errors
/// 403 for an object that may not be deleted.
pub fn admit_delete(call: &RequestContext<'_>) -> Result<(), ApiError> {
    nodes::admit_delete(call)?;
    namespaces::admit_delete(call)
}
