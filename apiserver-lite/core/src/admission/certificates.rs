//! Requests for certificates: who may approve and sign those of a signer, and subjects that may not be requested.

use apiserver_auth::{AccessTarget, Attributes, Decision, MASTERS};
use apiserver_schema::{Map, Object, certificate_requests};

use super::Operation;
use crate::config::AdmissionPlugin;
use crate::context::RequestContext;
use crate::status::{ApiError, StatusTarget};

/// Refuses approvals and certificates of those who may not `approve` or `sign` for the signer, and requests of client certificates for the
/// group that may do everything. `old` is the stored version of an update.
///
/// # Errors
/// 403.
pub async fn admit(
    call: &RequestContext<'_>,
    operation: Operation,
    request: &Object,
    old: Option<&Object>,
) -> Result<(), ApiError> {
    let runs = |plugin| call.server.config.admission.runs(plugin);
    match (operation, call.request.subresource.as_str(), old) {
        (Operation::Create, _, _) if runs(AdmissionPlugin::CertificateSubjectRestriction) => {
            check_subject(call, request)
        }
        (Operation::UpdateSubresource, "approval", Some(old))
            if runs(AdmissionPlugin::CertificateApproval) =>
        {
            check_signer(call, old, "approve").await
        }
        (Operation::UpdateSubresource, "status", Some(old))
            if runs(AdmissionPlugin::CertificateSigning) && is_signed(request, old) =>
        {
            check_signer(call, old, "sign").await
        }
        _ => Ok(()),
    }
}

/// Whether the certificate or a condition changes.
fn is_signed(new: &Object, old: &Object) -> bool {
    let empty = Map::new();
    let (new, old) = (new.status().unwrap_or(&empty), old.status().unwrap_or(&empty));
    ["certificate", "conditions"].iter().any(|field| new.get(field) != old.get(field))
}

/// Whether the user has the verb for the signer, or for all signers of its domain.
async fn check_signer(
    call: &RequestContext<'_>,
    request: &Object,
    verb: &str,
) -> Result<(), ApiError> {
    let signer = request.str_at(&["spec", "signerName"]);
    let domain = signer.split('/').next().unwrap_or_default();
    let group = call.server.names.group("certificates");
    for name in [signer.to_owned(), format!("{domain}/*")] {
        let subject = AccessTarget::Resource {
            group: &group,
            version: "*",
            resource: "signers",
            subresource: "",
            namespace: "",
            name: &name,
        };
        let attributes = Attributes { user: call.user, verb, subject };
        if call.server.authorizer.authorize(&attributes).await.decision == Decision::Allow {
            return Ok(());
        }
    }
    let why = format!("user not permitted to {verb} requests with signerName {signer:?}");
    Err(ApiError::forbidden(StatusTarget { name: request.name(), ..call.about() }, &why))
}

/// The signer of client certificates must not make administrators.
fn check_subject(call: &RequestContext<'_>, request: &Object) -> Result<(), ApiError> {
    let signer = request.str_at(&["spec", "signerName"]);
    if signer != call.server.names.client_signer() {
        return Ok(());
    }
    let groups = certificate_requests::organizations(request.str_at(&["spec", "request"]));
    // What cannot be read is refused by validation.
    if groups.iter().flatten().any(|group| group == MASTERS) {
        let why = format!("use of {signer} signer with {MASTERS} group is not allowed");
        return Err(ApiError::forbidden(
            StatusTarget { name: request.name(), ..call.about() },
            &why,
        ));
    }
    Ok(())
}
