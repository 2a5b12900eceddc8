//! Admission: rules that need other objects. The steps run in order, after defaulting and before validation, and may change the
//! object.

mod certificates;
mod default_classes;
mod grants;
mod ingresses;
mod limit_ranges;
mod mountable_secrets;
mod namespaces;
mod node_taint;
mod nodes;
mod pod_security;
mod pods;
mod runtime_class;
mod service_accounts;
mod storage;

use apiserver_schema::Object;

use crate::config::AdmissionPlugin;
use crate::context::RequestContext;
use crate::status::ApiError;

pub use namespaces::namespace_of;

/// The operation to be admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// It is created.
    Create,
    /// It is replaced or patched.
    Update,
    /// A subresource of it is updated.
    UpdateSubresource,
}

/// Runs all steps on `object`. `old` is the stored version of an update. Gives warnings for the client.
///
/// # Errors
/// The 403, 404 or 422 of the first step that refuses.
pub async fn admit(
    call: &RequestContext<'_>,
    operation: Operation,
    object: &mut Object,
    old: Option<&Object>,
) -> Result<Vec<String>, ApiError> {
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
    // after them. So both are one step, behind what completes a new object and before the checks that follow LimitRanger there.
    if runs(AdmissionPlugin::LimitRanger) {
        limit_ranges::admit(call, operation, object, old).await?;
    }
    if let (true, Operation::Update, Some(old)) =
        (object.kind.is("", "PersistentVolumeClaim"), operation, old)
        && runs(AdmissionPlugin::PersistentVolumeClaimResize)
    {
        storage::admit_update(call, object, old)?;
    }
    grants::admit(call, object, old).await?;
    if object.kind.is("certificates", "CertificateSigningRequest") {
        certificates::admit(call, operation, object, old).await?;
    }
    match runs(AdmissionPlugin::PodSecurity) {
        true => pod_security::admit(call, operation, object, old).await,
        false => Ok(Vec::new()),
    }
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
            if admission.runs(AdmissionPlugin::RuntimeClass) {
                runtime_class::admit(call, pod)?;
            }
            pods::admit_create(call, pod)
        }
        (Operation::Update, Some(old)) => {
            pods::admit_update(call.server, pod, old);
            Ok(())
        }
        (Operation::UpdateSubresource, _)
            if limits_secrets && call.request.subresource == "ephemeralcontainers" =>
        {
            service_accounts::admit_ephemeral(call, pod).await
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
